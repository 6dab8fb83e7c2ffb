"""hw1/reinforce: the loss per token whose gradient is the policy gradient."""

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.surrogates import reinforce


def generate(draw, final):
    sizes = [(4, 6, 1), (3, 2, 2), (2, 5, 1)] if final else [(3, 5, 1), (4, 2, 2), (2, 3, 1)]
    cases = []
    for batch, time, width in sizes:
        cases.append(
            Case(
                name="advantages (batch, 1)" if width == 1 else "advantages (batch, time)",
                args=(draw.uniform(batch, time, low=-2.5, high=-0.2), draw.weights(batch, width)),
                differentiable=(0,),
                weights=draw.weights(batch, time),
            )
        )
    for batch, time, width in [(3, 4, 4), (2, 4, 1)]:
        cases.append(
            Case(
                name=f"advantages (batch, {'1' if width == 1 else 'time'}) from a network",
                args=(draw.uniform(batch, time, low=-2.5, high=-0.2), draw.weights(batch, width)),
                differentiable=(0,),
                constants=(1,),
                weights=draw.weights(batch, time),
            )
        )
    cases.append(
        Case(
            name="unlikely tokens, large advantages",
            args=(draw.uniform(3, 4, low=-40.0, high=-4.0), 20 * draw.weights(3, 1)),
            differentiable=(0,),
            weights=draw.weights(3, 4),
        )
    )
    return cases


def buggy(logp, advantages, *, mistakes=frozenset()):
    batch, time = logp.shape
    if "advantages_not_detached" not in mistakes:
        advantages = advantages.detach()
    if "advantages_centred" in mistakes:
        advantages = advantages - advantages.mean()
    if "advantages_whitened" in mistakes:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    if "advantage_size" in mistakes:
        advantages = advantages.abs()
    elif "advantage_sign" in mistakes:
        advantages = advantages.sign()
    elif "negative_dropped" in mistakes:
        advantages = advantages.clamp(min=0)
    elif "advantages_ignored" in mistakes:
        advantages = advantages * 0 + 1
    elif "advantages_squared" in mistakes:
        advantages = advantages**2
    elif "advantages_clipped" in mistakes:
        advantages = advantages.clamp(-1, 1)
    elif "first_advantage" in mistakes:
        advantages = advantages[:, :1]
    elif "advantages_averaged" in mistakes:
        advantages = advantages * 0 + advantages.mean()
    if "mean_log_prob" in mistakes:
        logp = logp.mean(1, keepdim=True)
    elif "mean_log_prob_spread" in mistakes:
        logp = logp.mean(1, keepdim=True).expand_as(logp)
    elif "summed_log_prob" in mistakes:
        logp = logp.sum(1, keepdim=True)
    elif "cumulative_log_prob" in mistakes:
        logp = logp.cumsum(1)
    if "logp_squared" in mistakes:
        logp = logp**2
    if "probabilities" in mistakes:
        logp = logp.exp()
    if "ratio" in mistakes:
        logp = (logp - logp.detach()).exp()
    if "logp_detached" in mistakes:
        logp = logp.detach()
    if "sum_for_product" in mistakes:
        loss = logp + advantages
    elif "difference_for_product" in mistakes:
        loss = logp - advantages
    elif "quotient_for_product" in mistakes:
        loss = logp / advantages
    else:
        loss = logp * advantages
    if "missing_minus" not in mistakes:
        loss = -loss
    if "divided_by_time" in mistakes:
        loss = loss / time
    if "divided_by_batch" in mistakes:
        loss = loss / batch
    if "mean" in mistakes:
        loss = loss.mean()
    elif "sum" in mistakes:
        loss = loss.sum()
    elif "mean_over_time" in mistakes:
        loss = loss.mean(1)
    elif "sum_over_time" in mistakes:
        loss = loss.sum(1)
    elif "sum_over_time_kept" in mistakes:
        loss = loss.sum(1, keepdim=True)
    elif "mean_over_batch" in mistakes:
        loss = loss.mean(0)
    return loss


