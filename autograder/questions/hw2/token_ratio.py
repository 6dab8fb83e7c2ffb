"""hw2/token_ratio: how much likelier each token has become since it was sampled."""

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw2.common import REDUCTIONS, SHAPES, finish, log_ratios, mistakes
from policy_gradients.ratios import token_ratio


def generate(draw, final):
    cases = []
    for batch, time in [(4, 3), (2, 6), (3, 2)] if final else [(3, 5), (4, 2), (2, 3)]:
        logp = draw.uniform(batch, time, low=-2.5, high=-0.2)
        cases.append(
            Case(
                name=f"{batch} responses, {time} tokens",
                args=(logp, logp - log_ratios(draw, batch, time)),
                differentiable=(0,),
                weights=draw.weights(batch, time),
            )
        )
    batch, time = (3, 4) if final else (2, 4)
    logp = draw.uniform(batch, time, low=-2.5, high=-0.2)
    cases.append(
        Case(
            name="old log-probabilities with a graph",
            args=(logp, logp - log_ratios(draw, batch, time)),
            differentiable=(0,),
            constants=(1,),
            weights=draw.weights(batch, time),
        )
    )
    logp = draw.uniform(2, 3, low=-14.0, high=-13.0)
    gap = log_ratios(draw, 2, 3)
    gap[0, 1], gap[1, 2] = 11 + draw.uniform(1).item(), -11 - draw.uniform(1).item()
    gap[1, 0] = 12 + draw.uniform(1).item()
    cases.append(
        Case(
            name="ratios far from one",
            args=(logp, logp - gap),
            differentiable=(0,),
            weights=draw.weights(2, 3),
        )
    )
    rare = -draw.uniform(2, 3, low=115.0, high=130.0)
    cases.append(
        Case(
            name="very unlikely tokens in float32",
            args=(rare.float(), (rare - log_ratios(draw, 2, 3)).float()),
            differentiable=(0,),
            weights=draw.weights(2, 3).float(),
            stability=True,
        )
    )
    return cases


def buggy(logp, logp_old, *, mistakes=frozenset()):
    if "old_not_detached" not in mistakes:
        logp_old = logp_old.detach()
    if "old_recomputed" in mistakes:
        logp_old = logp.detach() + 0 * logp_old
    new, old = (logp_old, logp) if "ratio_inverted" in mistakes else (logp, logp_old)
    if "old_ignored" in mistakes:
        old = 0 * old
    gap = new - old
    if "sequence_sum" in mistakes:
        gap = gap.sum(1, keepdim=True).expand_as(logp)
    elif "sequence_mean" in mistakes:
        gap = gap.mean(1, keepdim=True).expand_as(logp)
    elif "cumulative" in mistakes:
        gap = gap.cumsum(1)
    elif "response_sum" in mistakes:
        gap, new, old = (x.sum(1) for x in (gap, new, old))
    elif "response_mean" in mistakes:
        gap, new, old = (x.mean(1) for x in (gap, new, old))
    if "log_ratio_clamped" in mistakes:
        gap = gap.clamp(-10, 10)
    if "no_exp" in mistakes:
        out = gap
    elif "quotient_of_logs" in mistakes:
        out = new / old
    elif "quotient_of_probabilities" in mistakes:
        out = new.exp() / old.exp()
    elif "difference_of_probabilities" in mistakes:
        out = new.exp() - old.exp()
    elif "first_order" in mistakes:
        out = 1 + gap
    else:
        out = gap.exp()
    if "minus_one" in mistakes:
        out = out - 1
    if "clipped" in mistakes:
        out = out.clamp(0.8, 1.2)
    return finish(out, mistakes)


