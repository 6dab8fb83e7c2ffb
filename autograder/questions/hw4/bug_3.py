"""hw4/bug_3: groups whose members are no longer neighbours."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common


def centred(rewards, prompts):
    """(batch,) each reward minus the mean of its own prompt's rewards."""
    same = (prompts[:, None] == prompts).to(rewards.dtype)
    return rewards - same @ rewards / same.sum(1)


def generate(draw, final):
    sizes = [(4, 3), (2, 5), (5, 3)] if final else [(3, 4), (4, 2), (2, 6)]
    cases = []
    for groups, size in sizes:
        names = 701 * draw.uniform(groups).argsort() - 1000 + draw.integers(5, groups)
        prompts = names.repeat_interleave(size)
        rewards = draw.rewards(groups, size).reshape(-1)
        while True:  # a shuffle that really mixes: no block is one group
            order = draw.uniform(groups * size).argsort()
            blocks = prompts[order].view(groups, size)
            turns = prompts[order].view(size, groups).T
            mixed = [(x != x[:, :1]).any(1).all() for x in (blocks, turns)]
            if all(mixed):
                break
        if groups == 2:
            rewards = rewards.float()
        name = f"{groups} prompts"
        cases.append(Case(name=name, args=(rewards[order], prompts[order])))
    return cases


def buggy(rewards, prompts, *, mistakes=frozenset()):
    names = sorted(set(prompts.tolist()))
    groups, size = len(names), len(prompts) // len(names)
    order = torch.argsort(prompts, stable=True)
    if "planted" in mistakes:
        where = torch.arange(len(rewards)).view(groups, size)
    elif "interleaved" in mistakes:
        where = torch.arange(len(rewards)).view(size, groups).T
    elif "whole_batch" in mistakes:
        where = torch.arange(len(rewards)).view(1, -1)
    elif "sorted_by_reward" in mistakes:
        where = rewards.argsort().view(groups, size)
    elif "permuted_twice" in mistakes:
        where = order.argsort().view(groups, size)
    else:
        where = order.view(groups, size)
    members = rewards[where]  # (groups, size)
    total, width = members.sum(1, keepdim=True), members.shape[1]
    if "sum_subtracted" in mistakes:
        values = members - total
    elif "leave_one_out" in mistakes:
        values = members - (total - members) / (width - 1)
    elif "mean_only" in mistakes:
        values = (total / width).expand_as(members)
    elif "largest" in mistakes:
        values = members - members.amax(1, keepdim=True)
    elif "number_of_prompts" in mistakes:
        values = members - total / groups
    elif "one_less" in mistakes:
        values = members - total / (width - 1)
    else:
        values = members - total / width
    if "standardised" in mistakes or "standardised_population" in mistakes:
        ddof = 1 if "standardised" in mistakes else 0
        values = values / (members.std(1, keepdim=True, correction=ddof) + 1e-4)
    if "negated" in mistakes:
        values = -values
    if "left_sorted" in mistakes:
        return values.reshape(-1)
    if "order_again" in mistakes:
        return values.reshape(-1)[order]
    out = torch.empty_like(rewards)
    out[where.reshape(-1)] = values.reshape(-1)
    return out


WHERE = "the statement, [SIL-4]"
TEXTS = {
    "planted": (
        "The planted bug is still there: neighbours are taken for a group, although the batch is "
        "shuffled.",
        "Which answers belong together is what prompts says.",
    ),
    "interleaved": (
        "Answers that lie a fixed distance apart are taken for a group.",
        "Which answers belong together is what prompts says.",
    ),
    "whole_batch": (
        "The mean of the whole batch is subtracted: easy prompts are pushed up, hard ones down.",
        "Subtract the mean of the same prompt's answers.",
    ),
    "sorted_by_reward": (
        "The rewards themselves are sorted and cut into groups.",
        "Which answers belong together is what prompts says.",
    ),
    "permuted_twice": (
        "The sorting permutation is inverted where it should be applied.",
        "order = prompts.argsort() lists the rows of the first prompt, then of the second.",
    ),
    "left_sorted": (
        "The advantages come back in sorted order, not in that of the batch.",
        "Put each advantage back into the row its reward came from.",
    ),
    "order_again": (
        "Sorted by prompt, and put back with the same permutation; the way back is its inverse.",
        "`result[order] = sorted_values`, or index with order.argsort().",
    ),
    "sum_subtracted": (
        "The sum of the group is subtracted instead of its mean.",
        "Divide by the number of answers to that prompt.",
    ),
    "number_of_prompts": (
        "The sum of the group is divided by the number of prompts.",
        "Divide by the number of answers to that prompt.",
    ),
    "one_less": (
        "The sum of the group is divided by one less than its number of answers.",
        "The baseline is the plain mean of all answers to that prompt.",
    ),
    "leave_one_out": (
        "The mean of the others is subtracted: a leave-one-out baseline.",
        "Here an answer's own reward is part of the mean.",
    ),
    "mean_only": (
        "The mean itself is returned.",
        "Subtract it from the rewards.",
    ),
    "largest": (
        "The best reward of the group is subtracted.",
        "The baseline is the mean.",
    ),
    "standardised": (
        "The result is divided by the group's standard deviation as well.",
        "Only the mean is subtracted here.",
    ),
    "standardised_population": (
        "The result is divided by the group's standard deviation as well.",
        "Only the mean is subtracted here.",
    ),
    "negated": (
        "The sign is flipped.",
        "An answer better than its group's mean has a positive advantage.",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

GROUPS = "planted interleaved whole_batch sorted_by_reward permuted_twice"
VALUES = "sum_subtracted number_of_prompts one_less leave_one_out mean_only largest"
ORDERS = "left_sorted order_again"
QUESTION = Question(
    id="hw4/bug_3",
    title="Bug 3: hardly a group is ever silent",
    points=2,
    signature="(rewards, prompts)",
    lecture=WHERE,
    generate=generate,
    reference=centred,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        GROUPS,
        VALUES,
        ORDERS,
        f"{ORDERS}: planted interleaved whole_batch permuted_twice sorted_by_reward",
        "standardised standardised_population",
        "leave_one_out: standardised standardised_population",
        "whole_batch: number_of_prompts",
    ),
)
