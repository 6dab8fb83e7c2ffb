"""hw1/optimal_baseline: the constant that makes the gradient's variance smallest."""

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.advantages import optimal_baseline


def generate(draw, final):
    sizes = [(7, 4), (5, 3), (4, 6)] if final else [(6, 3), (4, 5), (8, 2)]
    return [
        Case(
            name=f"{n} responses, {parameters} parameters",
            # Rows of very different length, as confident and surprising responses have.
            args=(
                draw.normal(n) + 1.0,
                draw.normal(n, parameters) * draw.uniform(n, 1, low=0.3, high=2.0),
            ),
        )
        for n, parameters in sizes
    ]


def buggy(rewards, scores, *, mistakes=frozenset()):
    if "centred_scores" in mistakes:
        scores = scores - scores.mean(0)
    axis = 1
    if "per_parameter" in mistakes:
        weight = scores**2
        values = rewards[:, None]
    else:
        if "norm" in mistakes:
            weight = (scores**2).sum(axis).sqrt()
        elif "fourth_power" in mistakes:
            weight = (scores**2).sum(axis) ** 2
        elif "square_of_sum" in mistakes:
            weight = scores.sum(axis) ** 2
        elif "l1" in mistakes:
            weight = scores.abs().sum(axis)
        elif "l1_squared" in mistakes:
            weight = scores.abs().sum(axis) ** 2
        elif "largest_entry" in mistakes:
            weight = (scores**2).amax(axis)
        elif "unweighted" in mistakes:
            weight = scores.sum(axis) * 0 + 1
        elif "inverse_weights" in mistakes:
            weight = 1 / (scores**2).sum(axis)
        elif "signed_score" in mistakes:
            weight = scores.sum(axis)
        else:
            weight = (scores**2).sum(axis)
        values = rewards
    if "rewards_squared" in mistakes:
        values = values**2
    elif "rewards_centred" in mistakes:
        values = values - rewards.mean()
    top, bottom = weight * values, weight
    if "norm_below" in mistakes:
        bottom = weight.sqrt()
    if "not_normalised" in mistakes:
        out = top.mean(0)
    elif "ratio_per_sample" in mistakes:
        out = (top / bottom.mean(0)).sum(0)
    elif "upside_down" in mistakes:
        out = bottom.mean(0) / top.mean(0)
    else:
        out = top.mean(0) / bottom.mean(0)
    if "sign" in mistakes:
        out = -out
    if "advantages_returned" in mistakes:
        out = rewards - out if out.dim() == 0 else rewards[:, None] - out
    elif "one_element" in mistakes:
        out = out[..., None]
    return out


WHERE = "02, [BL-4]"
MISTAKES = (
    Mistake(
        "unweighted",
        "The plain mean of the rewards is returned (the value V), without the weights |u|².",
        "A response with a large score disturbs the gradient more, so its reward counts more.",
        WHERE,
    ),
    Mistake(
        "norm",
        "Rewards are weighted with |u| instead of |u|².",
        "Minimise E[|u|²(R - b)²] over b and read off the weights.",
        WHERE,
    ),
    Mistake(
        "fourth_power",
        "Rewards are weighted with the square of |u|².",
        "The sum of squares is already |u|²: do not square again.",
        WHERE,
    ),
    Mistake(
        "square_of_sum",
        "The entries of a score are added up before squaring, instead of squared before adding.",
        "|u|² is the sum of the squares.",
        WHERE,
    ),
    Mistake(
        "l1",
        "Rewards are weighted with the sum of absolute entries instead of |u|².",
        "|u|² is the sum of the squares.",
        WHERE,
    ),
    Mistake(
        "l1_squared",
        "Rewards are weighted with the squared sum of absolute entries instead of |u|².",
        "|u|² is the sum of the squares.",
        WHERE,
    ),
    Mistake(
        "largest_entry",
        "Only the largest entry of each score counts in the weight.",
        "|u|² adds up the squares of all entries.",
        WHERE,
    ),
    Mistake(
        "inverse_weights",
        "Rewards are weighted with 1/|u|²: the weights are upside down.",
        "A response with a large score counts more, not less.",
        WHERE,
    ),
    Mistake(
        "signed_score",
        "Rewards are weighted with the sum of the score's entries, which can be negative.",
        "A weight here is a squared length.",
        WHERE,
    ),
    Mistake(
        "per_parameter",
        "Each parameter gets its own baseline; one number for all is asked for.",
        "Add the squares over the parameters before averaging over responses.",
        WHERE,
    ),
    Mistake(
        "centred_scores",
        "The scores are centred first; their mean is 0 in expectation, not in a sample.",
        "Use the scores as they come.",
        WHERE,
    ),
    Mistake(
        "rewards_squared",
        "The rewards are squared in the numerator.",
        "Only the score is squared.",
        WHERE,
    ),
    Mistake(
        "rewards_centred",
        "The mean reward is subtracted before weighting: the result is b* minus the mean.",
        "Use the rewards as they come.",
        WHERE,
    ),
    Mistake(
        "norm_below",
        "The numerator is weighted with |u|², the denominator with |u|.",
        "The weights of a weighted mean have to be the same above and below.",
        WHERE,
    ),
    Mistake(
        "not_normalised",
        "The weighted rewards are averaged but not divided by the average weight.",
        "If every reward is 1, b* has to be 1.",
        WHERE,
    ),
    Mistake(
        "ratio_per_sample",
        "The sum of the numerator is divided by the mean of the denominator: too large by "
        "the number of responses.",
        "Use the same average above and below.",
        WHERE,
    ),
    Mistake(
        "upside_down",
        "Numerator and denominator are exchanged.",
        "If every reward is 2, b* has to be 2.",
        WHERE,
    ),
    Mistake("sign", "The sign is flipped.", "If every reward is 1, b* has to be 1.", WHERE),
    Mistake(
        "advantages_returned",
        "The rewards minus the baseline are returned; the baseline itself is asked for.",
        "Return the one number b*.",
        WHERE,
    ),
    Mistake(
        "one_element", "The result has a spare axis of size 1.", "Return a scalar, shape ().", WHERE
    ),
)

QUESTION = Question(
    id="hw1/optimal_baseline",
    title="The optimal baseline",
    points=3,
    signature="(rewards, scores)",
    lecture=WHERE,
    generate=generate,
    reference=optimal_baseline,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "unweighted norm fourth_power square_of_sum l1 l1_squared largest_entry inverse_weights "
        "signed_score per_parameter",
        "unweighted centred_scores",
        "unweighted not_normalised",
        "not_normalised ratio_per_sample upside_down norm_below",
        "rewards_squared rewards_centred",
        "norm_below unweighted",
        "norm_below signed_score",
        "advantages_returned one_element",
    ),
)
