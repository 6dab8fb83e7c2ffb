"""One batch for many tests: unequal lengths, ratios on both sides of the clip, dirt on padding."""

from types import SimpleNamespace

import pytest
import torch


@pytest.fixture
def batch():
    """Lengths 3, 1, 2, 4 of T = 6; no ratio stands on an edge of ε = (.2, .28)."""

    def tensor(x):
        return torch.tensor(x, dtype=torch.float64)

    logp_old = -tensor(
        [
            [1, 0.4, 1.7, 0.9, 2, 1.5],
            [0.8, 1.1, 0.3, 0.6, 1, 0.2],
            [1.3, 0.7, 0.5, 2.2, 0.4, 0.9],
            [0.6, 1.9, 1.2, 0.35, 0.8, 1.4],
        ]
    )
    ratios = tensor(
        [
            [1.5, 0.7, 1.25, 1.1, 0.9, 1.2],
            [1.4, 0.85, 1.2, 1.3, 0.6, 0.9],
            [0.6, 1.4, 1.4, 0.9, 1.1, 0.7],
            [0.65, 0.75, 1.35, 1.1, 0.75, 1.3],
        ]
    )
    shift = tensor([[0.3, -0.2, 0.5, 0.1, -0.4, 0.2]])
    return SimpleNamespace(
        logp=logp_old + ratios.log(),
        logp_old=logp_old,
        logp_ref=logp_old + shift,
        ratios=ratios,
        advantages=tensor([[2.0], [-1.0], [0.6], [-0.7]]),
        mask=torch.arange(6) < torch.tensor([[3], [1], [2], [4]]),
        values=shift + tensor([[0.5], [0.1], [-0.2], [0.4]]),
        values_old=(shift * 0.5).expand(4, 6),
        returns=-shift + tensor([[1.0], [0.0], [0.3], [-0.6]]),
        eps={"eps_low": 0.2, "eps_high": 0.28},
    )
