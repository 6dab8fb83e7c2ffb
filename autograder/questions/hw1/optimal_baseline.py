"""hw1/optimal_baseline: the constant that makes the gradient's variance smallest."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.advantages import optimal_baseline


def generate(draw, final):
    sizes = [(7, 4), (5, 3), (4, 6)] if final else [(6, 3), (4, 5), (8, 2)]
    cases = [
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
    args = draw.normal(5) + 1.0, draw.normal(5, 3) * draw.uniform(5, 1, low=0.3, high=2.0)
    small = Case(name="tiny scores", args=(args[0], 1e-3 * args[1]))
    single = tuple(x.to(torch.float32) for x in args)
    return [*cases, small, Case(name="in float32", args=single, stability=True)]


def buggy(rewards, scores, *, mistakes=frozenset()):
    if "centred_scores" in mistakes:
        scores = scores - scores.mean(0)
    axis = 1
    if "per_parameter" in mistakes or "parameters_averaged" in mistakes:
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
        elif "softmax_weights" in mistakes:
            weight = (scores**2).sum(axis).softmax(0)
        elif "largest_response" in mistakes:
            size = (scores**2).sum(axis)
            weight = (size == size.max()).to(size.dtype)
        else:
            weight = (scores**2).sum(axis)
        values = rewards
    if "absolute_rewards" in mistakes:
        values = values.abs()
    elif "rewards_squared" in mistakes:
        values = values**2
    elif "rewards_centred" in mistakes:
        values = values - rewards.mean()
    top, bottom = weight * values, weight
    if "norm_below" in mistakes:
        bottom = weight.sqrt()
    elif "entries_below" in mistakes:
        bottom = weight / scores.shape[1]
    if "outer" in mistakes:
        out = values.sum(0)
    elif "not_normalised" in mistakes:
        out = top.mean(0)
    elif "sum_only" in mistakes:
        out = top.sum(0)
    elif "mean_over_sum" in mistakes:
        out = top.mean(0) / bottom.sum(0)
    elif "ratio_per_sample" in mistakes:
        out = (top / bottom.mean(0)).sum(0)
    elif "upside_down" in mistakes:
        out = bottom.mean(0) / top.mean(0)
    else:
        out = top.mean(0) / bottom.mean(0)
    if "parameters_averaged" in mistakes:
        out = out.mean()
    if "gradients_projected" in mistakes:
        mean = scores.mean(0)
        out = ((scores * rewards[:, None]).mean(0) * mean).sum() / (mean * mean).sum()
    elif "squared_means" in mistakes:
        out = (scores * rewards[:, None]).mean(0).square().sum() / scores.mean(0).square().sum()
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
        "The result is the plain mean of the rewards (the value V): the weights |u|² have no "
        "effect.",
        "A response with a large score counts more. If your line has weights: does a shape (n, 1) "
        "meet a shape (n,), so that every weight meets every reward?",
        WHERE,
    ),
    Mistake(
        "outer",
        "The result is the sum of all rewards: every weight met every reward, as happens when a "
        "shape (n, 1) is multiplied with a shape (n,).",
        "Give the weights the shape (n,): sum over axis 1 without keepdim.",
        WHERE,
    ),
    Mistake(
        "softmax_weights",
        "The weights are a softmax of |u|² instead of |u|² divided by its sum.",
        "A weighted mean divides by the sum of the weights; no exponential appears.",
        WHERE,
    ),
    Mistake(
        "largest_response",
        "The reward of the response with the largest score is returned.",
        "All responses count, each with its |u|².",
        WHERE,
    ),
    Mistake(
        "gradients_projected",
        "Averages of the score vectors are multiplied, E[uR]·E[u] / |E[u]|², instead of averages "
        "of squared lengths taken.",
        "First the squared length of each score vector, then the average.",
        WHERE,
    ),
    Mistake(
        "squared_means",
        "The squared lengths of averages are divided, |E[uR]|² / |E[u]|².",
        "First the squared length of each score vector, then the average.",
        WHERE,
    ),
    Mistake(
        "parameters_averaged",
        "Each parameter gets its own baseline, and these are averaged.",
        "Add the squares over the parameters before averaging over responses.",
        WHERE,
    ),
    Mistake(
        "absolute_rewards",
        "The absolute values of the rewards are averaged.",
        "Use the rewards as they come, with their sign.",
        WHERE,
    ),
    Mistake(
        "entries_below",
        "The squares are added over the parameters above and averaged over them below.",
        "The weights of a weighted mean have to be the same above and below.",
        WHERE,
    ),
    Mistake(
        "sum_only",
        "The weighted rewards are added up but not divided by the sum of the weights.",
        "If every reward is 1, b* has to be 1.",
        WHERE,
    ),
    Mistake(
        "mean_over_sum",
        "The mean of the numerator is divided by the sum of the denominator: too small by the "
        "number of responses.",
        "Use the same average above and below.",
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
        "signed_score per_parameter parameters_averaged softmax_weights largest_response "
        "gradients_projected squared_means outer",
        "unweighted outer largest_response: centred_scores not_normalised sum_only norm_below "
        "mean_over_sum ratio_per_sample upside_down entries_below",
        "gradients_projected squared_means: not_normalised sum_only norm_below mean_over_sum "
        "ratio_per_sample upside_down entries_below rewards_squared rewards_centred "
        "absolute_rewards centred_scores advantages_returned",
        "softmax_weights: sum_only not_normalised norm_below entries_below",
        "per_parameter parameters_averaged: norm_below entries_below",
        "not_normalised ratio_per_sample upside_down norm_below sum_only mean_over_sum "
        "entries_below",
        "rewards_squared rewards_centred absolute_rewards",
        "norm_below signed_score",
        "advantages_returned one_element",
    ),
)
