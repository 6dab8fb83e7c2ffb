"""Our decoding loop against transformers' generate(), on the same work.

    python -m benchmarks.generation
    python -m benchmarks.generation --model runs/grpo_tiny    (a finished run's folder)

Same: model, prompts (padded alike), samples per prompt, token limit, temperature, whole
distribution (no top-k, no top-p), end token, float32, one thread, one process; the two take turns.
generate() gets each prompt once per sample, as it asks for, and only returns tokens; ours returns
their log-probabilities too. Cases: a training step's samples, and greedy answers to 256 prompts.

Before anything is timed it is checked that both do the same thing: greedy tokens are equal, and
log-probabilities recomputed from generate()'s samples and from ours agree in mean and length.
Prints medians of CPU seconds and their ratio.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import torch
from torch import Tensor

from llm_trainer.config import CONFIGS, load
from llm_trainer.models import Policy, load_policy
from llm_trainer.rollout import Prompts, Responses, pad_prompts, sample
from llm_trainer.scoring import score
from llm_trainer.task import load_task
from llm_trainer.train import starting_model
from policy_gradients.logprobs import response_mask

LIMIT = 12  # tokens per response


def ours(policy: Policy, prompts: Prompts, group: int, generator) -> Responses:
    return sample(
        policy,
        prompts,
        group=group,
        max_new_tokens=LIMIT,
        temperature=1.0,
        generator=generator,
    )


@torch.no_grad()
def theirs(policy: Policy, prompts: Prompts, group: int, greedy: bool) -> Tensor:
    """(P·G, time) tokens."""
    how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0}
    whole = policy.model.generate(
        input_ids=prompts.tokens.repeat_interleave(group, 0),
        attention_mask=prompts.attention.repeat_interleave(group, 0),
        max_new_tokens=LIMIT,
        eos_token_id=policy.end_id,
        pad_token_id=policy.pad_id,
        **how,
    )
    return whole[:, prompts.tokens.shape[1] :]


def recomputed(policy: Policy, prompts: Prompts, tokens: Tensor, group: int) -> tuple[Tensor, ...]:
    """(responses,) log-probability of each, and its length; both from teacher forcing."""
    mask = response_mask(tokens, eos_id=policy.end_id)
    with torch.no_grad():
        logp = score(
            policy, prompts, tokens, mask, group=group, temperature=1.0, shared=True, chunk=1024
        ).logp
    return (logp * mask).sum(1), mask.sum(1).float()


def check_same_work(policy: Policy, prompts: Prompts, many: Prompts, group: int) -> str:
    """Equal greedy tokens, and samples of one distribution; what was found, as a sentence."""
    mine = ours(policy, many, 1, None).tokens
    assert torch.equal(mine, theirs(policy, many, 1, greedy=True)[:, : mine.shape[1]])
    generator, found = torch.Generator().manual_seed(0), {"ours": [], "generate()": []}
    torch.manual_seed(0)
    for _ in range(10):
        drawn = ours(policy, prompts, group, generator)
        found["ours"].append(recomputed(policy, prompts, drawn.tokens, group))
        assert (found["ours"][-1][0] - drawn.logp.sum(1)).abs().max() < 1e-3
        tokens = theirs(policy, prompts, group, greedy=False)
        found["generate()"].append(recomputed(policy, prompts, tokens, group))
    means, errors = {}, []
    for name, batches in found.items():
        logp, length = (torch.cat(column) for column in zip(*batches, strict=True))
        means[name] = logp.mean().item(), length.mean().item()
        errors.append([x.std() / len(x) ** 0.5 for x in (logp, length)])
    error = [sum(e[i] ** 2 for e in errors) ** 0.5 for i in range(2)]
    for i in range(2):
        assert abs(means["ours"][i] - means["generate()"][i]) < 4 * error[i]
    said = "; ".join(f"{k}: {a:.3f} nats, {b:.2f} tokens" for k, (a, b) in means.items())
    count = 10 * len(prompts.tokens) * group
    return (
        f"Greedy tokens equal. Mean log-probability and length of {count:,} responses each, "
        f"recomputed: {said} (standard error of a difference {error[0]:.3f} and {error[1]:.3f})."
    )


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="tiny (its warm start), or a folder")
    parser.add_argument("--rounds", type=int, default=30, help="measured calls of each")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)

    config = load(CONFIGS / "grpo_tiny.yaml", [f"model={options.model}", "device=cpu"])
    policy, task = load_policy(config, starting_model(config)), load_task(config.task)
    entries = [task.entry(word) for word in task.stream(config.seed).take(256)]
    many = pad_prompts([policy.prompt(task.question(entry)) for entry in entries], policy)
    few = many[torch.arange(options.prompts)]
    same = check_same_work(policy, few, many, options.group)

    generator = torch.Generator().manual_seed(1)
    apart = Prompts(
        few.tokens.repeat_interleave(options.group, 0),
        few.attention.repeat_interleave(options.group, 0),
    )
    cases = {
        f"{options.prompts} prompts × {options.group} samples": {
            "generate()": lambda: theirs(policy, few, options.group, greedy=False),
            "ours": lambda: ours(policy, few, options.group, generator),
            "ours, every sample a prompt of its own": lambda: ours(policy, apart, 1, generator),
        },
        "256 prompts, greedy": {
            "generate()": lambda: theirs(policy, many, 1, greedy=True),
            "ours": lambda: ours(policy, many, 1, None),
        },
    }
    taken = {(case, name): [] for case, runs in cases.items() for name in runs}
    for round_ in range(options.rounds + 3):
        for (case, name), seconds in taken.items():
            spent = cpu_seconds(cases[case][name])
            if round_ >= 3:  # the first ones warm up
                seconds.append(spent)

    print(f"\n`{shlex.join(['python', '-m', 'benchmarks.generation', *sys.argv[1:]])}`\n")
    print(
        f"{same}\n\nAt most {LIMIT} tokens; median of {options.rounds} calls, taking turns; "
        f"{platform.machine()}, {os.cpu_count()} CPUs, 1 thread; torch {torch.__version__}, "
        f"transformers {version('transformers')}, Python {platform.python_version()}\n"
    )
    print("| work | who | CPU ms | times faster |")
    print("|---|---|---|---|")
    for (case, name), seconds in taken.items():
        middle, base = statistics.median(seconds), statistics.median(taken[case, "generate()"])
        print(f"| {case} | {name} | {middle * 1e3:.1f} | {base / middle:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
