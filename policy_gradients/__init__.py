"""Policy-gradient losses for language models as pure tensor functions, and the table of algorithms.

Shapes: rewards (prompts, group); log-probabilities and masks (batch, time), batch = prompts ·
group with the responses to one prompt adjacent; advantages (batch, 1) or (batch, time). The mask
is 1 on response tokens, the first end token included. Everything is minimised. Surrogates return
a loss per token; averaging is a separate step, because it is a separate choice:

    advantages = group_standardized(rewards).reshape(-1, 1)
    per_token = ppo_clip(logp, logp_old, advantages, eps_low=0.2, eps_high=0.2)
    loss = mean_per_sequence(per_token, mask)

Results have the dtype of the inputs (float32 or float64), on any device. A wrong shape or dtype
raises with the names and shapes in the message. No state, no printing, nothing but torch.
"""

from policy_gradients.advantages import (
    batch_centered,
    gae,
    group_centered,
    group_standardized,
    leave_one_out,
    max_only,
    maxrl,
    optimal_baseline,
    reward_to_go,
    shape_rewards_with_kl,
    whiten,
)
from policy_gradients.aggregation import (
    mean_fixed_length,
    mean_per_sequence,
    mean_per_token,
    sum_per_sequence,
)
from policy_gradients.algorithms import (
    ALGORITHMS,
    PALETTE,
    Algorithm,
    Batch,
    algorithm_table,
    grpo_loss,
)
from policy_gradients.diagnostics import (
    ClipFraction,
    LengthStatistics,
    approximate_kl,
    clip_fraction,
    effective_sample_size,
    length_statistics,
    mean_over_tokens,
    ratio_quantiles,
    sampled_entropy,
    zero_contrast_share,
)
from policy_gradients.filters import dapo_filter, overlong_penalty
from policy_gradients.kl import exact_kl, k1, k2, k3
from policy_gradients.logprobs import entropy, response_mask, token_log_probs
from policy_gradients.preferences import bradley_terry, dpo, ipo, kto
from policy_gradients.ratios import sequence_ratio, token_ratio, truncated_importance_weight
from policy_gradients.surrogates import cispo, gspo, ppo_clip, reinforce, sapo, unclipped
from policy_gradients.trust_region import (
    adaptive_beta,
    adaptive_beta_dual_ascent,
    adaptive_beta_proportional,
    natural_gradient_step,
)
from policy_gradients.values import value_loss

__all__ = [
    "ALGORITHMS",
    "PALETTE",
    "Algorithm",
    "Batch",
    "ClipFraction",
    "LengthStatistics",
    "adaptive_beta",
    "adaptive_beta_dual_ascent",
    "adaptive_beta_proportional",
    "algorithm_table",
    "approximate_kl",
    "batch_centered",
    "bradley_terry",
    "cispo",
    "clip_fraction",
    "dapo_filter",
    "dpo",
    "effective_sample_size",
    "entropy",
    "exact_kl",
    "gae",
    "group_centered",
    "group_standardized",
    "grpo_loss",
    "gspo",
    "ipo",
    "k1",
    "k2",
    "k3",
    "kto",
    "leave_one_out",
    "length_statistics",
    "max_only",
    "maxrl",
    "mean_fixed_length",
    "mean_over_tokens",
    "mean_per_sequence",
    "mean_per_token",
    "natural_gradient_step",
    "optimal_baseline",
    "overlong_penalty",
    "ppo_clip",
    "ratio_quantiles",
    "reinforce",
    "response_mask",
    "reward_to_go",
    "sampled_entropy",
    "sapo",
    "sequence_ratio",
    "shape_rewards_with_kl",
    "sum_per_sequence",
    "token_log_probs",
    "token_ratio",
    "truncated_importance_weight",
    "unclipped",
    "value_loss",
    "whiten",
    "zero_contrast_share",
]