WHERE = "01, [PG-6]"
MISTAKES = (
    Mistake(
        "missing_minus",
        "The minus sign is missing: minimising this makes good tokens less likely.",
        "The objective is maximised, a loss is minimised.",
        WHERE,
    ),
    Mistake(
        "advantages_not_detached",
        "The advantages are not detached: a gradient of the policy's loss flows into "
        "whatever produced them.",
        "An advantage is a number that weighs the score vector; cut its graph.",
        WHERE,
    ),
    Mistake(
        "logp_detached",
        "The log-probabilities are detached: the value is right and the gradient is zero "
        "everywhere.",
        "Of the two factors, only one is a constant.",
        WHERE,
    ),
    Mistake(
        "probabilities",
        "Probabilities are weighted instead of log-probabilities.",
        "The log-derivative identity [PG-2] leaves ∇ log π, not ∇π.",
        "01, [PG-2]",
    ),
    Mistake(
        "ratio",
        "A ratio of new to old probability stands where the log-probability belongs: the "
        "gradient is right, the value is not.",
        "That is the surrogate of lecture 03; here the plain log-probability is asked for.",
        "03, [RC-4]",
    ),
    Mistake(
        "mean_log_prob",
        "The advantage weighs the mean log-probability of the row instead of each token's own.",
        "Every token keeps its own log-probability; do not average before multiplying.",
        WHERE,
    ),
    Mistake(
        "mean_log_prob_spread",
        "The advantage weighs the mean log-probability of the row, written to every token.",
        "Every token keeps its own log-probability; do not average before multiplying.",
        WHERE,
    ),
    Mistake(
        "summed_log_prob",
        "The advantage weighs the summed log-probability of the row instead of each token's own.",
        "Every token keeps its own log-probability; do not add up before multiplying.",
        WHERE,
    ),
    Mistake(
        "divided_by_time",
        "Each entry is already divided by the number of tokens.",
        "One loss per token is asked for; averaging is a separate step.",
        WHERE,
    ),
    Mistake(
        "divided_by_batch",
        "Each entry is already divided by the batch size.",
        "One loss per token is asked for; averaging is a separate step.",
        WHERE,
    ),
    Mistake(
        "mean",
        "The loss is averaged to one number instead of one per token.",
        "Return the shape (batch, time); averaging is a separate step, because it is a "
        "separate choice.",
        WHERE,
    ),
    Mistake(
        "sum",
        "The loss is summed to one number instead of one per token.",
        "Return the shape (batch, time); adding up is a separate step, because it is a "
        "separate choice.",
        WHERE,
    ),
    Mistake(
        "mean_over_time",
        "The loss is averaged over time: one number per response instead of one per token.",
        "Return the shape (batch, time).",
        WHERE,
    ),
    Mistake(
        "sum_over_time",
        "The loss is summed over time: one number per response instead of one per token.",
        "Return the shape (batch, time).",
        WHERE,
    ),
    Mistake(
        "sum_over_time_kept",
        "The loss is summed over time, with the shape (batch, 1): one number per response instead "
        "of one per token.",
        "Return the shape (batch, time).",
        WHERE,
    ),
    Mistake(
        "mean_over_batch",
        "The loss is averaged over the batch: one number per position instead of one per token.",
        "Return the shape (batch, time).",
        WHERE,
    ),
    Mistake(
        "cumulative_log_prob",
        "Each token's entry holds the log-probabilities of all tokens up to it, added up.",
        "Every token keeps its own log-probability.",
        WHERE,
    ),
    Mistake(
        "logp_squared",
        "The log-probability is squared.",
        "The loss is linear in the log-probability; its slope is minus the advantage.",
        WHERE,
    ),
    Mistake(
        "advantages_squared",
        "The advantages are squared.",
        "Multiply with the advantage itself; its sign decides the direction.",
        WHERE,
    ),
    Mistake(
        "advantages_clipped",
        "The advantages are clipped to [-1, 1].",
        "No clipping is asked for here.",
        WHERE,
    ),
    Mistake(
        "first_advantage",
        "Only the first column of the advantages is used, for every token of the row.",
        "Let the (batch, 1) or (batch, time) advantages broadcast.",
        WHERE,
    ),
    Mistake(
        "advantages_centred",
        "The advantages are centred once more inside the loss.",
        "The baseline was subtracted by whoever computed the advantages; use them as they come.",
        "02, [BL-1]",
    ),
    Mistake(
        "advantages_whitened",
        "The advantages are standardised once more inside the loss.",
        "Use the advantages as they come.",
        "02, [BL-10]",
    ),
    Mistake(
        "advantage_size",
        "The sign of the advantage is lost: bad answers are pushed up like good ones.",
        "A negative advantage has to lower the probability.",
        WHERE,
    ),
    Mistake(
        "advantage_sign",
        "Only the sign of the advantage counts: a small advantage pushes as hard as a large one.",
        "Multiply with the advantage itself.",
        WHERE,
    ),
    Mistake(
        "negative_dropped",
        "Negative advantages are set to 0: bad answers are never pushed down.",
        "Both signs count.",
        WHERE,
    ),
    Mistake(
        "advantages_ignored",
        "The advantages have no effect: every token is pushed up alike.",
        "That is maximum likelihood on all samples; each needs its own weight.",
        WHERE,
    ),
    Mistake(
        "advantages_averaged",
        "Every token gets the mean of all advantages instead of its own.",
        "Let the (batch, 1) or (batch, time) advantages broadcast.",
        WHERE,
    ),
    Mistake(
        "sum_for_product",
        "The advantage is added to the log-probability instead of multiplied with it.",
        "The advantage is the weight Ψ of the score vector in [BL-1].",
        WHERE,
    ),
    Mistake(
        "difference_for_product",
        "The advantage is subtracted from the log-probability instead of multiplied with it.",
        "The advantage is the weight Ψ of the score vector in [BL-1].",
        WHERE,
    ),
    Mistake(
        "quotient_for_product",
        "The log-probability is divided by the advantage instead of multiplied with it.",
        "The advantage is the weight Ψ of the score vector in [BL-1].",
        WHERE,
    ),
)

