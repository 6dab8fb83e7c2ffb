"""hw2/gae: advantages and returns, with ends, cuts and a bootstrap value."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.advantages import gae


def _done(rows):
    return torch.tensor([[int(c) for c in row] for row in rows])


# Rows with one end, with several (packed), with steps behind the end, and cut off; bootstrap
# absent, one per row, or one per step (there an end with a value of its own is a cut).
VISIBLE = [
    (0.9, 0.8, None, torch.bool, ["000001", "001001", "010000", "000000"]),
    (0.8, 0.6, "batch", torch.float64, ["00100", "10001", "00000"]),
    (1.0, 0.9, "time", torch.int64, ["0101", "0101", "0110", "0010", "0000"]),
    (0.95, 0.0, "time", torch.bool, ["01001", "00101"]),
    (0.9, 1.0, "batch", torch.bool, ["0010", "0101", "0000"]),
]
FINAL = [
    (0.85, 0.7, None, torch.bool, ["0000001", "0010001", "0001000", "0000000"]),
    (0.7, 0.9, "batch", torch.int64, ["0100", "1001", "0010", "0000", "0001"]),
    (1.0, 0.6, "time", torch.float64, ["00101", "01001", "01100", "00010", "00000"]),
    (0.8, 0.0, "time", torch.bool, ["0101", "1001", "0010"]),
    (0.95, 1.0, "batch", torch.bool, ["01000", "00101", "00000", "00100"]),
]


def generate(draw, final):
    cases = []
    for gamma, lam, kind, dtype, rows in FINAL if final else VISIBLE:
        batch, time = len(rows), len(rows[0])
        done = _done(rows)
        bootstrap = None
        if kind == "batch":
            bootstrap = draw.weights(batch)
        elif kind == "time":
            bootstrap = draw.weights(batch, time)
            # The first row's ends are real, with nothing to follow; all others are cuts.
            bootstrap[0] = torch.where(done[0] > 0, 0.0, bootstrap[0])
        kinds = {torch.bool: "bool", torch.int64: "int", torch.float64: "float"}
        shape = {"batch": " (batch,)", "time": " (batch, time)", None: " None"}[kind]
        cases.append(
            Case(
                name=f"gamma {gamma}, lambda {lam}, bootstrap{shape}, done {kinds[dtype]}",
                args=(
                    draw.normal(batch, time) + 0.3,
                    draw.weights(batch, time) + 0.4,
                    done.to(dtype),
                ),
                knobs={"gamma": gamma, "lam": lam, "bootstrap": bootstrap},
            )
        )
    return cases


def buggy(rewards, values, done, *, gamma, lam, bootstrap=None, mistakes=frozenset()):
    ends = done.to(rewards.dtype)
    time = rewards.shape[1]
    if "done_shifted" in mistakes:
        ends = torch.cat([ends[:, 1:], ends[:, -1:]], 1)
    elif "mask_inverted" in mistakes:
        ends = 1 - ends
    elif "any_done" in mistakes:
        ends = ends.amax(0, keepdim=True).expand_as(ends)
    beyond = torch.zeros_like(rewards)
    if bootstrap is not None and "bootstrap_ignored" not in mistakes:
        if bootstrap.dim() == 2:
            beyond = bootstrap
            if "cut_is_end" in mistakes or "done_of_next" in mistakes:  # read in the last column
                beyond = torch.cat([0 * beyond[:, :-1], beyond[:, -1:]], 1)
            if "last_cut_is_end" in mistakes or "done_of_next" in mistakes:
                column = beyond[:, -1:] * (1 - ends[:, -1:])
                beyond = torch.cat([beyond[:, :-1], column], 1)
        else:
            column = 0 * bootstrap if "bootstrap_as_carry" in mistakes else bootstrap
            if "bootstrap_after_end" not in mistakes:
                column = column * (1 - ends[:, -1])
            beyond = torch.cat([beyond[:, :-1], column[:, None]], 1)
    if "last_value_repeated" in mistakes:
        beyond = torch.where(ends > 0, beyond, beyond + values)
    elif "last_value_over" in mistakes:
        beyond = torch.where(ends > 0, beyond, values)
    elif "wrapped_over" in mistakes or ("wrapped" in mistakes and bootstrap is None):
        beyond = torch.where(ends > 0, beyond, values[:, :1])
    if "done_of_next" in mistakes:
        ends = torch.cat([ends[:, 1:], ends[:, -1:]], 1)
    discount = 1.0 if "gamma_forgotten" in mistakes else gamma
    trace = 1.0 if "lam_forgotten" in mistakes else lam
    if "rewards_early" in mistakes:
        rewards = torch.cat([rewards[:, 1:], 0 * rewards[:, :1]], 1)
    out = [None] * time
    carry = torch.zeros_like(rewards[:, 0])
    if "carry_from_bootstrap" in mistakes:
        carry = carry + beyond[:, -1]
    elif "bootstrap_as_carry" in mistakes and bootstrap is not None and bootstrap.dim() == 1:
        carry = carry + bootstrap
    order = range(time) if "forward_loop" in mistakes else reversed(range(time))
    for t in order:
        if t == time - 1:
            after = ends[:, t] * beyond[:, t] if "open_end_is_end" in mistakes else beyond[:, t]
        else:
            inside = values[:, t + 1]
            after = (1 - ends[:, t]) * inside + ends[:, t] * beyond[:, t]
            if "bootstrap_past_end" in mistakes:
                after = inside
            elif "bootstrap_everywhere" in mistakes and bootstrap is not None:
                after = beyond[:, t] if bootstrap.dim() == 2 else after
        step = 1.0 if "delta_without_gamma" in mistakes else discount
        delta = rewards[:, t] + step * after - values[:, t]
        if "value_not_subtracted" in mistakes:
            delta = delta + values[:, t]
        elif "next_value_missing" in mistakes:
            delta = delta - step * after
        stay = torch.ones_like(carry) if "carry_not_reset" in mistakes else 1 - ends[:, t]
        if "done_on_reward" in mistakes:
            delta = delta - ends[:, t] * rewards[:, t]
        decay = discount * trace
        if "carry_without_gamma" in mistakes:
            decay = trace
        elif "carry_without_lam" in mistakes:
            decay = discount
        elif "lam_squared" in mistakes:
            decay = discount * trace**2
        elif "no_carry" in mistakes:
            decay = 0.0
        carry = delta + decay * stay * carry
        if t == time - 1 and "last_column_left_out" in mistakes:
            carry = 0 * carry
        out[t] = carry
    advantages = torch.stack(out, 1)
    if "negative" in mistakes:
        advantages = -advantages
    returns = advantages + values
    if "returns_minus" in mistakes:
        returns = advantages - values
    elif "returns_are_advantages" in mistakes:
        returns = advantages
    elif "rewards_for_values" in mistakes:
        returns = advantages + rewards
    elif "returns_of_rewards" in mistakes:
        total, sums = torch.zeros_like(carry), []
        for t in reversed(range(time)):
            total = rewards[:, t] + discount * (1 - ends[:, t]) * total
            sums.append(total)
        returns = torch.stack(sums[::-1], 1)
    if "whitened" in mistakes:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        if "returns_after_whitening" in mistakes:
            returns = advantages + values
    elif "returns_after_whitening" in mistakes:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        returns = advantages + values
    if "swapped" in mistakes:
        return returns, advantages
    if "advantages_only" in mistakes:
        return advantages
    return advantages, returns


WHERE = "06, [GAE-13]"
RECURSION = "06, [GAE-6]"
MISTAKES = (
    Mistake(
        "done_shifted",
        "done is read one step late: the end is taken to lie one step before it really does.",
        "done[:, t] = 1 marks t itself as the last step.",
        WHERE,
    ),
    Mistake(
        "done_of_next",
        "The done of the next step decides what follows a step, as in code in which done marks a "
        "sequence's first step; a bootstrap where done is 1 is not read.",
        "Here done[:, t] = 1 marks t itself as the last step.",
        WHERE,
    ),
    Mistake(
        "carry_not_reset",
        "The carried sum is not reset at an end: the next sequence's advantages flow into this "
        "one.",
        "Multiply the carry by (1 - done[:, t]).",
        WHERE,
    ),
    Mistake(
        "bootstrap_past_end",
        "The value after an end is that of the next step in the row, which belongs to another "
        "sequence.",
        "On a step with done the next value is 0, or the bootstrap.",
        WHERE,
    ),
    Mistake(
        "mask_inverted",
        "The use of done is inverted: it stops where the sequence goes on.",
        "done is 1 where the carry and the next value have to stop.",
        WHERE,
    ),
    Mistake(
        "any_done",
        "A sequence that ends in one row ends in all rows: done is reduced over the batch.",
        "Keep one carry per row, and multiply it by (1 - done[:, t]).",
        WHERE,
    ),
    Mistake(
        "done_on_reward",
        "The reward of a sequence's last step is dropped.",
        "done stops what comes after the step; the step's own reward counts.",
        WHERE,
    ),
    Mistake(
        "bootstrap_ignored",
        "The bootstrap has no effect: what was cut is treated as if it had ended.",
        "A truncated sequence goes on: use the bootstrap in place of the next value.",
        WHERE,
    ),
    Mistake(
        "cut_is_end",
        "A bootstrap (batch, time) is read in the last column only: a cut inside a row is treated "
        "as an end.",
        "Wherever done is 1, bootstrap[:, t] is the value of what follows.",
        WHERE,
    ),
    Mistake(
        "last_cut_is_end",
        "A bootstrap (batch, time) is not used where done is 1 in the last column: a cut there is "
        "treated as an end.",
        "Wherever done is 1, bootstrap[:, t] is the value of what follows, also in the last "
        "column.",
        WHERE,
    ),
    Mistake(
        "open_end_is_end",
        "Behind a last column without done nothing follows: the bootstrap is read only where done "
        "is 1, and a row that is cut off by the end of the buffer is treated as if it had ended.",
        "In the last column the bootstrap is the value of what follows, also without done.",
        WHERE,
    ),
    Mistake(
        "bootstrap_after_end",
        "A bootstrap (batch,) is also used in rows that ended in the last column.",
        "Where done is 1 in the last column nothing follows: the value is 0 there.",
        WHERE,
    ),
    Mistake(
        "bootstrap_everywhere",
        "A bootstrap (batch, time) replaces the next value on every step, not only where a "
        "sequence is cut.",
        "Inside a sequence the next value is values[:, t + 1].",
        WHERE,
    ),
    Mistake(
        "last_value_repeated",
        "Behind the last column the last value is used once more.",
        "Behind the last column there is the bootstrap, or 0 without one.",
        WHERE,
    ),
    Mistake(
        "last_value_over",
        "Behind the last column the last value is used once more, in place of the bootstrap.",
        "Behind the last column there is the bootstrap, or 0 without one.",
        WHERE,
    ),
    Mistake(
        "wrapped",
        "Without a bootstrap the first value of the row stands behind its last column, as after a "
        "roll that wraps round.",
        "Without a bootstrap the value behind the last column is 0.",
        WHERE,
    ),
    Mistake(
        "wrapped_over",
        "The first value of the row stands behind its last column, as after a roll that wraps "
        "round, and the bootstrap is not used there.",
        "Behind the last column there is the bootstrap, or 0 without one.",
        WHERE,
    ),
    Mistake(
        "last_column_left_out",
        "The last column is left out: its advantage is 0, and nothing is carried from it.",
        "range(time) includes time - 1; in that column the next value is the bootstrap, or 0.",
        RECURSION,
    ),
    Mistake(
        "bootstrap_as_carry",
        "A bootstrap (batch,) is the carry's first value instead of the last delta's next value.",
        "The bootstrap enters the last delta as next value; the carry starts at 0.",
        WHERE,
    ),
    Mistake(
        "carry_from_bootstrap",
        "The carry starts with the bootstrap instead of 0: the bootstrap is a value, not an "
        "advantage.",
        "The bootstrap enters the last delta as next value; the carry starts at 0.",
        WHERE,
    ),
    Mistake(
        "gamma_forgotten",
        "The discount gamma has no effect.",
        "gamma weighs the next value and, with lambda, the carry.",
        "06, [GAE-5]",
    ),
    Mistake(
        "delta_without_gamma",
        "The next value in delta is not discounted.",
        "delta = reward + gamma · next value - value.",
        "06, [GAE-3]",
    ),
    Mistake(
        "carry_without_gamma",
        "The carry is weighed with lambda alone, without gamma.",
        "The carry's weight is gamma · lambda.",
        RECURSION,
    ),
    Mistake(
        "carry_without_lam",
        "lambda has no effect: the carry is weighed with gamma alone.",
        "The carry's weight is gamma · lambda.",
        RECURSION,
    ),
    Mistake(
        "lam_squared",
        "lambda is applied twice per step.",
        "The carry's weight is gamma · lambda, once.",
        RECURSION,
    ),
    Mistake(
        "no_carry",
        "Nothing is carried: these are the one-step errors delta.",
        "Add gamma · lambda times the next step's advantage.",
        RECURSION,
    ),
    Mistake(
        "forward_loop",
        "The loop runs from the first column to the last, so that it carries the past.",
        "Go through time from the last step to the first.",
        RECURSION,
    ),
    Mistake(
        "value_not_subtracted",
        "The step's own value is not subtracted in delta.",
        "delta = reward + gamma · next value - value.",
        "06, [GAE-3]",
    ),
    Mistake(
        "next_value_missing",
        "The next value is missing in delta.",
        "delta = reward + gamma · next value - value.",
        "06, [GAE-3]",
    ),
    Mistake(
        "rewards_early",
        "Each step is paid the reward of the next one.",
        "rewards[:, t] belongs to values[:, t] and done[:, t].",
        "06, [GAE-3]",
    ),
    Mistake(
        "returns_minus",
        "The values are subtracted from the advantages instead of added to give the returns.",
        "Advantage = return - value, so return = advantage + value.",
        "06, [GAE-8]",
    ),
    Mistake(
        "returns_are_advantages",
        "The second tensor holds the advantages once more instead of the returns.",
        "returns = advantages + values.",
        "06, [GAE-8]",
    ),
    Mistake(
        "rewards_for_values",
        "The second tensor holds the advantages plus the rewards instead of plus the values.",
        "returns = advantages + values.",
        "06, [GAE-8]",
    ),
    Mistake(
        "returns_of_rewards",
        "The second tensor holds the discounted sums of the rewards instead of advantages plus "
        "values.",
        "returns = advantages + values, whatever lambda is.",
        "06, [GAE-8]",
    ),
    Mistake(
        "whitened",
        "The advantages are standardised at the end.",
        "Whitening is a separate step, as it needs the mask.",
        WHERE,
    ),
    Mistake(
        "returns_after_whitening",
        "The advantages are standardised, and the returns are built from the standardised ones: "
        "the critic learns targets in the wrong unit.",
        "Whitening is a separate step; returns = advantages + values before it.",
        WHERE,
    ),
    Mistake(
        "negative", "The advantages have the wrong sign.", "Reward enters with a plus.", RECURSION
    ),
    Mistake(
        "swapped",
        "The two results are in the wrong order.",
        "Return (advantages, returns).",
        WHERE,
    ),
    Mistake(
        "advantages_only",
        "Only one tensor is returned instead of advantages and returns.",
        "Return both: (advantages, advantages + values).",
        WHERE,
    ),
)

QUESTION = Question(
    id="hw2/gae",
    title="Generalised advantage estimation",
    points=4,
    signature="(rewards, values, done, *, gamma, lam, bootstrap=None)",
    lecture=WHERE,
    generate=generate,
    reference=gae,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "done_shifted mask_inverted any_done done_of_next",
        "done_of_next: cut_is_end last_cut_is_end bootstrap_ignored open_end_is_end "
        "bootstrap_after_end bootstrap_past_end bootstrap_everywhere carry_not_reset "
        "next_value_missing last_value_repeated last_value_over wrapped wrapped_over "
        "carry_from_bootstrap bootstrap_as_carry last_column_left_out",
        "bootstrap_ignored: cut_is_end open_end_is_end bootstrap_after_end bootstrap_everywhere "
        "carry_from_bootstrap",
        "bootstrap_past_end bootstrap_everywhere next_value_missing",
        "bootstrap_past_end next_value_missing: cut_is_end bootstrap_ignored",
        "next_value_missing: delta_without_gamma bootstrap_ignored bootstrap_after_end "
        "last_value_repeated",
        "open_end_is_end: next_value_missing bootstrap_past_end",
        "open_end_is_end cut_is_end",  # together they are bootstrap_ignored
        "gamma_forgotten delta_without_gamma carry_without_gamma",  # two of them are the third
        "gamma_forgotten: no_carry next_value_missing",
        "carry_without_gamma carry_without_lam lam_squared no_carry",
        "no_carry: carry_not_reset carry_from_bootstrap forward_loop",
        "carry_not_reset: done_shifted mask_inverted any_done",
        "forward_loop carry_from_bootstrap",
        "value_not_subtracted next_value_missing",
        "returns_minus returns_are_advantages returns_of_rewards whitened returns_after_whitening "
        "advantages_only rewards_for_values",
        "last_value_repeated last_value_over wrapped wrapped_over last_column_left_out "
        "open_end_is_end next_value_missing",
        "last_value_over wrapped_over last_column_left_out: carry_from_bootstrap "
        "bootstrap_as_carry bootstrap_after_end no_carry",
        "bootstrap_as_carry: bootstrap_ignored open_end_is_end bootstrap_after_end no_carry "
        "carry_from_bootstrap forward_loop",
        "last_cut_is_end: bootstrap_ignored open_end_is_end next_value_missing",
        "last_column_left_out: forward_loop cut_is_end last_cut_is_end",
        "returns_are_advantages: swapped",
        "advantages_only: swapped",
    ),
)
