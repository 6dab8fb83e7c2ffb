"""hw1/reward_to_go: what is still to come, discounted, within one episode."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.advantages import reward_to_go


def _done(rows):
    return torch.tensor([[int(c) for c in row] for row in rows])


# Rows with one end, with several (packed episodes), ending early with left-over rewards behind
# the end, and with no end at all (cut off).
VISIBLE = [
    (0.9, torch.bool, ["000001", "001001", "010000", "000000"]),
    (0.5, torch.float64, ["00100", "10001"]),
    (1.0, torch.int64, ["0001", "0100", "0110", "0001", "0000"]),
]
FINAL = [
    (0.8, torch.bool, ["0000001", "0010001", "0001000", "0000000"]),
    (0.6, torch.float64, ["0100", "1001", "0010", "0000", "0001", "0100"]),
    (1.0, torch.int64, ["00010", "01000", "01100"]),
]


def generate(draw, final):
    return [
        Case(
            name=f"gamma {gamma}",
            args=(draw.normal(len(rows), len(rows[0])) + 0.3, _done(rows).to(dtype)),
            knobs={"gamma": gamma},
        )
        for gamma, dtype, rows in (FINAL if final else VISIBLE)
    ]


def buggy(rewards, done, *, gamma, mistakes=frozenset()):
    done = done.to(rewards.dtype)
    over_batch = "over_batch" in mistakes
    if over_batch:
        rewards, done = rewards.T, done.T
    if "mask_inverted" in mistakes:
        done = 1 - done
    discount = gamma
    if "gamma_forgotten" in mistakes:
        discount = 1.0
    elif "gamma_squared" in mistakes:
        discount = gamma**2
    if "done_reward_dropped" in mistakes:
        rewards = rewards * (1 - done)
    time = rewards.shape[1]
    keep = 1 - done  # keep[t]: does t + 1 belong to the same episode as t
    if "done_off_by_one" in mistakes:
        keep = torch.cat([keep[:, 1:], keep[:, :1] * 0], 1)
    elif "done_late" in mistakes:
        keep = torch.cat([keep[:, :1] * 0 + 1, keep[:, :-1]], 1)
    elif "not_restarted" in mistakes:
        keep = torch.ones_like(keep)
    out = [None] * time
    carry = torch.zeros_like(rewards[:, 0])
    if "forward_cumsum" in mistakes:
        for t in range(time):
            carry = rewards[:, t] + (discount * keep[:, t - 1] * carry if t else 0)
            out[t] = carry
    else:
        for t in reversed(range(time)):
            carry = rewards[:, t] + discount * keep[:, t] * carry
            out[t] = carry
    if "own_reward_missing" in mistakes:
        out = [total - rewards[:, t] for t, total in enumerate(out)]
    if "whole_return" in mistakes:
        for t in range(1, time):
            same = keep[:, t - 1]
            out[t] = same * out[t - 1] + (1 - same) * out[t]
    if "discounted_from_start" in mistakes:
        age = torch.zeros_like(carry)
        for t in range(time):
            out[t] = out[t] * discount**age
            age = (age + 1) * keep[:, t]
    if "mean_of_rest" in mistakes:
        left = torch.zeros_like(carry)
        for t in reversed(range(time)):
            left = 1 + keep[:, t] * left if t < time - 1 else torch.ones_like(left)
            out[t] = out[t] / left
    result = torch.stack(out, 1)
    if "centred" in mistakes:
        result = result - result.mean()
    elif "standardised" in mistakes:
        result = (result - result.mean()) / (result.std() + 1e-8)
    if "one_per_row" in mistakes:
        result = result[:, 0]
    return result.T if over_batch and result.dim() == 2 else result


WHERE = "01, [PG-7]"
MISTAKES = (
    Mistake(
        "whole_return",
        "Every step gets the whole return of its episode instead of what is still to come "
        "(unbiased, but with higher variance).",
        "A reward that came before an action cannot depend on it: start the sum at t.",
        WHERE,
    ),
    Mistake(
        "done_off_by_one",
        "done is read one step late: the sum restarts before the last step of an episode "
        "instead of after it, so a terminal reward is lost to the steps before it.",
        "done[t] = 1 marks the last step of an episode; nothing after t may flow into t.",
        WHERE,
    ),
    Mistake(
        "done_late",
        "done is read one step early: the first reward of the next episode leaks into the "
        "end of this one.",
        "done[t] = 1 marks the last step of an episode; nothing after t may flow into t.",
        WHERE,
    ),
    Mistake(
        "not_restarted",
        "The sum is not restarted at done: rewards of the next episode flow into this one.",
        "Multiply what you carry by (1 - done[t]).",
        WHERE,
    ),
    Mistake(
        "mask_inverted",
        "The use of done is inverted: the sum restarts where the episode goes on.",
        "done is 1 where the carry has to stop.",
        WHERE,
    ),
    Mistake(
        "gamma_forgotten",
        "The discount gamma has no effect.",
        "A reward k steps ahead is weighed with gamma to the power k.",
        WHERE,
    ),
    Mistake(
        "gamma_squared",
        "The discount is applied twice per step.",
        "One factor of gamma per step.",
        WHERE,
    ),
    Mistake(
        "discounted_from_start",
        "Everything is additionally discounted from the start of the episode (a factor gamma^t).",
        "The discount counts from t, not from the first step.",
        WHERE,
    ),
    Mistake(
        "forward_cumsum",
        "The sum runs forward: it adds up the past instead of the future.",
        "Go through time from the last step to the first.",
        WHERE,
    ),
    Mistake(
        "own_reward_missing",
        "The reward of the step itself is missing: the sum starts one step too late.",
        "The sum starts at the reward of step t itself.",
        WHERE,
    ),
    Mistake(
        "done_reward_dropped",
        "The reward of the last step of an episode is dropped.",
        "done stops what comes after the step; the step's own reward counts.",
        WHERE,
    ),
    Mistake(
        "over_batch",
        "The sum runs over the batch instead of over time.",
        "Axis 0 is the batch, axis 1 is time.",
        WHERE,
    ),
    Mistake(
        "mean_of_rest",
        "The rest of the episode is averaged instead of summed.",
        "Reward-to-go is a sum; no length appears in it.",
        WHERE,
    ),
    Mistake(
        "centred",
        "The mean is subtracted at the end.",
        "A baseline is a separate step; return the plain sums.",
        WHERE,
    ),
    Mistake(
        "standardised",
        "The mean is subtracted at the end and the result is divided by the standard deviation.",
        "Baselines and scaling are separate steps; return the plain sums.",
        WHERE,
    ),
    Mistake(
        "one_per_row",
        "One number per row is returned instead of one per step.",
        "Return the shape (batch, time).",
        WHERE,
    ),
)

QUESTION = Question(
    id="hw1/reward_to_go",
    title="Reward-to-go",
    points=3,
    signature="(rewards, done, *, gamma)",
    lecture=WHERE,
    generate=generate,
    reference=reward_to_go,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "done_off_by_one done_late not_restarted",
        "not_restarted mask_inverted",
        "gamma_forgotten gamma_squared",
        "centred standardised",
        "forward_cumsum whole_return",
        "forward_cumsum mean_of_rest",
        "gamma_forgotten discounted_from_start",
        "one_per_row whole_return",  # invisible in the first column
        "one_per_row discounted_from_start",
    ),
)
