"""Widgets of the lectures: one Python class and one ES module each, on a small shared base."""

from lectures.widgets.baseline_variance import BaselineVariance
from lectures.widgets.best_of_n import BestOfN
from lectures.widgets.bug_doctor import BugDoctor
from lectures.widgets.clip_region import ClipRegion
from lectures.widgets.gae import Gae
from lectures.widgets.group_contrast import GroupContrast
from lectures.widgets.kl_estimators import KLEstimators
from lectures.widgets.length_bias import LengthBias
from lectures.widgets.preference_pairs import PreferencePairs
from lectures.widgets.step_inspector import StepInspector
from lectures.widgets.trust_region import TrustRegion

__all__ = [
    "BaselineVariance",
    "BestOfN",
    "BugDoctor",
    "ClipRegion",
    "Gae",
    "GroupContrast",
    "KLEstimators",
    "LengthBias",
    "PreferencePairs",
    "StepInspector",
    "TrustRegion",
]
