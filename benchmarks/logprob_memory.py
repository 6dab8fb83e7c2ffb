"""What log-probabilities at Qwen's vocabulary cost in memory and time, against the naive form.

    python -m benchmarks.logprob_memory

4 responses of 512 tokens, a vocabulary of 151,936, forward and backward through a random Qwen3 of
2 layers and width 128 with tied embeddings, float32, one thread. Naive: all logits, log_softmax,
gather, as `token_log_probs` of the model's logits. Ours: `llm_trainer.scoring.score`, with the
trainer's default chunk of 1,024 tokens and with a smaller one.

Each measurement is a process of its own, and the forms take turns. One small pass warms up; then
the highest resident memory of one pass above what the process held before it, and its time. A
second pass under torch's profiler adds up what torch allocates and frees. Both include the
gradients of the weights (80 MB, nearly all of it the head), which both forms need.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from llm_trainer.config import Config
from llm_trainer.models import Policy
from llm_trainer.rollout import Prompts
from llm_trainer.scoring import score
from policy_gradients.logprobs import token_log_probs

BATCH, TIME, PROMPT, VOCABULARY, WIDTH = 4, 512, 16, 151_936, 128
DEFAULT = Config().logprob_chunk
FORMS = {"naive": 0, f"ours, chunk {DEFAULT}": DEFAULT, "ours, chunk 256": 256}


def build() -> Policy:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=True,
        )
    )
    return Policy(model.eval(), None, 0, 0, torch.device("cpu"), torch.float32)


def one_pass(policy: Policy, chunk: int, length: int = TIME) -> torch.Tensor:
    """Forward and backward of the mean log-probability; chunk 0 is the naive form."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (BATCH, PROMPT + length), generator=generator)
    attention = torch.ones_like(tokens)
    policy.model.zero_grad()
    if chunk:
        logp = score(
            policy,
            Prompts(tokens[:, :PROMPT], attention[:, :PROMPT]),
            tokens[:, PROMPT:],
            attention[:, PROMPT:].bool(),
            group=1,
            temperature=1.0,
            shared=False,
            chunk=chunk,
        ).logp
    else:
        positions = attention.cumsum(1) - 1
        logits = policy.forward(
            tokens[:, :-1], attention[:, :-1], positions[:, :-1], keep=length
        )  # (batch, time, vocabulary)
        logp = token_log_probs(logits, tokens[:, PROMPT:])
        del logits
    logp.mean().backward()
    return logp.detach()


def status(name: str) -> int:
    """A line of this process's status in bytes: VmRSS is resident now, VmHWM was at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this benchmark reads {name} from /proc/self/status, and it is not there")


def allocated(work) -> int:
    """The most bytes that torch held at one time beyond those at the start, by its profiler."""
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True) as profile:
        work()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def child(chunk: int) -> dict[str, float]:
    torch.set_num_threads(1)
    policy = build()
    one_pass(policy, chunk, length=4)
    policy.model.zero_grad()
    before = status("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    logp = one_pass(policy, chunk)
    numbers = {
        "seconds": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "resident": status("VmHWM") - before,
        "logp": logp.double().mean().item(),
        "gradient": torch.cat([p.grad.flatten() for p in policy.model.parameters()]).norm().item(),
    }
    policy.model.zero_grad()
    return numbers | {"allocated": allocated(lambda: one_pass(policy, chunk))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(options.child)))
        return 0

    runs = {name: [] for name in FORMS}
    for _ in range(options.rounds):
        for name, chunk in FORMS.items():
            command = [sys.executable, "-m", "benchmarks.logprob_memory", "--child", str(chunk)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))

    def median(name: str, key: str) -> float:
        return statistics.median(run[key] for run in runs[name])

    print(
        f"Median of {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} CPUs, 1 thread;"
        f" torch {torch.__version__}, transformers {version('transformers')}, "
        f"Python {platform.python_version()}\n"
    )
    print("| | peak resident MB | allocated by torch, MB | seconds | CPU s | memory | CPU time |")
    print("|---|---|---|---|---|---|---|")
    for name in FORMS:
        share = {key: median(name, key) / median("naive", key) for key in ("resident", "cpu")}
        print(
            f"| {name} | {median(name, 'resident') / 1e6:,.0f} "
            f"| {median(name, 'allocated') / 1e6:,.0f} | {median(name, 'seconds'):.1f} "
            f"| {median(name, 'cpu'):.1f} | {share['resident']:.2f} | {share['cpu']:.2f} |"
        )
    for name, key in [(n, k) for n in FORMS for k in ("logp", "gradient")]:
        off = abs(median(name, key) / median("naive", key) - 1)
        assert off <= 1e-5, f"{name}: its {key} is off by {off:.2g}, so it does other work"
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
