"""hw2/shape_rewards_with_kl: the leash is paid per token, the score on the last one."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw2.common import log_ratios
from policy_gradients.advantages import shape_rewards_with_kl


def _case(draw, name, time, spans, beta, dtype, constants=(), spread=1.0):
    """spans : per row (first, past the last) response column; dirt of size 50 outside them."""
    batch, steps = len(spans), torch.arange(time)
    mask = torch.stack([(steps >= start) & (steps < end) for start, end in spans])
    logp = draw.uniform(batch, time, low=-2.5, high=-0.2)
    ref = logp - spread * log_ratios(draw, batch, time)
    dirt = 50 * draw.weights(2, batch, time)
    return Case(
        name=name,
        args=(
            2 * draw.weights(batch),
            torch.where(mask, logp, dirt[0]),
            torch.where(mask, ref, dirt[1]),
            mask.to(dtype),
        ),
        knobs={"beta": beta},
        constants=constants,
        padding=~mask,
    )


def generate(draw, final):
    if final:
        one, two = [(0, 4), (0, 7), (0, 1), (0, 6)], [(0, 5), (0, 0), (0, 3), (0, 2), (0, 4)]
        three, sizes, betas = [(2, 5), (1, 6), (3, 4), (3, 6)], (7, 6, 6), (0.3, 0.7, 0.15)
    else:
        one, two = [(0, 3), (0, 5), (0, 1)], [(0, 4), (0, 0), (0, 6), (0, 2)]
        three, sizes, betas = [(1, 4), (2, 5), (2, 3), (1, 5)], (5, 7, 5), (0.2, 0.6, 0.25)
    return [
        _case(draw, "unequal lengths, bool mask", sizes[0], one, betas[0], torch.bool),
        _case(draw, "an empty response, float mask", sizes[1], two, betas[1], torch.float64),
        _case(draw, "prompt before the response, int mask", sizes[2], three, betas[2], torch.int64),
        _case(draw, "inputs with a graph", 6, [(0, 3), (0, 5)], 0.4, torch.bool, (0, 1, 2)),
        _case(draw, "far from the reference", 6, [(2, 5), (1, 6)], 0.3, torch.bool, spread=8.0),
    ]


def buggy(scores, logp, logp_ref, mask, *, beta, mistakes=frozenset()):
    if "score_not_detached" not in mistakes and "not_detached" not in mistakes:
        scores = scores.detach()
    if "penalty_not_detached" not in mistakes and "not_detached" not in mistakes:
        logp, logp_ref = logp.detach(), logp_ref.detach()
    valid = mask > 0
    batch, time = logp.shape
    ell = logp - logp_ref
    if "k2_for_k1" in mistakes:
        penalty = ell**2 / 2
    elif "k3_for_k1" in mistakes:
        penalty = (-ell).clamp(max=80).exp() - 1 + ell
    elif "absolute" in mistakes:
        penalty = ell.abs()
    elif "ratio_for_log" in mistakes:
        penalty = ell.clamp(-80, 80).exp()
    elif "ref_ignored" in mistakes:
        penalty = logp
    else:
        penalty = ell
    if "beta_forgotten" not in mistakes:
        penalty = beta * penalty
    if "kl_sign" in mistakes:
        penalty = -penalty
    lengths = valid.sum(1)
    kept = torch.where(valid, penalty, 0.0)
    steps = torch.arange(time).expand(batch, time)
    last = torch.where(valid, steps, -1).amax(1)
    first = torch.where(valid, steps, time).amin(1)
    if "kl_averaged" in mistakes:
        kept = kept / lengths.clamp(min=1)[:, None]
    if "kl_on_last" in mistakes:
        kept = torch.where(steps == last[:, None], kept.sum(1, keepdim=True), 0.0)
    elif "kl_spread" in mistakes:
        kept = valid * kept.sum(1, keepdim=True)
    elif "kl_on_padding" in mistakes:
        kept = penalty
    elif "kl_not_on_last" in mistakes:
        kept = torch.where(steps == last[:, None], 0.0, kept)
    paid = scores[:, None].expand(batch, time)
    if "score_times_beta" in mistakes:
        paid = beta * paid
    elif "score_per_length" in mistakes:
        paid = paid / lengths.clamp(min=1)[:, None]
    elif "score_missing" in mistakes:
        paid = 0 * paid
    index = lengths - 1 if {"score_at_length", "score_at_count"} & mistakes else last
    if "empty_first" in mistakes:
        index = index.clamp(min=0)
    elif "empty_wraps" in mistakes or "score_at_length" in mistakes:
        index = index.remainder(time)  # -1 is the last column
    if "score_on_last_column" in mistakes:
        index = torch.full_like(index, time - 1)
    elif "score_lost" in mistakes:
        index = torch.where(last == time - 1, last, -1)
    elif "score_before_last" in mistakes:
        index = torch.where(lengths > 0, last - 1, -1)
    elif "score_on_first" in mistakes:
        index = first
    elif "score_after_last" in mistakes:
        index = torch.where(lengths > 0, last + 1, -1)
    place = valid if "score_on_every_token" in mistakes else steps == index[:, None]
    if "score_on_prompt" in mistakes:
        place = place | ((lengths == 1)[:, None] & (steps < first[:, None]))
    out = torch.where(place, paid, 0.0) - kept
    if "negative" in mistakes:
        out = -out
    if "one_per_response" in mistakes:
        out = out.sum(1)
    return out


WHERE = "07, [AC-4]"
MISTAKES = (
    Mistake(
        "kl_sign",
        "The penalty has the wrong sign: tokens are paid for leaving the reference.",
        "The log-ratio enters with a minus, and it is policy minus reference.",
        WHERE,
    ),
    Mistake(
        "beta_forgotten",
        "beta has no effect on the penalty.",
        "The penalty is beta times the log-ratio.",
        WHERE,
    ),
    Mistake(
        "score_on_last_column",
        "The score is put on the last column, which for a shorter response is padding.",
        "The last token of a row is the last one with mask 1.",
        WHERE,
    ),
    Mistake(
        "score_lost",
        "The score is put on the last column and masked away where that is padding: a shorter "
        "response is paid no score.",
        "The last token of a row is the last one with mask 1.",
        WHERE,
    ),
    Mistake(
        "score_before_last",
        "The score is paid one position before the last token of the response.",
        "The last response token itself is paid, the end token included.",
        WHERE,
    ),
    Mistake(
        "score_at_count",
        "The score is put at the column that equals the response's length minus one: too early "
        "where a prompt stands before it.",
        "Look for the last column with mask 1, not for a number of tokens.",
        WHERE,
    ),
    Mistake(
        "score_on_every_token",
        "The score is paid on every token of the response.",
        "Pay the score once, on the last response token.",
        WHERE,
    ),
    Mistake(
        "score_on_first",
        "The score is paid on the first token of the response.",
        "Pay the score on the last response token.",
        WHERE,
    ),
    Mistake(
        "score_after_last",
        "The score is paid one position behind the last token of the response.",
        "The last response token itself is paid, the end token included.",
        WHERE,
    ),
    Mistake(
        "score_at_length",
        "The score is put at the column that equals the response's length minus one: too early "
        "where a prompt stands before it, and in the last column where the response is empty.",
        "Look for the last column with mask 1, not for a number of tokens.",
        WHERE,
    ),
    Mistake(
        "empty_wraps",
        "The score of an empty response lands in the last column, through an index of minus one.",
        "An empty response has no last token: its row is 0.",
        WHERE,
    ),
    Mistake(
        "empty_first",
        "The score of an empty response lands in the first column.",
        "An empty response has no last token: its row is 0.",
        WHERE,
    ),
    Mistake(
        "score_on_prompt",
        "The score is also paid outside the response, on the prompt's columns before a response "
        "of one token.",
        "The last response token has mask 1 itself: valid & (left == 1).",
        WHERE,
    ),
    Mistake(
        "score_missing",
        "The score is not paid at all.",
        "The last response token earns the score besides its penalty.",
        WHERE,
    ),
    Mistake(
        "score_times_beta",
        "beta multiplies the score too.",
        "beta is the price of the log-ratio only.",
        WHERE,
    ),
    Mistake(
        "score_per_length",
        "The score is divided by the length of the response.",
        "The whole score is paid on the last token.",
        WHERE,
    ),
    Mistake(
        "kl_on_padding",
        "The penalty is not masked: positions outside the response are charged too.",
        "Where the mask is 0 the result is 0.",
        WHERE,
    ),
    Mistake(
        "kl_not_on_last",
        "The last token is paid the score in place of its penalty instead of besides it.",
        "Add the score to the penalty of the last token.",
        WHERE,
    ),
    Mistake(
        "kl_on_last",
        "The penalties of the response are added up and charged on its last token.",
        "Each token is charged its own log-ratio.",
        WHERE,
    ),
    Mistake(
        "kl_spread",
        "Each token is charged the sum of the whole response's log-ratios.",
        "Each token is charged its own log-ratio.",
        WHERE,
    ),
    Mistake(
        "kl_averaged",
        "The penalty is divided by the length of the response.",
        "Each token is charged its own log-ratio, whatever the length.",
        WHERE,
    ),
    Mistake(
        "k2_for_k1",
        "The penalty is k2, half the squared log-ratio, instead of k1.",
        "In the reward only k1 has the right gradient.",
        "05, [KL-5]",
    ),
    Mistake(
        "k3_for_k1",
        "The penalty is k3 instead of k1.",
        "In the reward only k1 has the right gradient.",
        "05, [KL-5]",
    ),
    Mistake(
        "absolute",
        "The penalty is the absolute value of the log-ratio.",
        "A token less likely than under the reference is paid, not charged.",
        WHERE,
    ),
    Mistake(
        "ratio_for_log",
        "The penalty is the ratio of the probabilities instead of its logarithm.",
        "The log-ratio is a difference of log-probabilities, without exp.",
        WHERE,
    ),
    Mistake(
        "ref_ignored",
        "The reference has no effect: the penalty is the policy's log-probability.",
        "The penalty is beta times (logp - logp_ref).",
        WHERE,
    ),
    Mistake(
        "not_detached",
        "The result is not detached: a gradient of the reward flows into its inputs.",
        "A reward is a number; cut its graph.",
        WHERE,
    ),
    Mistake(
        "penalty_not_detached",
        "The penalty is not detached: a gradient of the reward flows into the log-probabilities.",
        "A reward is a number; detach the whole result.",
        WHERE,
    ),
    Mistake(
        "score_not_detached",
        "The score is not detached: a gradient of the reward flows into it.",
        "A reward is a number; detach the whole result.",
        WHERE,
    ),
    Mistake(
        "negative",
        "The whole result has the wrong sign.",
        "A reward is earned: the score enters with a plus, the penalty with a minus.",
        WHERE,
    ),
    Mistake(
        "one_per_response",
        "The rewards are added up to one number per response instead of one per token.",
        "Return the shape (batch, time).",
        WHERE,
    ),
)

QUESTION = Question(
    id="hw2/shape_rewards_with_kl",
    title="Rewards with the KL inside",
    points=3,
    signature="(scores, logp, logp_ref, mask, *, beta)",
    lecture=WHERE,
    generate=generate,
    reference=shape_rewards_with_kl,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "not_detached penalty_not_detached score_not_detached",
        "score_missing: score_not_detached penalty_not_detached",
        "score_on_last_column score_on_every_token score_on_first score_after_last: "
        "score_on_last_column score_on_every_token score_on_first score_after_last "
        "score_at_length empty_wraps empty_first",
        "empty_wraps: score_at_length empty_first",
        "score_lost score_before_last score_at_count: score_on_last_column score_on_every_token "
        "score_on_first score_after_last score_at_length empty_wraps empty_first score_missing "
        "score_on_prompt kl_on_last one_per_response",
        "score_lost score_before_last score_at_count",
        "score_missing: kl_sign score_on_last_column score_on_every_token score_on_first "
        "score_after_last score_at_length empty_wraps empty_first",
        "score_missing score_times_beta score_per_length",
        "score_on_prompt: score_missing score_on_every_token score_on_last_column score_on_first "
        "score_after_last score_at_length",
        "k2_for_k1 k3_for_k1 absolute ratio_for_log ref_ignored",
        "kl_on_last kl_spread kl_on_padding kl_not_on_last",
        "kl_averaged kl_on_padding",
        # Outside the response an unmasked penalty is as large as its dirt.
        "kl_on_padding: k2_for_k1 k3_for_k1 ratio_for_log",
        "one_per_response: empty_wraps score_on_last_column score_on_first score_after_last "
        "score_at_length kl_on_last",
    ),
)