WHERE = "03, [RC-3]"
MISTAKES = (
    Mistake(
        "ratio_inverted",
        "The ratio is inverted: old over new.",
        "New log-probability minus old one, then exp.",
        WHERE,
    ),
    Mistake(
        "no_exp",
        "The exponential is missing: this is the logarithm of the ratio.",
        "A difference of logarithms becomes a quotient through exp.",
        WHERE,
    ),
    Mistake(
        "quotient_of_logs",
        "One log-probability is divided by the other, which is no ratio of probabilities.",
        "Subtract the log-probabilities, then exponentiate.",
        WHERE,
    ),
    Mistake(
        "quotient_of_probabilities",
        "Both log-probabilities are exponentiated before they are divided: for rare tokens in "
        "float32 that is 0/0.",
        "Subtract first, exponentiate afterwards.",
        WHERE,
    ),
    Mistake(
        "difference_of_probabilities",
        "The probabilities are subtracted instead of divided.",
        "A ratio of probabilities is the exponential of a difference of log-probabilities.",
        WHERE,
    ),
    Mistake(
        "first_order",
        "One plus the log-ratio stands for its exponential: that holds near a ratio of one only.",
        "Use exp itself.",
        WHERE,
    ),
    Mistake(
        "old_not_detached",
        "The old log-probabilities are not detached: a gradient flows into them.",
        "What was noted at sampling time is a number: logp_old.detach().",
        WHERE,
    ),
    Mistake(
        "old_recomputed",
        "The current policy stands in both places: the ratio is one everywhere, and logp_old "
        "has no effect.",
        "The denominator is logp_old as it was given.",
        WHERE,
    ),
    Mistake(
        "old_ignored",
        "The old log-probability has no effect: this is the probability, not a ratio.",
        "Subtract logp_old before the exponential.",
        WHERE,
    ),
    Mistake(
        "sequence_sum",
        "The log-ratios of a row are added up: every token gets the ratio of the whole response.",
        "One ratio per token; nothing is added over time.",
        "03, [RC-2]",
    ),
    Mistake(
        "sequence_mean",
        "The log-ratios of a row are averaged: every token gets the same ratio.",
        "One ratio per token; nothing is averaged over time.",
        WHERE,
    ),
    Mistake(
        "response_sum",
        "The log-ratios of a row are added up before exp: one ratio per response instead of one "
        "per token.",
        "One ratio per token, shape (batch, time); nothing is added over time.",
        "03, [RC-2]",
    ),
    Mistake(
        "response_mean",
        "The log-ratios of a row are averaged before exp: one ratio per response instead of one "
        "per token.",
        "One ratio per token, shape (batch, time); nothing is averaged over time.",
        WHERE,
    ),
    Mistake(
        "cumulative",
        "The log-ratios are added up along the row: each token carries those before it.",
        "One ratio per token; nothing is added over time.",
        "03, [RC-11]",
    ),
    Mistake("minus_one", "One is subtracted from the ratio.", "Return the ratio itself.", WHERE),
    Mistake(
        "log_ratio_clamped",
        "The log-ratio is clamped to ±10 before exp.",
        "Return every ratio as it is; nothing is clamped here.",
        "03, [RC-6]",
    ),
    Mistake(
        "clipped",
        "The ratio is clipped here already.",
        "Clipping belongs to the surrogate; return every ratio as it is.",
        "03, [RC-6]",
    ),
    *mistakes(WHERE, "negative", "detached", *REDUCTIONS.split(), "divided_by_time"),
)

QUESTION = Question(
    id="hw2/token_ratio",
    title="The ratio per token",
    points=2,
    signature="(logp, logp_old)",
    lecture=WHERE,
    generate=generate,
    reference=token_ratio,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=SHAPES
    | excluding(
        "no_exp quotient_of_logs quotient_of_probabilities difference_of_probabilities first_order",
        "sequence_sum sequence_mean cumulative response_sum response_mean",
        f"response_sum response_mean: {REDUCTIONS} divided_by_time old_recomputed no_exp "
        "quotient_of_logs quotient_of_probabilities difference_of_probabilities",
        f"sequence_sum: {REDUCTIONS}",
        "quotient_of_logs quotient_of_probabilities difference_of_probabilities: sequence_sum "
        "sequence_mean cumulative",
        # An old probability of one, or a ratio of one, leaves little to get wrong.
        "old_ignored: quotient_of_logs quotient_of_probabilities old_recomputed old_not_detached",
        "old_recomputed: sequence_sum sequence_mean cumulative ratio_inverted "
        "old_not_detached clipped no_exp first_order quotient_of_logs quotient_of_probabilities "
        "difference_of_probabilities",
        "first_order minus_one",  # together they are no_exp
        "log_ratio_clamped: clipped quotient_of_logs quotient_of_probabilities old_recomputed "
        "difference_of_probabilities response_sum sequence_sum cumulative response_mean "
        "sequence_mean old_ignored",
        "no_exp: ratio_inverted minus_one clipped",  # inverted: the same as negative
        "difference_of_probabilities: ratio_inverted clipped",
        "quotient_of_probabilities: clipped detached",
        "no_exp sequence_mean: mean_over_time mean",
        "clipped: first_order quotient_of_logs old_ignored",
        "detached: old_not_detached",
        "no_exp old_ignored",  # returns its argument
        "old_recomputed minus_one",  # nothing but zeros
        "difference_of_probabilities old_ignored",  # together old_ignored and minus_one
        "quotient_of_probabilities: mean sum mean_of_sums mean_over_time sum_over_time",
    ),
)
