"""hw5/hack_proof_reward: partial credit for sorting, with one maximum and nothing to farm."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding


def hack_proof_reward(prompts, responses):
    """Numbers matched as a multiset; when all are, neighbours in order on top. 0 .. 2L - 1.

    prompts, responses : (..., L) integers; the leading axes broadcast.
    returns : (...) torch's default floating dtype. [PREF-9]
    """
    length = prompts.shape[-1]
    same = (prompts[..., :, None] == responses[..., None, :]).sum(-1)  # in the response
    earlier = torch.ones(length, length, dtype=torch.bool, device=prompts.device).tril()
    rank = ((prompts[..., :, None] == prompts[..., None, :]) & earlier).sum(-1)  # 1st, 2nd, …
    matched = (rank <= same).sum(-1)
    in_order = (responses[..., 1:] >= responses[..., :-1]).sum(-1)
    points = matched + torch.where(matched == length, in_order, 0)
    return points.to(torch.get_default_dtype())


def generate(draw, final):
    """Every prompt meets its own answer and the ways of missing it."""
    first, second, third = (
        [(5, 4, 2), (3, 6, 450), (2, 3, 3)] if final else [(4, 3, 2), (2, 5, 300), (3, 4, 3)]
    )
    cases = []
    for (prompts, length, ids), shape in (
        (first, "prompts (P, 1, L), responses (P, G, L)"),
        (second, "prompts (P, L), responses (P, L)"),
    ):
        asked = _prompts(draw, prompts, length, ids)
        given = torch.stack([_responses(draw, prompt) for prompt in asked])
        if shape.endswith("(P, L)"):
            asked = asked.repeat_interleave(given.shape[1], 0)
            given = given.flatten(0, 1)
        else:
            asked = asked[:, None]
        cases.append(Case(name=shape, args=(asked, given)))
    asked = _prompts(draw, third[0], third[1], third[2])
    given = torch.cat([_responses(draw, prompt) for prompt in asked])
    cases.append(Case(name="prompts (P, 1, L), responses (n, L)", args=(asked[:, None], given)))
    cases.append(Case(name="one prompt (L,), responses (n, L)", args=(asked[0], given)))
    return cases


def _prompts(draw, count, length, ids):
    """Each with at least one number twice, one number once, and not in order."""
    rows = []
    for _ in range(count):
        low = draw.integers(ids, 1)
        high = low + 1 + draw.integers(ids, 1)
        row = torch.cat([high, low, low, low + draw.integers(ids, max(length - 3, 0))])
        row = row[draw.uniform(length).argsort()]
        rows.append(row.flip(0) if bool((row[1:] >= row[:-1]).all()) else row)
    return torch.stack(rows)


def _responses(draw, prompt):
    answer = prompt.sort().values
    length = len(prompt)
    lost = answer.clone()
    lost[-1] = answer[0]  # a number of the prompt too often, another one missing
    recounted = answer.clone()  # the same numbers, one of them too often
    recounted[1] = answer[-1]
    foreign = answer.clone()
    foreign[0] = answer[-1] + 1 + int(draw.integers(3, 1))
    rows = [
        answer,
        prompt,
        answer.flip(0),
        prompt[draw.uniform(length).argsort()],
        lost,
        recounted.sort().values,
        foreign.sort().values,
        foreign,
        answer[:1].expand(length),
        answer[-1:].expand(length),
        answer[-1] + 1 + torch.arange(length),  # in order, and nothing of the prompt
        prompt[draw.integers(length, length)],
    ]
    return torch.stack(rows)


def buggy(prompts, responses, *, mistakes=frozenset()):
    length = prompts.shape[-1]
    ids = torch.arange(int(max(prompts.max(), responses.max())) + 1)
    if "largest_number_missed" in mistakes:
        ids = ids[: int(prompts.max())]
    elif "three_numbers" in mistakes:
        ids = ids[:3]
    elif "ten_numbers" in mistakes:
        ids = ids[:10]
    asked = (prompts[..., None] == ids).sum(-2)  # (..., ids)
    given = (responses[..., None] == ids).sum(-2)
    if "set" in mistakes:
        matched = ((asked > 0) & (given > 0)).sum(-1)
    elif "prompt_in_response" in mistakes:
        matched = (asked * (given > 0)).sum(-1)
    elif "response_in_prompt" in mistakes:
        matched = (given * (asked > 0)).sum(-1)
    elif "union" in mistakes:
        matched = torch.maximum(asked, given).sum(-1)
    elif "product" in mistakes:
        matched = (asked * given).sum(-1)
    elif "sorted_places" in mistakes:
        matched = (prompts.sort(-1).values == responses.sort(-1).values).sum(-1)
    elif "all_complete" in mistakes:
        matched = torch.minimum(asked, given).sum(-1) * 0 + length
    elif "equal_counts" in mistakes:
        matched = ((asked == given) & (asked > 0)).sum(-1)
    elif "places_of_prompt" in mistakes:
        matched = (prompts == responses).sum(-1)
    elif "places" in mistakes:
        matched = (prompts.sort(-1).values == responses).sum(-1)
    else:
        matched = torch.minimum(asked, given).sum(-1)
    complete = matched == length
    if "gate_by_set" in mistakes:
        complete = ((asked > 0) == (given > 0)).all(-1)

    ordered = prompts.expand(torch.broadcast_shapes(prompts.shape, responses.shape))
    ordered = ordered if "order_of_prompt" in mistakes else responses
    left, right = ordered[..., :-1], ordered[..., 1:]
    if "descending" in mistakes:
        pairs = left >= right
    elif "strict" in mistakes:
        pairs = left < right
    elif "cyclic" in mistakes:
        pairs = ordered <= ordered.roll(-1, -1)
    else:
        pairs = left <= right
    if "first_pair_missed" in mistakes:
        pairs = pairs[..., 1:]
    elif "last_pair_missed" in mistakes:
        pairs = pairs[..., :-1]
    in_order = pairs.sum(-1).to(torch.get_default_dtype())
    if "order_averaged" in mistakes:
        in_order = in_order / pairs.shape[-1]
    elif "order_all_or_nothing" in mistakes:
        in_order = in_order * pairs.all(-1)
    elif "order_one_point" in mistakes:
        in_order = pairs.all(-1).to(torch.get_default_dtype())
    elif "order_of_batch" in mistakes:
        in_order = pairs.sum().to(torch.get_default_dtype())
    if "order_missing" in mistakes:
        in_order = 0 * in_order
    bonus = complete * in_order
    if "gate_missing" in mistakes:
        bonus = in_order
    elif "gate_soft" in mistakes:
        bonus = in_order * matched / length
    elif "gate_any" in mistakes:
        bonus = (matched > 0) * in_order
    if "partial_credit_lost" in mistakes:
        out = complete * (matched + bonus)
    elif "penalty" in mistakes:
        out = matched - (length - matched) + bonus
    elif "content_missing" in mistakes:
        out = bonus
    elif "content_averaged" in mistakes:
        out = matched / length + bonus
    else:
        out = matched + bonus
    if "exact_only" in mistakes:
        out = (prompts.sort(-1).values == responses).all(-1)
    if "scaled" in mistakes:
        out = out / (2 * length - 1)
    if "sign" in mistakes:
        out = -1.0 * out
    return out.to(torch.get_default_dtype())


WHERE = "the statement, [PREF-9]"
MULTISET = "Each copy in the response pays once, and only as often as the prompt holds the number."
GATE = "Order pays nothing until all L numbers are matched."
MISTAKES = (
    Mistake(
        "set",
        "Duplicates are lost: different numbers are counted, as in a set, so that a prompt with a "
        "number twice can never be matched in full.",
        MULTISET,
        WHERE,
    ),
    Mistake(
        "prompt_in_response",
        "Every entry of the prompt counts that occurs anywhere in the response: one copy in the "
        "response pays for all copies in the prompt. This is the loophole.",
        MULTISET,
        WHERE,
    ),
    Mistake(
        "response_in_prompt",
        "Every entry of the response counts that occurs anywhere in the prompt: repeating one "
        "right number pays each time.",
        MULTISET,
        WHERE,
    ),
    Mistake(
        "union",
        "The larger of the two counts is summed instead of the smaller.",
        "What prompt and response have in common is the smaller count.",
        WHERE,
    ),
    Mistake(
        "product",
        "The counts are multiplied: all pairs of equal entries are counted.",
        "What prompt and response have in common is the smaller count.",
        WHERE,
    ),
    Mistake(
        "equal_counts",
        "Numbers are counted whose counts agree, one point each, instead of the copies in common.",
        "What prompt and response have in common is the smaller count, summed over the numbers.",
        WHERE,
    ),
    Mistake(
        "places",
        "Positions that agree with the sorted prompt are counted instead of copies in common.",
        "The content does not ask where a number stands; that is what the order is for.",
        WHERE,
    ),
    Mistake(
        "places_of_prompt",
        "Positions that agree with the unsorted prompt are counted instead of copies in common.",
        "The content does not ask where a number stands.",
        WHERE,
    ),
    Mistake(
        "sorted_places",
        "Prompt and response are both sorted and compared place by place: one wrong number shifts "
        "all that stand behind it.",
        "Count for each number how often it occurs in both, and sum the smaller counts.",
        WHERE,
    ),
    Mistake(
        "all_complete",
        "Every response counts as complete, whatever it holds: the counting was summed over the "
        "numbers instead of over the positions.",
        "(prompts[..., None] == numbers) has the axes (..., positions, numbers): sum over dim=-2.",
        WHERE,
    ),
    Mistake(
        "three_numbers",
        "Only the numbers 0, 1 and 2 are counted.",
        "Read off prompts and responses how far the numbers go.",
        WHERE,
    ),
    Mistake(
        "ten_numbers",
        "Only the numbers 0 to 9 are counted.",
        "Read off prompts and responses how far the numbers go.",
        WHERE,
    ),
    Mistake(
        "largest_number_missed",
        "The largest number is left out when counting: the range ends one too early.",
        "Count over max + 1 numbers, 0 included.",
        WHERE,
    ),
    Mistake(
        "gate_missing",
        "Order is paid whatever the content: a constant response earns all points for order "
        "without reading the prompt.",
        GATE,
        WHERE,
    ),
    Mistake(
        "gate_soft",
        "Order is paid in proportion to the content instead of only when the content is complete.",
        GATE,
        WHERE,
    ),
    Mistake(
        "gate_any",
        "Order is paid as soon as one number is matched.",
        GATE,
        WHERE,
    ),
    Mistake(
        "gate_by_set",
        "Whether the content is complete is decided by the sets of numbers: a response with the "
        "wrong number of copies counts as complete.",
        "Complete means that all L entries are matched.",
        WHERE,
    ),
    Mistake(
        "partial_credit_lost",
        "Responses with incomplete content earn nothing: there is no partial credit to learn from.",
        "The matched numbers pay in any case; only the order is conditional.",
        WHERE,
    ),
    Mistake(
        "exact_only",
        "Only the exact answer earns anything, one point: there is no partial credit.",
        "Count the matched numbers, then the pairs in order.",
        WHERE,
    ),
    Mistake(
        "strict",
        "Equal neighbours do not count as in order: a prompt with duplicates cannot earn the "
        "maximum.",
        "In order means less than or equal.",
        WHERE,
    ),
    Mistake(
        "descending",
        "Descending neighbours are counted.",
        "In order means that the left one is at most the right one.",
        WHERE,
    ),
    Mistake(
        "cyclic",
        "The last entry is also compared with the first, as torch.roll does.",
        "L entries have L - 1 neighbouring pairs.",
        WHERE,
    ),
    Mistake(
        "first_pair_missed",
        "The first pair of neighbours is not counted.",
        "Compare responses[..., :-1] with responses[..., 1:].",
        WHERE,
    ),
    Mistake(
        "last_pair_missed",
        "The last pair of neighbours is not counted.",
        "Compare responses[..., :-1] with responses[..., 1:].",
        WHERE,
    ),
    Mistake(
        "order_of_prompt",
        "The order of the prompt is judged instead of the response's.",
        "The response is what the policy can change.",
        WHERE,
    ),
    Mistake(
        "order_averaged",
        "The pairs in order are averaged instead of counted.",
        "One point for each pair.",
        WHERE,
    ),
    Mistake(
        "order_all_or_nothing",
        "The order pays only when all pairs are in order.",
        "One point for each pair in order.",
        WHERE,
    ),
    Mistake(
        "order_one_point",
        "The order pays one point when all pairs are in order, instead of one per pair.",
        "One point for each pair in order.",
        WHERE,
    ),
    Mistake(
        "order_of_batch",
        "The pairs in order are summed over the whole batch.",
        "Sum over the last axis only.",
        WHERE,
    ),
    Mistake(
        "order_missing",
        "The order earns nothing: every permutation of the prompt is maximal.",
        "Add one point for each pair in order when the content is complete.",
        WHERE,
    ),
    Mistake(
        "content_missing",
        "The matched numbers earn nothing.",
        "One point for each matched entry, in any case.",
        WHERE,
    ),
    Mistake(
        "content_averaged",
        "The matched numbers are averaged instead of counted.",
        "One point for each matched entry.",
        WHERE,
    ),
    Mistake(
        "penalty",
        "Entries that are not matched are subtracted.",
        "No point is taken away.",
        WHERE,
    ),
    Mistake(
        "scaled",
        "The points are divided by the maximum, 2L - 1.",
        "Return the points as they are.",
        WHERE,
    ),
    Mistake("sign", "The sign is flipped.", "A reward is maximised.", WHERE),
)

CONTENT = (
    "set prompt_in_response response_in_prompt union product equal_counts places sorted_places "
    "all_complete"
)
NUMBERS = "largest_number_missed three_numbers ten_numbers"
GATES = "gate_missing gate_soft gate_any gate_by_set"
PAIRS = "strict descending cyclic first_pair_missed last_pair_missed"
SUMS = "order_averaged order_all_or_nothing order_one_point order_of_batch"
ALL = (
    f"{CONTENT} places_of_prompt {GATES} {PAIRS} {SUMS} order_of_prompt order_missing "
    f"content_missing content_averaged penalty partial_credit_lost {NUMBERS}"
)
QUESTION = Question(
    id="hw5/hack_proof_reward",
    title="A reward that cannot be hacked",
    points=4,
    signature="(prompts, responses)",
    lecture=WHERE,
    generate=generate,
    reference=hack_proof_reward,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        f"{CONTENT} places_of_prompt",
        NUMBERS,
        f"places places_of_prompt sorted_places all_complete: {NUMBERS}",
        f"all_complete: {GATES} partial_credit_lost penalty",
        GATES,
        PAIRS,
        SUMS,
        f"order_missing: {GATES} {PAIRS} {SUMS} order_of_prompt",
        "partial_credit_lost penalty content_missing content_averaged",
        "content_missing order_missing",
        f"exact_only: {ALL}",
        # what the second mistake changes is never reached, or is no longer told apart
        f"set equal_counts: {PAIRS} {SUMS} order_of_prompt order_missing partial_credit_lost "
        "content_missing",
        f"places: {PAIRS} {SUMS} content_missing",
        f"places_of_prompt: {SUMS} first_pair_missed order_of_prompt order_missing",
        f"{GATES} union: partial_credit_lost",
        "union: gate_missing gate_any content_missing",
        "strict cyclic order_of_prompt content_missing: order_all_or_nothing order_one_point",
    ),
)
