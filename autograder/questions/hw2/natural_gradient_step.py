"""hw2/natural_gradient_step (bonus): the longest step that the quadratic model of the KL allows."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.trust_region import natural_gradient_step


def _softmax(draw, *sizes, halving=False):
    """Fisher matrix of independent softmax positions, singular, and a gradient in its range.

    halving : probabilities 1/2, 1/4, ..., with which elimination meets a zero without rounding.
    """
    blocks = []
    for size in sizes:
        p = (0.8 * draw.normal(size)).softmax(0)
        if halving:
            steps = torch.arange(1.0, size + 1, dtype=torch.float64).clamp(max=size - 1)
            p = 0.5**steps
        blocks.append(torch.diag(p) - torch.outer(p, p))
    fisher = torch.block_diag(*blocks)
    return fisher @ draw.weights(len(fisher)), fisher


def _regular(draw, size):
    root = draw.normal(size, size)
    return draw.weights(size), root @ root.T / size + 0.3 * torch.eye(size, dtype=torch.float64)


def generate(draw, final):
    sizes = (4, 6) if final else (5, 3)
    positions = [(3, 4), (5,)] if final else [(4,), (3, 3)]
    cases = []
    for delta, size in zip((0.01, 0.3), sizes, strict=True):
        name = f"{size} parameters, invertible"
        cases.append(Case(name=name, args=_regular(draw, size), knobs={"delta": delta}))
    for delta, vocab in zip((0.05, 0.2), positions, strict=True):
        name = f"softmax of {len(vocab)} position{'s' * (len(vocab) > 1)}, singular"
        args = _softmax(draw, *vocab, halving=len(vocab) > 1)
        cases.append(Case(name=name, args=args, knobs={"delta": delta}))
    grad, fisher = _regular(draw, sizes[0])
    length = (grad @ torch.linalg.solve(fisher, grad)).sqrt()
    cases.append(Case("a small gradient", (1e-2 / length * grad, fisher), {"delta": 0.1}))
    grad, fisher = _regular(draw, sizes[1])
    cases.append(Case("a small Fisher matrix", (grad, 1e-4 * fisher), {"delta": 0.1}))
    _, fisher = _softmax(draw, 3)
    nothing = torch.zeros(3, dtype=torch.float64)
    cases.append(Case(name="no gradient", args=(nothing, fisher), knobs={"delta": 0.1}))
    return cases


def buggy(grad, fisher, *, delta, mistakes=frozenset()):
    """By eigenvectors, apart from the reference's pseudo-inverse."""
    if "diagonal" in mistakes:
        fisher = torch.diag(fisher.diagonal())
    elif "damped" in mistakes:
        fisher = fisher + 0.01 * torch.eye(len(grad), dtype=grad.dtype)
    elif "entries_inverted" in mistakes:
        fisher = torch.where(fisher == 0, 0.0, 1 / fisher)
    size, axes = torch.linalg.eigh(fisher)
    alive = size.abs() > 1e-10 * size.abs().amax()
    power = -1.0
    if "fisher_not_inverted" in mistakes:
        power = 1.0
    elif "root_of_inverse" in mistakes:
        power = -0.5
    elif "inverted_twice" in mistakes:
        power = -2.0
    elif "plain_gradient" in mistakes:
        power = 0.0
    if "entries_inverted" in mistakes:
        direction = fisher @ grad
    else:
        safe = torch.where(alive, size, 1.0)
        direction = axes @ (torch.where(alive, safe.abs() ** power, 0.0) * (axes.T @ grad))
    length = direction @ fisher @ direction  # twice the model of the KL
    if "no_scale" in mistakes:
        scale = torch.ones(())
    else:
        if "euclidean_gradient" in mistakes:
            length = grad @ grad
        elif "euclidean_step" in mistakes:
            length = direction @ direction
        elif "euclidean_direction" in mistakes:
            length, direction = grad @ direction, grad
        elif "euclidean_both" in mistakes:
            length, direction = grad @ grad, grad
        elif "gradient_in_fisher" in mistakes:
            length = grad @ fisher @ grad
        budget = delta if "two_missing" in mistakes else 2 * delta
        if "delta_squared" in mistakes:
            budget = budget * delta
        if "epsilon_added" in mistakes:
            length = length + 1e-6
        elif "zero_not_caught" not in mistakes:
            length = torch.where(length > 0, length, torch.inf)
        squared = budget / length
        scale = squared if "root_missing" in mistakes else squared.sqrt()
        if "scale_inverted" in mistakes:
            scale = torch.where(length < torch.inf, 1 / scale, 0.0)
        elif "beta_for_step" in mistakes:
            scale = torch.where(length < torch.inf, squared.sqrt() / length, 0.0)
        if "delta_once_more" in mistakes:
            scale = scale * delta
    out = scale.to(grad.dtype) * direction
    if "unit_length" in mistakes:
        out = out / out.norm().clamp(min=1e-12)
    if "negative" in mistakes:
        out = -out
    if "column" in mistakes:
        out = out[:, None]
    return out


