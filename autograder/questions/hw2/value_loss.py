"""hw2/value_loss: half the squared error of the critic, with PPO's value clipping."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw2.common import REDUCTIONS, SHAPES, finish, mistakes
from policy_gradients.values import value_loss

# (value - old value, return - old value) in units of the clip: inside; away; towards, far return;
# overshot a little; overshot far; moved far with the return within the clip. No tie among them.
MOVES = ((0.4, 2.0), (-2.3, 1.5), (1.7, 3.6), (4.4, 2.9), (9.5, 2.6), (1.8, 0.4))


def _case(draw, name, batch, time, clip, constants=()):
    which = torch.arange(time).remainder(len(MOVES)).expand(batch, time)
    which = which.gather(1, draw.uniform(batch, time).argsort(1))
    unit = (0.3 if clip in (None, ...) else clip) * draw.weights(batch, time).sign()
    moved, target = torch.tensor(MOVES, dtype=torch.float64)[which].unbind(-1)
    old = draw.normal(batch, time)
    stretch = draw.uniform(batch, time, low=0.95, high=1.05)
    return Case(
        name=name,
        args=(old + unit * stretch * moved, old, old + unit * stretch * target),
        knobs={} if clip is ... else {"clip": clip},
        differentiable=(0,),
        constants=constants,
        weights=draw.weights(batch, time),
    )


def generate(draw, final):
    one, two, three = [(4, 7), (2, 8), (3, 6)] if final else [(3, 7), (2, 6), (4, 8)]
    return [
        _case(draw, "clip 0.2", *one, 0.2),
        _case(draw, "clip 0.5", *two, 0.5),
        _case(draw, "no clip: None", *three, None),
        _case(draw, "no clip: left out", 2, 7, ...),
        _case(draw, "old values and returns with a graph", 3, 8, 0.4, (1, 2)),
    ]


def buggy(values, values_old, returns, *, clip=None, mistakes=frozenset()):
    if "returns_not_detached" not in mistakes:
        returns = returns.detach()
    if "old_not_detached" not in mistakes:
        values_old = values_old.detach()
    plain = values - returns
    if "clip_ignored" in mistakes:
        clip = None
    if clip is None:
        error = plain
        size = error.abs() if "absolute" in mistakes else error.square()
        if "huber" in mistakes:
            size = torch.where(plain.abs() < 1, plain.square(), 2 * plain.abs() - 1)
    else:
        if "around_zero" in mistakes:
            near = values.clamp(-clip, clip)
        elif "relative" in mistakes:
            edges = torch.stack([values_old * (1 - clip), values_old * (1 + clip)])
            near = values.clamp(edges.amin(0), edges.amax(0))
        elif "relative_edges" in mistakes:
            edges = values_old * (1 - clip), values_old * (1 + clip)
            near = torch.minimum(torch.maximum(values, edges[0]), edges[1])
        elif "old_not_added" in mistakes:
            near = (values - values_old).clamp(-clip, clip)
        elif "old_around_new" in mistakes:
            near = values + (values_old - values).clamp(-clip, clip)
        elif "one_sided" in mistakes:
            near = values_old + (values - values_old).clamp(max=clip)
        else:
            near = values_old + (values - values_old).clamp(-clip, clip)
        if "clipped_detached" in mistakes:
            near = near.detach()
        far = near - returns
        if "absolute" in mistakes:
            one, other = plain.abs(), far.abs()
        elif "huber" in mistakes:
            one, other = (
                torch.where(e.abs() < 1, e.square(), 2 * e.abs() - 1) for e in (plain, far)
            )
        else:
            one, other = plain.square(), far.square()
        if "error_clipped" in mistakes:
            error = plain.clamp(-clip, clip)
            size = error.abs() if "absolute" in mistakes else error.square()
        elif "min_for_max" in mistakes:
            size = torch.minimum(one, other)
        elif "clipped_only" in mistakes:
            size = other
        elif "max_before_square" in mistakes:
            size = torch.maximum(plain, far).square()
        elif "sum_of_both" in mistakes:
            size = one + other
        elif "mean_of_both" in mistakes:
            size = (one + other) / 2
        else:
            size = torch.maximum(one, other)
    if "no_half" not in mistakes:
        size = size / 2
    return finish(size, mistakes)


WHERE = "07, [AC-5]"
MISTAKES = (
    Mistake(
        "min_for_max",
        "The minimum of the two errors is taken where the maximum belongs: the clip then helps "
        "the critic to run away.",
        "The pessimistic choice for a loss is the larger of the two.",
        WHERE,
    ),
    Mistake(
        "clipped_only",
        "Only the clipped error is used: a value that moved the wrong way gets no gradient back.",
        "The larger of the plain and the clipped error counts.",
        WHERE,
    ),
    Mistake(
        "clip_ignored",
        "The clip has no effect (nor has one around the return: its error is never the larger).",
        "Clip values - values_old, add values_old back, and take the larger of the two errors.",
        WHERE,
    ),
    Mistake(
        "error_clipped",
        "The error is clipped instead of the move: far from the return the critic stops learning.",
        "Clip values - values_old, add values_old back, and take the larger of the two errors.",
        WHERE,
    ),
    Mistake(
        "no_half",
        "The factor ½ is missing: value and gradient are twice too large.",
        "With the ½ the unclipped gradient is value minus return.",
        WHERE,
    ),
    Mistake(
        "max_before_square",
        "The maximum is taken of the signed errors, before they are squared.",
        "Square both errors first, then take the larger one.",
        WHERE,
    ),
    Mistake(
        "sum_of_both",
        "The plain and the clipped error are added up instead of compared.",
        "Take the larger one of the two.",
        WHERE,
    ),
    Mistake(
        "mean_of_both",
        "The plain and the clipped error are averaged instead of compared.",
        "Take the larger one of the two.",
        WHERE,
    ),
    Mistake(
        "around_zero",
        "The value itself is clipped around zero instead of its distance from the old value.",
        "Clip values - values_old, then add values_old back.",
        WHERE,
    ),
    Mistake(
        "relative",
        "The clip is taken as a fraction of the old value.",
        "The clip is a distance in the unit of the rewards.",
        WHERE,
    ),
    Mistake(
        "relative_edges",
        "The clip is taken as a fraction of the old value; the edges old · (1 ± clip) even change "
        "places where the old value is negative.",
        "The clip is a distance in the unit of the rewards: old - clip and old + clip.",
        WHERE,
    ),
    Mistake(
        "old_not_added",
        "The clipped difference is not added back to the old value.",
        "The clipped value is values_old plus the clipped difference.",
        WHERE,
    ),
    Mistake(
        "old_around_new",
        "The old value is clipped around the new one, instead of the new around the old one.",
        "The new value may lie at most one clip away from the old one.",
        WHERE,
    ),
    Mistake(
        "one_sided",
        "The difference is clipped from above only.",
        "A value may also move down too far: clamp on both sides.",
        WHERE,
    ),
    Mistake(
        "clipped_detached",
        "The clipped value is detached: inside the clip, where both errors are equal, half of the "
        "gradient is lost.",
        "Only old values and returns are constants; clamp stops the gradient alone.",
        WHERE,
    ),
    Mistake(
        "absolute",
        "The error is not squared but taken as an absolute value.",
        "Half the square is asked for.",
        WHERE,
    ),
    Mistake(
        "huber",
        "Large errors count linearly instead of squared.",
        "Half the square is asked for.",
        WHERE,
    ),
    Mistake(
        "returns_not_detached",
        "The returns are not detached: a gradient flows into the targets.",
        "A target is a number: returns.detach().",
        WHERE,
    ),
    Mistake(
        "old_not_detached",
        "The old values are not detached: a gradient flows into them.",
        "What was noted at sampling time is a number: values_old.detach().",
        WHERE,
    ),
    *mistakes(WHERE, "negative", "detached", *REDUCTIONS.split(), "divided_by_time"),
)

QUESTION = Question(
    id="hw2/value_loss",
    title="The critic's loss",
    points=3,
    signature="(values, values_old, returns, *, clip=None)",
    lecture=WHERE,
    generate=generate,
    reference=value_loss,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=SHAPES
    | excluding(
        "min_for_max clipped_only clip_ignored max_before_square sum_of_both mean_of_both "
        "error_clipped",
        "clip_ignored error_clipped: around_zero relative relative_edges old_not_added "
        "old_around_new one_sided clipped_detached old_not_detached",
        "error_clipped: absolute huber",
        "around_zero relative relative_edges old_not_added old_around_new one_sided",
        "around_zero relative relative_edges: old_not_detached",
        "absolute huber max_before_square",
        "max_before_square one_sided",  # together they are clip_ignored
        "clipped_only: clipped_detached",
        "clipped_detached: old_not_detached",
        "detached: clipped_detached old_not_detached returns_not_detached",
    ),
)
