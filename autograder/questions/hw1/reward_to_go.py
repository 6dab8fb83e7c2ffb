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
    cases = [
        Case(
            name=f"gamma {gamma}, {str(dtype).removeprefix('torch.')} done",
            args=(draw.normal(len(rows), len(rows[0])) + 0.3, _done(rows).to(dtype)),
            knobs={"gamma": gamma},
        )
        for gamma, dtype, rows in (FINAL if final else VISIBLE)
    ]
    rows = ["01001"] if final else ["0010"]
    extreme = Case(
        name="gamma 0, one row",
        args=(draw.normal(1, len(rows[0])) + 0.3, _done(rows).to(torch.float64)),
        knobs={"gamma": 0.0},
        stability=True,
    )
    # Behind 150 steps, gamma**t is 0 in float32: nothing may be divided by it.
    many = Case(
        name="a long row in float32",
        args=(draw.normal(2, 160).to(torch.float32) + 0.3, torch.zeros(2, 160)),
        knobs={"gamma": 0.5},
        stability=True,
    )
    return [*cases, extreme, many]


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
    if "any_done" in mistakes:
        done = (done.sum(0, keepdim=True) > 0).to(done.dtype).expand_as(done)
    elif "first_row_done" in mistakes:
        done = done[:1].expand_as(done)
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
    if "done_not_flipped" in mistakes:  # keep[t] beside the rewards in reverse
        keep = keep.flip(1)
    if "carry_from_last" in mistakes:
        carry = rewards[:, -1]
    if "row_sum" in mistakes:
        out = [rewards.sum(1)] * time
    elif "plain_cumsum" in mistakes:
        out = list(rewards.cumsum(1).unbind(1))
    elif "next_only" in mistakes:
        following = [*rewards.unbind(1)[1:], carry]
        out = [rewards[:, t] + discount * keep[:, t] * following[t] for t in range(time)]
    elif "forward_loop" in mistakes:
        for t in range(time):
            carry = rewards[:, t] + discount * keep[:, t] * carry
            out[t] = carry
    elif "forward_cumsum" in mistakes:
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
    if "discounted_from_column_0" in mistakes:
        out = [total * discount**t for t, total in enumerate(out)]
    result = torch.stack(out, 1)
    if "divided_by_discount" in mistakes:
        result = result * discount ** torch.arange(time) / discount ** torch.arange(time)
    if "one_discount_more" in mistakes:
        result = result * discount
    if "negative" in mistakes:
        result = -result
    if "first_column_missing" in mistakes:
        result = torch.cat([result[:, :1] * 0, result[:, 1:]], 1)
    elif "last_column_missing" in mistakes:
        result = torch.cat([result[:, :-1], result[:, -1:] * 0], 1)
    elif "zero_after_first_done" in mistakes:
        result = result * (done.cumsum(1) - done < 1)
    elif "not_flipped_back" in mistakes:
        result = result.flip(1)
    if "centred_per_row" in mistakes:
        result = result - result.mean(1, keepdim=True)
    elif "centred" in mistakes:
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
        "row_sum",
        "Every step gets the plain sum of its row: no discount, no end of an episode, and the past "
        "counts like the future.",
        "Walk from the last column to the first with the recursion of [PG-7].",
        WHERE,
    ),
    Mistake(
        "plain_cumsum",
        "The rewards are added up from the left: what has been, not what is to come, without "
        "discount and without an end of an episode.",
        "Walk from the last column to the first with the recursion of [PG-7].",
        WHERE,
    ),
    Mistake(
        "next_only",
        "Only the reward of the next step is added; what comes later is not felt.",
        "Add the next step's result G_{t+1}, not its reward.",
        WHERE,
    ),
    Mistake(
        "forward_loop",
        "The loop runs from the first column to the last, so that it carries the past; the factor "
        "(1 - done[t]) then also drops it one step late.",
        "Go through time from the last step to the first: reversed(range(...)).",
        WHERE,
    ),
    Mistake(
        "carry_from_last",
        "The carry starts with the last reward instead of 0: where a row is cut off, that reward "
        "is counted twice.",
        "Behind the last column there is nothing: start the carry at 0.",
        WHERE,
    ),
    Mistake(
        "any_done",
        "An episode that ends in one row ends in all rows: done is reduced over the batch.",
        "Keep one carry per row, and multiply it by (1 - done[:, t]).",
        WHERE,
    ),
    Mistake(
        "first_row_done",
        "The ends of the first row are used for all rows.",
        "Keep one carry per row, and multiply it by (1 - done[:, t]).",
        WHERE,
    ),
    Mistake(
        "done_not_flipped",
        "The rewards are walked from right to left, but done from left to right.",
        "done[:, t] belongs to rewards[:, t]: flip both or none.",
        WHERE,
    ),
    Mistake(
        "discounted_from_column_0",
        "Everything is additionally discounted with gamma to the power of the column, from the "
        "row's first column on.",
        "The discount counts from t, not from the first column.",
        WHERE,
    ),
    Mistake(
        "divided_by_discount",
        "The discount is put in and divided out again as a power of gamma: at gamma 0 that is 0/0.",
        "The recursion needs no division.",
        WHERE,
    ),
    Mistake(
        "one_discount_more",
        "Everything is multiplied by gamma once too often: the step's own reward is discounted.",
        "r_t itself has weight 1: only the carry is multiplied by gamma.",
        WHERE,
    ),
    Mistake(
        "negative",
        "The sign is flipped.",
        "Rewards are added up as they come; the minus belongs to the loss.",
        WHERE,
    ),
    Mistake(
        "first_column_missing",
        "The first column stays 0: the loop ends one step too early.",
        "range(T - 1, 0, -1) stops at 1; range(T - 1, -1, -1) reaches 0.",
        WHERE,
    ),
    Mistake(
        "last_column_missing",
        "The last column stays 0, although the other columns know its reward.",
        "The last step has a reward, too: write it into the result.",
        WHERE,
    ),
    Mistake(
        "zero_after_first_done",
        "Everything behind the first end of a row is 0: later episodes of the row are lost.",
        "A row may hold several episodes, one after the other.",
        WHERE,
    ),
    Mistake(
        "not_flipped_back",
        "The columns come out in reverse order.",
        "What was computed from right to left has to be turned round again.",
        WHERE,
    ),
    Mistake(
        "centred_per_row",
        "The mean of each row is subtracted at the end.",
        "A baseline is a separate step; return the plain sums.",
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
        "not_restarted: mask_inverted any_done first_row_done done_not_flipped",
        "any_done first_row_done done_off_by_one done_late done_not_flipped",
        "any_done first_row_done: over_batch mask_inverted",
        "done_off_by_one forward_cumsum",  # together they are forward_loop
        # Other walks through the row altogether.
        "row_sum plain_cumsum next_only forward_loop forward_cumsum whole_return",
        "row_sum plain_cumsum: gamma_forgotten gamma_squared done_off_by_one done_late "
        "not_restarted mask_inverted any_done first_row_done done_not_flipped carry_from_last "
        "whole_return mean_of_rest discounted_from_start divided_by_discount",
        "row_sum: not_flipped_back one_per_row discounted_from_column_0 over_batch centred_per_row "
        "own_reward_missing",
        "next_only forward_loop: done_off_by_one done_late mask_inverted any_done first_row_done "
        "done_not_flipped carry_from_last mean_of_rest discounted_from_start",
        "forward_loop forward_cumsum: over_batch not_restarted discounted_from_column_0 "
        "carry_from_last one_per_row done_not_flipped",
        "carry_from_last: not_restarted any_done first_row_done done_not_flipped mask_inverted "
        "done_off_by_one done_late whole_return mean_of_rest own_reward_missing",
        "discounted_from_column_0 discounted_from_start divided_by_discount",
        "divided_by_discount: gamma_forgotten",
        "gamma_forgotten: one_discount_more discounted_from_column_0",
        "discounted_from_column_0 one_per_row",
        "first_column_missing last_column_missing zero_after_first_done not_flipped_back "
        "one_per_row",
        "centred_per_row centred standardised",
        "centred_per_row: one_per_row whole_return",
        "standardised: one_discount_more",
        "gamma_forgotten gamma_squared",
        "centred standardised",
        "forward_cumsum whole_return",
        "forward_cumsum mean_of_rest",
        "gamma_forgotten discounted_from_start",
        "one_per_row whole_return",  # invisible in the first column
        "one_per_row discounted_from_start",
    ),
)
