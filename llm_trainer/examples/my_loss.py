"""GRPO's loss written out by hand, to be changed. From the top of the repository:

    python -m llm_trainer train --loss llm_trainer/examples/my_loss.py:grpo

It is called with four tensors and with those of these keywords that it takes: eps_low, eps_high;
sequences, tokens (responses and response tokens of the whole step), length (the token limit).
"""

import torch


def grpo(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences):
    """Equation 3 of GRPO (arXiv 2402.03300), without its KL: that comes with `kl_coef`.

    logp, logp_old, mask : (batch, time), mask 1 on response tokens; advantages : (batch, 1)
    returns : a scalar to minimise
    """
    ratio = torch.exp((logp - logp_old).masked_fill(mask == 0, 0.0))  # padding may hold anything
    clipped = ratio.clamp(1 - eps_low, 1 + eps_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)  # (batch, time)
    per_response = (surrogate * mask).sum(1) / mask.sum(1).clamp(min=1)  # (batch,)
    # Not .mean(): groups without signal are not shown to this function, and a step may arrive in
    # pieces. Only the step's own count gives every response the same weight.
    return -per_response.sum() / sequences
