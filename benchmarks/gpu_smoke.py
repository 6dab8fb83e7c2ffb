"""A few GRPO steps on random Qwen3 models of full size: do they run, how fast, in how much memory?

    python -m benchmarks.gpu_smoke                        (Qwen3-0.6B and 1.7B; wants 80 GB for all)
    python -m benchmarks.gpu_smoke --presets grpo_qwen3_0.6b_8gb
    python -m benchmarks.gpu_smoke --device cpu --layers 2 --width 64 --vocabulary 1000 --steps 2

Nothing is downloaded: the networks are built from the numbers of their configuration with random
weights and the real vocabulary of 151,936, the tokenizer is the tiny model's. Everything else is
the trainer itself: `collect`, `learn`, the invariants, the preset's settings.

A random network writes random tokens and never ends, so each response has the full length: the most
work and memory that the settings allow. None would ever earn the task's reward, all groups would be
silent and nothing would be trained; here a response earns the share of its token ids that are even,
which differs within every group.

Per preset: seconds, tokens per second and peak memory of both phases beside `estimate`, and the
same work by TRL where that is installed (`pip install trl==1.16.0 datasets`). The first step of
each is left out. A GPU's memory is what torch allocated (its own context comes on top); a CPU's is
not measured.
"""

import argparse
import gc
import platform
import statistics
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llm_trainer import memory
from llm_trainer.config import CONFIGS, Config, load
from llm_trainer.memory import GB, KNOWN
from llm_trainer.models import Policy, pick_device
from llm_trainer.rollout import OwnSampler
from llm_trainer.step import Learner
from llm_trainer.task import Rewards, Spelling
from llm_trainer.tiny import build_tokenizer
from llm_trainer.train import collect, learn

PRESETS = ["grpo_qwen3_0.6b_8gb", "grpo_qwen3_0.6b_16gb", "grpo_qwen3_1.7b_80gb"]


class IdPolicy(Policy):
    """Says its responses in token ids: most of them are no token of the small tokenizer."""

    def text(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


def even_share(ids: list[int]) -> float:
    """The reward: differs between random responses, whatever they say."""
    return sum(i % 2 == 0 for i in ids) / max(1, len(ids))


class EvenIds(Spelling):
    """The words of spell_backward, scored by `even_share`."""

    def score(self, response: str, entry: dict, **given) -> Rewards:
        share = even_share([int(i) for i in response.split()])
        return Rewards(correctness=share, format=0.0, exact=0.0)


def sizes_of(config: Config, options: argparse.Namespace) -> dict:
    """The numbers of the preset's model, made smaller where the options say so."""
    sizes = dict(KNOWN[config.model])
    if options.layers:
        sizes["num_hidden_layers"] = options.layers
    if options.vocabulary:
        sizes["vocab_size"] = options.vocabulary
    if options.width:
        small = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        sizes |= {"hidden_size": options.width, "intermediate_size": 3 * options.width, **small}
    return sizes


def random_model(config: Config, sizes: dict, device: torch.device):
    weights = torch.bfloat16 if config.lora_rank and config.dtype == "bfloat16" else torch.float32
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes), dtype=weights)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    return model.eval()


def random_policy(config: Config, sizes: dict, device: torch.device) -> Policy:
    """As `load_policy` makes it, without files."""
    model, tokenizer = random_model(config, sizes, device), build_tokenizer()
    adapters = None
    if config.lora_rank:
        from llm_trainer.lora import add_adapters

        adapters = add_adapters(model, rank=config.lora_rank, alpha=config.lora_alpha, seed=0)
    arithmetic = getattr(torch, config.dtype)
    ids = tokenizer.eos_token_id, tokenizer.pad_token_id
    return IdPolicy(model, tokenizer, *ids, device, arithmetic, adapters=adapters)


class Meter:
    """Seconds, tokens and peak bytes of one phase, once per step."""

    def __init__(self, device: torch.device):
        self.device, self.seconds, self.tokens, self.peak = device, [], [], 0

    def run(self, work, tokens):
        """`work()`, measured; `tokens` counts what it returns."""
        gpu = self.device.type == "cuda"
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        started = time.perf_counter()
        result = work()
        if gpu:
            torch.cuda.synchronize()
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())
        self.seconds.append(time.perf_counter() - started)
        self.tokens.append(tokens(result))
        return result

    def row(self, name: str, estimated: float) -> str:
        seconds, tokens = self.seconds[1:], self.tokens[1:]
        peak = f"{self.peak / GB:.2f}" if self.peak else "not measured"
        rate = sum(tokens) / sum(seconds)
        return (
            f"| {name} | {statistics.median(seconds):.2f} | {rate:,.0f} | {peak} | "
            f"{estimated / GB:.2f} |"
        )