WHERE = "04, [TR-3]"
MISTAKES = (
    Mistake(
        "fisher_not_inverted",
        "The gradient is multiplied with the Fisher matrix instead of with its inverse.",
        "The direction is the pseudo-inverse of the Fisher matrix times the gradient.",
        WHERE,
    ),
    Mistake(
        "plain_gradient",
        "The direction is the plain gradient, only its length follows the trust region.",
        "The direction is the pseudo-inverse of the Fisher matrix times the gradient.",
        WHERE,
    ),
    Mistake(
        "root_of_inverse",
        "The gradient is multiplied with the inverse root of the Fisher matrix.",
        "The root belongs to the step's length, not to the matrix.",
        WHERE,
    ),
    Mistake(
        "inverted_twice",
        "The inverse of the Fisher matrix is applied twice.",
        "Once is enough.",
        WHERE,
    ),
    Mistake(
        "diagonal",
        "Only the diagonal of the Fisher matrix is used.",
        "The parameters of a softmax are coupled: use the whole matrix.",
        "04, [TR-9]",
    ),
    Mistake(
        "entries_inverted",
        "Each entry of the Fisher matrix is inverted instead of the matrix.",
        "torch.linalg.pinv gives the pseudo-inverse of a matrix.",
        WHERE,
    ),
    Mistake(
        "damped",
        "A multiple of the identity is added to the Fisher matrix: the step gets shorter.",
        "The pseudo-inverse needs no damping.",
        WHERE,
    ),
    Mistake(
        "no_scale",
        "The step is not scaled: its length does not follow delta.",
        "Scale it so that half of the step's squared length in the Fisher matrix is delta.",
        WHERE,
    ),
    Mistake(
        "two_missing",
        "The 2 is missing under the root: the step uses only half of the trust region.",
        "The model of the KL is half a square, so the squared length is 2 delta.",
        WHERE,
    ),
    Mistake(
        "root_missing",
        "The root is missing in the scale.",
        "A step twice as long costs four times the KL.",
        WHERE,
    ),
    Mistake(
        "scale_inverted",
        "The scale is inverted: the step gets longer when delta gets smaller.",
        "The scale is the root of 2 delta over the squared length.",
        WHERE,
    ),
    Mistake(
        "beta_for_step",
        "The scale is divided by the squared length once more.",
        "The squared length stands once, under the root.",
        WHERE,
    ),
    Mistake(
        "euclidean_gradient",
        "The length of the gradient is measured without the Fisher matrix.",
        "The squared length is gᵀF⁺g: gradient times direction.",
        WHERE,
    ),
    Mistake(
        "euclidean_step",
        "The step is given a Euclidean length, which is no bound on the KL.",
        "The squared length is gᵀF⁺g: gradient times direction.",
        WHERE,
    ),
    Mistake(
        "euclidean_direction",
        "The step points along the plain gradient; the inverse is used for its length only.",
        "The step is the scale times F⁺g, the same direction whose length is measured.",
        WHERE,
    ),
    Mistake(
        "euclidean_both",
        "The step is the plain gradient, scaled to a Euclidean length: the Fisher matrix has no "
        "effect.",
        "The direction is the pseudo-inverse of the Fisher matrix times the gradient.",
        WHERE,
    ),
    Mistake(
        "epsilon_added",
        "A small number is added to the squared length: a small gradient gets too short a step.",
        "Catch a squared length of 0 as a case of its own; add nothing.",
        WHERE,
    ),
    Mistake(
        "gradient_in_fisher",
        "The length is that of the gradient in the Fisher matrix, not that of the step.",
        "The squared length is gᵀF⁺g, with the inverse.",
        WHERE,
    ),
    Mistake(
        "delta_squared",
        "delta stands squared under the root.",
        "Under the root stands 2 delta.",
        WHERE,
    ),
    Mistake(
        "delta_once_more",
        "The step is multiplied by delta once more at the end.",
        "delta stands under the root only.",
        WHERE,
    ),
    Mistake(
        "zero_not_caught",
        "A gradient of zero gives NaN instead of a step of zero.",
        "Where gᵀF⁺g is 0 there is nowhere to go: return zeros.",
        WHERE,
    ),
    Mistake(
        "unit_length",
        "The step is scaled to length one at the end.",
        "Its length follows from delta.",
        WHERE,
    ),
    Mistake(
        "negative",
        "The step points downhill.",
        "The gradient is that of an objective that is maximised.",
        WHERE,
    ),
    Mistake(
        "column",
        "The step is returned as a column instead of a vector.",
        "Return the shape (parameters,).",
        WHERE,
    ),
)

QUESTION = Question(
    id="hw2/natural_gradient_step",
    title="The natural-gradient step",
    points=2,
    signature="(grad, fisher, *, delta)",
    lecture=WHERE,
    generate=generate,
    reference=natural_gradient_step,
    buggy=buggy,
    mistakes=MISTAKES,
    bonus=True,
    excludes=excluding(
        "fisher_not_inverted plain_gradient root_of_inverse inverted_twice entries_inverted",
        "diagonal entries_inverted damped",
        "no_scale: two_missing root_missing scale_inverted beta_for_step euclidean_gradient "
        "euclidean_step gradient_in_fisher delta_squared delta_once_more zero_not_caught",
        "euclidean_direction euclidean_both: fisher_not_inverted plain_gradient root_of_inverse "
        "inverted_twice entries_inverted no_scale unit_length euclidean_gradient euclidean_step "
        "gradient_in_fisher zero_not_caught epsilon_added diagonal damped",
        "euclidean_direction euclidean_both",
        "epsilon_added: no_scale unit_length zero_not_caught root_missing scale_inverted "
        "beta_for_step",
        "unit_length: no_scale two_missing root_missing scale_inverted beta_for_step "
        "euclidean_gradient euclidean_step gradient_in_fisher delta_squared delta_once_more",
        "euclidean_gradient euclidean_step gradient_in_fisher",
        "root_missing scale_inverted beta_for_step",
        "plain_gradient: euclidean_gradient euclidean_step gradient_in_fisher",
        "delta_squared delta_once_more",
        "root_missing: delta_squared delta_once_more",
        "fisher_not_inverted: euclidean_step euclidean_gradient",
    ),
)
