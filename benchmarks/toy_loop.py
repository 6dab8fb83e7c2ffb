"""Updates per second of the toy training loop, against loops that score samples one by one.

    python -m benchmarks.toy_loop            # about half a minute on one core

Three loops do the same REINFORCE updates (6 prompts x 64 responses, one update per batch, Adam),
on the same samples, and must end at the same parameters:

    vectorised           `toy_models.train`: tensor expressions for all samples at once, and its
                         records of entropy, KL, clipping and contrast on top
    rewards one by one   the same, but the reward is a Python loop over prompts and responses, the
                         way a first notebook is usually written
    samples one by one   reward and log-probability of each sample in that Python loop, one
                         backward pass for all; nothing is recorded

CPU seconds of this process (`time.process_time`) on one thread; the loops take turns and the best
of five counts, because other work on the machine only ever adds time. J is not evaluated exactly.

Measured on two cores that other work kept busy (load 8):

                          updates/s  ms an update  times slower
    vectorised                513.0          1.95           1.0
    rewards one by one         78.7         12.70           6.5
    samples one by one          6.3        158.01          81.1
"""

import argparse
import itertools
import os
import platform
import time

import torch

from toy_models.policies import PositionalPolicy
from toy_models.sorting import SortingTask, inclusion_ordering_reward
from toy_models.train import train

TASK = SortingTask(3, 3)
PROMPTS = TASK.distinct_prompts()
LEARNING_RATE = 0.02


def score_one(prompt: torch.Tensor, response: torch.Tensor) -> int:
    """The reward of one response, read as its definition."""
    occurs = sum(1 for number in prompt if number in response)
    in_order = sum(1 for a, b in itertools.pairwise(response) if a <= b)
    return occurs + in_order


def rewards_one_by_one(prompts: torch.Tensor, responses: torch.Tensor) -> torch.Tensor:
    """(prompts, 1, L), (prompts, group, L) -> (prompts, group)."""
    rewards = torch.empty(responses.shape[:2])
    for i in range(responses.shape[0]):
        for j in range(responses.shape[1]):
            rewards[i, j] = score_one(prompts[i, 0], responses[i, j])
    return rewards


def vectorised(policy: PositionalPolicy, group: int, steps: int, reward=inclusion_ordering_reward):
    train(
        policy,
        PROMPTS,
        reward,
        "reinforce",
        steps=steps,
        group=group,
        learning_rate=LEARNING_RATE,
        exact=False,
        seed=0,
    )


def only_rewards_one_by_one(policy: PositionalPolicy, group: int, steps: int):
    vectorised(policy, group, steps, rewards_one_by_one)


def samples_one_by_one(policy: PositionalPolicy, group: int, steps: int):
    optimiser = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        responses = policy.sample(PROMPTS, group, seed=generator)
        rewards, log_probs = [], []
        for index, response in enumerate(responses):
            prompt = PROMPTS[index // group]
            rewards.append(score_one(prompt, response))
            log_probs.append(policy.log_probs(prompt[None], response[None]).sum())
        mean = sum(rewards) / len(rewards)
        pairs = zip(rewards, log_probs, strict=True)
        loss = -sum((reward - mean) * logp for reward, logp in pairs) / len(rewards)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


LOOPS = {
    "vectorised": vectorised,
    "rewards one by one": only_rewards_one_by_one,
    "samples one by one": samples_one_by_one,
}


def measure(loop, group: int, steps: int) -> tuple[float, torch.Tensor]:
    """(CPU seconds per update, the parameters at the end)."""
    policy = PositionalPolicy(3, 3, seed=0)
    start = time.process_time()
    loop(policy, group, steps)
    seconds = (time.process_time() - start) / steps
    return seconds, torch.cat([p.detach().flatten() for p in policy.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", type=int, default=64, help="responses per prompt")
    parser.add_argument("--steps", type=int, default=10, help="updates per run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; the best counts")
    options = parser.parse_args()
    torch.set_num_threads(1)

    for loop in LOOPS.values():  # warm-up
        measure(loop, options.group, 2)
    seconds = {name: [] for name in LOOPS}
    ends = {}
    for _ in range(options.repeats):
        for name, loop in LOOPS.items():
            taken, ends[name] = measure(loop, options.group, options.steps)
            seconds[name].append(taken)
    for name, end in ends.items():
        if not torch.allclose(end, ends["vectorised"], atol=1e-3):
            raise SystemExit(f"{name}: another result than the vectorised loop; no comparison")

    print(
        f"python -m benchmarks.toy_loop --group {options.group} --steps {options.steps} "
        f"--repeats {options.repeats}\n"
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, one "
        f"thread, load {os.getloadavg()[0]:.0f}; 6 prompts x {options.group} responses\n"
    )
    print(f"{'':20}{'updates/s':>11}{'ms an update':>14}{'times slower':>14}")
    fast = min(seconds["vectorised"])
    for name, taken in seconds.items():
        best = min(taken)
        print(f"{name:20}{1 / best:11.1f}{1e3 * best:14.2f}{best / fast:14.1f}")


if __name__ == "__main__":
    main()