def ours(config: Config, sizes: dict, device: torch.device, steps: int) -> tuple[list[str], float]:
    """(rows of the table, median seconds of a step)."""
    policy = random_policy(config, sizes, device)
    task, learner = EvenIds(config.task), Learner(policy, config)
    stream, sampler = task.stream(config.seed), OwnSampler(policy)
    generator = torch.Generator(device).manual_seed(config.seed)
    sampling, training = Meter(device), Meter(device)
    for _ in range(steps + 1):
        batch, numbers, _ = sampling.run(
            lambda: collect(sampler, task, stream, learner, generator),
            lambda result: result[1]["tokens"],
        )
        count = numbers["tokens"]
        metrics = training.run(
            lambda batch=batch: learn(learner, batch), lambda _, count=count: count
        )
        if metrics is None or not metrics["grad_norm"] > 0:
            raise SystemExit("nothing was trained: no group had contrast")
    prompt = batch.prompts.tokens.shape[1]
    parts = memory.estimate(
        config, shape=memory.shape_from(AutoConfig.for_model(**sizes)), prompt=prompt
    )
    always = memory.total(parts.always) - memory.CONTEXT
    rows = [
        sampling.row("sampling", always + memory.total(parts.sampling)),
        training.row("training", always + memory.total(parts.training)),
    ]
    both = [a + b for a, b in zip(sampling.seconds, training.seconds, strict=True)]
    return rows, statistics.median(both[1:])


def trl_seconds(config: Config, sizes: dict, device: torch.device, steps: int) -> float:
    """Median seconds of a step of TRL's GRPOTrainer on the same prompts, lengths and batches."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer, task = build_tokenizer(), EvenIds(config.task)
    words = task.stream(config.seed).take(config.prompts * (steps + 1))
    asked = [[{"role": "user", "content": task.question(task.entry(word))}] for word in words]
    prompts = [
        tokenizer.apply_chat_template(a, add_generation_prompt=True, tokenize=False) for a in asked
    ]
    seconds = []

    class Timer(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.started = time.perf_counter()

        def on_step_end(self, *_, **__):
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - self.started)

    def reward(prompts, completions, completion_ids, **_):
        return [even_share(ids) for ids in completion_ids]

    adapters = None
    if config.lora_rank:
        from peft import LoraConfig

        adapters = LoraConfig(
            r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear"
        )
    with tempfile.TemporaryDirectory() as folder:
        GRPOTrainer(
            model=random_model(config, sizes, device),
            processing_class=tokenizer,
            reward_funcs=reward,
            peft_config=adapters,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[Timer()],
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=config.micro_batch * config.group,
                gradient_accumulation_steps=config.prompts // config.micro_batch,
                num_generations=config.group,
                max_completion_length=config.max_new_tokens,
                max_steps=steps + 1,
                temperature=config.temperature,
                learning_rate=config.lr,
                lr_scheduler_type="constant",
                beta=0.0,
                loss_type="grpo",
                gradient_checkpointing=config.gradient_checkpointing,
                shuffle_dataset=False,
                use_cpu=device.type == "cpu",
                bf16=config.dtype == "bfloat16",
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=config.seed,
            ),
        ).train()
    return statistics.median(seconds[1:])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--presets", nargs="+", default=PRESETS, help="names in llm_trainer/configs"
    )
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=3, help="measured steps, after one more")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--width", type=int, help="narrower, with 4 heads of 16")
    parser.add_argument("--vocabulary", type=int, help="fewer tokens, at least 112")
    parser.add_argument("--set", nargs="+", default=[], metavar="key=value", help="override")
    parser.add_argument("--skip-trl", action="store_true")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        small = "--device cpu --layers 2 --width 64 --vocabulary 1000"
        parser.error(f"no GPU here; on a CPU only a small form is of use: {small}")
    device = pick_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    print(f"{name}; torch {torch.__version__}, Python {platform.python_version()}")
    for preset in options.presets:
        config = load(CONFIGS / f"{preset}.yaml", [*options.set, f"device={device.type}"])
        sizes = sizes_of(config, options)
        print(
            f"\n{preset}: {config.prompts} prompts, {config.group} responses of "
            f"{config.max_new_tokens} tokens, random weights, median of {options.steps} steps\n"
        )
        print("| phase | seconds/step | response tokens/s | peak GB | estimated GB |")
        print("|---|---|---|---|---|")
        rows, seconds = ours(config, sizes, device, options.steps)
        print("\n".join(rows))
        gc.collect()  # the next network needs the room
        if device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            found = "skipped" if options.skip_trl else version("trl")
        except PackageNotFoundError:
            found = "not installed"
        if found[0].isdigit():
            other = trl_seconds(config, sizes, device, options.steps)
            print(f"\nTRL {found}: {other:.2f} seconds/step, {other / seconds:.2f} times ours")
        else:
            print(f"\nTRL: {found}")
        gc.collect()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