QUESTION = Question(
    id="hw1/reinforce",
    title="The REINFORCE loss",
    points=3,
    signature="(logp, advantages)",
    lecture=WHERE,
    generate=generate,
    reference=reinforce,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "probabilities ratio logp_detached logp_squared",
        "mean sum mean_over_time sum_over_time sum_over_time_kept mean_over_batch",
        "advantages_centred advantages_whitened advantage_size advantage_sign negative_dropped "
        "advantages_ignored advantages_averaged advantages_squared advantages_clipped "
        "first_advantage",
        "mean_log_prob mean_log_prob_spread summed_log_prob cumulative_log_prob",
        "mean_log_prob summed_log_prob: sum_over_time_kept",
        "sum_for_product difference_for_product quotient_for_product",
        "ratio logp_squared: mean_log_prob mean_log_prob_spread summed_log_prob "
        "cumulative_log_prob",
        "divided_by_time: sum_over_time_kept",
        "divided_by_batch: mean_over_batch",
        "logp_detached: mean_log_prob mean_log_prob_spread summed_log_prob cumulative_log_prob",
        "divided_by_time summed_log_prob",  # together they are mean_log_prob
        "mean_log_prob: mean mean_over_time sum_over_time sum",
        "summed_log_prob: mean mean_over_time sum_over_time sum",
        "divided_by_time sum_over_time",  # together they are mean_over_time
        "sum_for_product difference_for_product quotient_for_product: advantages_centred "
        "advantages_whitened advantage_size advantage_sign negative_dropped advantages_ignored "
        "advantages_averaged advantages_squared advantages_clipped first_advantage",
        "advantages_not_detached advantages_ignored",
        "advantages_not_detached advantage_sign",
    ),
)
