"""How much memory a run needs, estimated before anything is loaded.

    python -m llm_trainer estimate --config llm_trainer/configs/grpo_qwen3_0.6b_8gb.yaml --memory 8

A step has two phases that never overlap. While *sampling*, the attention cache of all rows grows;
while *training*, one micro-batch keeps its activations for the backward pass. The peak is what is
always there plus the larger of the two. Every part is a formula with its reason beside it.

Checked on a CPU (tests/llm_trainer/test_memory.py): parameters, Adam's moments and attention cache
to the byte; activations by what autograd saves, and the peak of both phases by what the allocator
hands out, within 10 % on two layers of Qwen3-0.6B and Qwen2.5-0.5B. Models with another layer than
theirs (RMSNorm, gated MLP) are further off. NOT checked on a GPU. Left out: fragmentation (10 % of
the card are kept free for it), the workspace of kernels, torch.compile, and several devices.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from llm_trainer.config import Config, ConfigError, first_line, with_values
from llm_trainer.vllm_rollout import GPU_SHARE

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

GB = 2**30  # a card sold as "24 GB" has 24 × 2³⁰ bytes
FLOAT = 4  # bytes of a float32: weights that learn, their gradients, Adam's moments
KEPT_FREE = 0.10  # share of the card left to fragmentation
CONTEXT = 0.6 * GB  # CUDA's own context and the workspace of its libraries; typical, not measured
SAMPLING_COPIES = 5  # logits, over the temperature, log-softmax, softmax, and the sampler's noise
PROMPT_TOKENS = 128  # a task of one or two sentences in the chat format; counting needs a tokenizer

QWEN3 = {"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8}
QWEN2 = {"model_type": "qwen2", "vocab_size": 151936, "num_key_value_heads": 2}


def _sizes(family: dict, width: int, mlp: int, layers: int, heads: int, *, tied: bool) -> dict:
    return {
        **family,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }


# The numbers of config.json, so that these need neither a download nor a folder. Instruction-tuned
# Qwen2.5 has the sizes of its base model.
KNOWN = {
    "Qwen/Qwen3-0.6B": _sizes(QWEN3, 1024, 3072, 28, 16, tied=True),
    "Qwen/Qwen3-1.7B": _sizes(QWEN3, 2048, 6144, 28, 16, tied=True),
    "Qwen/Qwen3-4B": _sizes(QWEN3, 2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-8B": _sizes(QWEN3, 4096, 12288, 36, 32, tied=False),
    "Qwen/Qwen2.5-0.5B": _sizes(QWEN2, 896, 4864, 24, 14, tied=True),
    "Qwen/Qwen2.5-1.5B": _sizes(QWEN2, 1536, 8960, 28, 12, tied=True),
    "Qwen/Qwen2.5-3B": _sizes(QWEN2, 2048, 11008, 36, 16, tied=True),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a causal language model that its memory depends on."""

    parameters: int
    layers: int
    width: int
    queries: int  # heads · size of a head
    keys: int  # key-value heads · size of a head
    mlp: int
    vocabulary: int
    qk_norm: bool  # queries and keys are normalised, as in Qwen3
    linear: int  # weights of the linear layers below the head
    lora: int  # Σ (inputs + outputs) over these: adapters of rank r have r times as many weights
    tied: bool  # the head is the embedding


def shape_of(source: str) -> Shape:
    """Sizes of `tiny`, a folder, a name in KNOWN, or another Hugging Face name.

    Raises ConfigError if there is no config.json, or it is not of a causal language model.
    """
    try:
        return shape_from(_config_of(source))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"model = {source!r}: no sizes to estimate from ({first_line(error)}); known without "
            f"a folder: tiny, {', '.join(KNOWN)}"
        ) from None


def shape_from(model_config: "PreTrainedConfig") -> Shape:
    """Counted on a network built without memory, on torch's meta device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)
    config = model_config.get_text_config()
    heads, width = config.num_attention_heads, config.hidden_size
    head = getattr(config, "head_dim", None) or width // heads
    embedding, top = model.get_input_embeddings(), model.get_output_embeddings()
    matrices = [  # GPT-2 has its own kind of linear layer, so the weight is what counts
        module.weight
        for module in model.modules()
        if module not in (embedding, top) and getattr(module, "weight", torch.empty(0)).ndim == 2
    ]
    return Shape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=config.num_hidden_layers,
        width=width,
        queries=heads * head,
        keys=(getattr(config, "num_key_value_heads", None) or heads) * head,
        mlp=getattr(config, "intermediate_size", None) or 4 * width,
        vocabulary=top.weight.shape[0],
        qk_norm=any("q_norm" in name for name, _ in model.named_parameters()),
        linear=sum(w.numel() for w in matrices),
        lora=sum(sum(w.shape) for w in matrices),
        tied=top.weight is embedding.weight,
    )


def _config_of(source: str) -> "PreTrainedConfig":
    from transformers import AutoConfig

    if source == "tiny":
        from llm_trainer.tiny import build_model, build_tokenizer

        return build_model(build_tokenizer(), seed=0).config
    name = source.removesuffix("-Instruct")
    if name in KNOWN and not Path(source).is_dir():
        return AutoConfig.for_model(**KNOWN[name])
    from llm_trainer.models import hub_is_reachable

    local = Path(source).is_dir() or not hub_is_reachable()
    return AutoConfig.from_pretrained(source, local_files_only=local)


# ---------------------------------------------------------------- the parts, in bytes


@dataclass(frozen=True)
class Precision:
    """Bytes of one number, and what learns."""

    weight: int  # of the network: float32, or as the arithmetic if frozen below adapters
    arithmetic: int  # of what linear layers compute
    full: bool  # all weights learn, not only adapters

    @property
    def mixed(self) -> bool:
        """float32 weights under bfloat16 arithmetic: autocast makes copies."""
        return self.weight > self.arithmetic


def precision(config: Config) -> Precision:
    arithmetic, full = 2 if config.dtype == "bfloat16" else FLOAT, config.lora_rank == 0
    return Precision(FLOAT if full else arithmetic, arithmetic, full)


def always(shape: Shape, config: Config) -> dict[str, float]:
    """What is there from the first step to the last."""
    of, row = precision(config), config.row()
    adapters = config.lora_rank * shape.lora
    network = of.weight * shape.parameters + FLOAT * adapters
    trained = shape.parameters if of.full else adapters
    moments = 2 * FLOAT * trained  # Adam keeps two numbers for each weight that learns
    critic = 0.0
    if row.needs_critic:  # a head (norm and one linear map); perhaps a network of its own
        critic = 4 * FLOAT * (3 * shape.width + 1)
        critic += (network + moments) * (config.critic == "model")
    # a second network for the KL; beside adapters it is the first one with the adapters off
    reference = network if row.needs_reference and of.full else 0.0
    return {
        "weights": network,
        "Adam's moments": moments,
        "reference": reference,
        "critic": critic,
        "CUDA itself": CONTEXT,
    }


def copies(shape: Shape, config: Config, *, head: bool) -> float:
    """Under autocast each matrix is there in bfloat16 too, until the forward is over.

    While training, the copies stay for the backward; the head is copied chunk by chunk there, and
    counted with the logits.
    """
    matrices = shape.linear + head * shape.vocabulary * shape.width
    return precision(config).arithmetic * matrices if precision(config).mixed else 0


def attention_cache(shape: Shape, config: Config, *, rows: int, tokens: int) -> float:
    """Keys and values of every layer and token.

    Keys are rotated in the precision of the stream between layers, which is that of the weights;
    values come as the linear layer gives them.
    """
    of = precision(config)
    return rows * tokens * shape.layers * shape.keys * (of.weight + of.arithmetic)


def sampling(shape: Shape, config: Config, prompt: int) -> dict[str, float]:
    """While responses are written, all rows at once, if every one reaches the limit."""
    rows = config.prompts * config.group
    cache = attention_cache(shape, config, rows=rows, tokens=prompt + config.max_new_tokens)
    growing = cache / (2 * shape.layers)  # a layer's keys or values, there twice while they grow
    return {
        "attention cache": cache,
        "logits": max(growing, SAMPLING_COPIES * FLOAT * rows * shape.vocabulary),  # in turn
        "bfloat16 copies": copies(shape, config, head=True),
    }


def token_activations(shape: Shape, config: Config) -> float:
    """What one layer keeps of one token for the backward pass, without keys and values.

    Two norms keep what they got, in float32, and a norm that learns keeps it normalised as well.
    Linear layers keep their input; in float32 seven share four, in bfloat16 each of the five that
    follow a norm (beside adapters, attention's last one too) keeps a copy of its own.
    The norms of queries and keys are like the other two. Attention keeps its queries and output,
    the gated MLP three vectors beside the input of its last layer.
    """
    of = precision(config)
    norms = 2 * shape.width * (FLOAT + of.full * of.weight)
    half = of.arithmetic < FLOAT
    inputs = (5 if half else 2) * shape.width + (half and not of.full) * shape.queries
    qk = shape.qk_norm * (shape.queries + shape.keys) * (FLOAT + of.full * of.arithmetic)
    return norms + qk + of.arithmetic * (inputs + 2 * shape.queries + 4 * shape.mlp)


def activations(shape: Shape, config: Config, *, computed: int, seen: int) -> float:
    """What the forward keeps for the backward of `computed` tokens that look back at `seen`.

    Keys and values are kept once per row that looks back at them, widened to one per query head.
    With checkpointing each layer keeps only its input, and one layer at a time is computed again.
    """
    of = precision(config)
    layer = computed * token_activations(shape, config) + seen * 2 * shape.queries * of.arithmetic
    last_norm = (1 + of.full) * computed * shape.width * FLOAT
    if config.gradient_checkpointing:
        return shape.layers * computed * shape.width * of.weight + layer + last_norm
    return shape.layers * layer + last_norm


def head(shape: Shape, config: Config) -> float:
    """One chunk of logits with its gradient, and the gradient of the head on its way.

    float32: both in one tensor. bfloat16: the product, in float32, and back. The entropy's
    gradient needs the probabilities beside the logits.
    """
    of, matrix = precision(config), shape.vocabulary * shape.width
    chunk = min(config.logprob_chunk, config.micro_batch * config.group * config.max_new_tokens)
    numbers = FLOAT + FLOAT * (config.entropy_coef > 0)
    numbers += 2 * of.arithmetic * (of.arithmetic < FLOAT)
    gradient = of.full * FLOAT + of.mixed * 3 * of.arithmetic  # twice the copy, and a product
    return chunk * shape.vocabulary * numbers + matrix * gradient


def training(shape: Shape, config: Config, prompt: int) -> dict[str, float]:
    """While one micro-batch is computed, if every response is as long as the limit.

    Most is needed where the backward begins. A shared prompt is computed once for its group, but
    looked at by every row of it. Where all weights learn, more may be needed when the backward
    turns from the responses to the prompts: half of each weight's gradient waits for the other.
    """
    of, rows = precision(config), config.micro_batch * config.group
    own_body = config.row().needs_critic and config.critic == "model"
    adapters = config.lora_rank * shape.lora
    always = {
        "gradients": FLOAT * (shape.parameters if of.full else adapters) * (1 + own_body),
        "bfloat16 copies": copies(shape, config, head=False) * (1 + own_body),
    }
    prompts, seen = config.micro_batch * prompt, rows * (prompt + config.max_new_tokens)

    def kept(computed: int, seen: int) -> float:
        forward = activations(shape, config, computed=computed, seen=seen) * (1 + own_body)
        return forward + 2 * computed * shape.mlp * of.arithmetic  # on the way back through an MLP

    if not config.shared_prefix:
        return always | {"activations": kept(seen, seen), "logits and head": head(shape, config)}
    computed = prompts + rows * config.max_new_tokens
    begin = {"activations": kept(computed, seen + prompts), "logits and head": head(shape, config)}
    halves = of.full * of.arithmetic * shape.linear + 2 * FLOAT * shape.vocabulary * shape.width
    turn = {"activations": kept(prompts, prompts), "halves of gradients": halves}
    return always | (max(begin, turn, key=total) if of.full else begin)


def total(parts: dict[str, float]) -> float:
    return sum(parts.values())


# ---------------------------------------------------------------- the estimate, and what to change


@dataclass(frozen=True)
class Estimate:
    """Bytes by part, and what they add up to."""

    always: dict[str, float]
    sampling: dict[str, float]
    training: dict[str, float]
    usable: float = 1 - KEPT_FREE  # share of the card

    @property
    def phase(self) -> str:
        """The larger of the two: they never overlap."""
        return max(("sampling", "training"), key=lambda name: total(getattr(self, name)))

    @property
    def at_peak(self) -> dict[str, float]:
        extra = getattr(self, self.phase)
        return self.always | {f"{name} ({self.phase})": n for name, n in extra.items()}

    @property
    def peak(self) -> float:
        return total(self.at_peak)

    def fits(self, memory: float) -> bool:
        """memory: bytes of the card"""
        return self.peak <= memory * self.usable


def estimate(
    config: Config, *, shape: Shape | None = None, prompt: int = PROMPT_TOKENS
) -> Estimate:
    """Bytes by part for `config`, with prompts of `prompt` tokens.

    Raises ConfigError if the sizes of its model cannot be found.
    """
    shape = shape or shape_of(config.model)
    parts = always(shape, config), sampling(shape, config, prompt), training(shape, config, prompt)
    vllm = GPU_SHARE if config.sampler == "vllm" else 0  # the trainer's own loop still evaluates
    return Estimate(*parts, usable=1 - KEPT_FREE - vllm)


def changes(config: Config) -> Iterator[dict]:
    """What may be changed to need less, from what costs nothing but time to what costs most."""
    part = config.prompts // config.minibatches
    for n in sorted((n for n in range(1, config.micro_batch) if part % n == 0), reverse=True):
        yield {"micro_batch": n}
    if config.logprob_chunk > 256:
        yield {"logprob_chunk": 256}
    yield {"dtype": "bfloat16"}  # needs a card that has it
    yield {"gradient_checkpointing": True, "shared_prefix": False}
    for n in (config.prompts // 2, config.prompts // 4):
        if n and n % config.minibatches == 0:
            yield {"prompts": n}
    yield {"lora_rank": 16}  # fewer weights learn
    yield {"kl_coef": 0.0}  # another objective


def advice(
    config: Config, memory: float, *, shape: Shape, prompt: int = PROMPT_TOKENS
) -> list[tuple[dict, Estimate]]:
    """The changes that make it fit, in order, each with what is needed once it and those before it
    are made. All were tried. If the last estimate does not fit, nothing here is enough.
    """

    def needs(values: dict) -> Estimate:
        return estimate(with_values(config, **values), shape=shape, prompt=prompt)

    steps: list[dict] = []
    best = needs({})
    for values in changes(config):
        made = merged(steps)
        if best.fits(memory):
            break
        if "prompts" in values:
            part = values["prompts"] // config.minibatches
            values["micro_batch"] = math.gcd(made.get("micro_batch", config.micro_batch), part)
        try:
            result = needs(made | values)
        except ConfigError:
            continue
        if result.peak < 0.99 * best.peak:
            if steps and steps[-1].keys() == values.keys():
                steps.pop()  # the same fields, further on
            steps.append(values)
            best = result
    for values in steps[:-1]:  # what a later change has made needless
        others = [other for other in steps if other is not values]
        if needs(merged(others)).fits(memory):
            steps = others
    return [(values, needs(merged(steps[: n + 1]))) for n, values in enumerate(steps)]


def merged(changes: list[dict]) -> dict:
    """All of them, the later ones winning."""
    return {name: value for values in changes for name, value in values.items()}


# ---------------------------------------------------------------- as text


def report(config: Config, *, memory: float, prompt: int = PROMPT_TOKENS) -> tuple[str, bool]:
    """(what `python -m llm_trainer estimate` prints, whether it fits); memory in GB."""
    shape = shape_of(config.model)
    parts = estimate(config, shape=shape, prompt=prompt)
    fits = parts.fits(memory * GB)
    trained = f"LoRA of rank {config.lora_rank} trained" if config.lora_rank else "all trained"
    part, size = max(parts.at_peak.items(), key=lambda item: item[1])
    lines = [
        f"{config.model}: {shape.parameters:,} parameters, {trained}; {config.algorithm}",
        "GB (of 2^30 bytes) on one GPU, an estimate (not measured on a GPU); "
        f"prompts of {prompt} tokens",
        *listed(parts),
        f"  peak       while {parts.phase:12} {parts.peak / GB:7.2f}",
        f"largest part: {part}, {size / parts.peak:.0%}",
        f"{'fits' if fits else 'does NOT fit'} {memory:g} GB with {KEPT_FREE:.0%} left free"
        + (f" and {GPU_SHARE:.0%} to vLLM" if config.sampler == "vllm" else "")
        + f" ({memory * parts.usable:.2f})",
    ]
    steps = [] if fits else advice(config, memory * GB, shape=shape, prompt=prompt)
    if steps:
        lines.append("what to change (each was tried on top of those above it):")
    for values, result in steps:
        text = " ".join(f"{name}={value}" for name, value in values.items()).lower()
        enough = ": fits" if result.fits(memory * GB) else ""
        lines.append(f"  --set {text:50} {result.peak / GB:7.2f}{enough}")
    if not any(found.fits(memory * GB) for found in (parts, *(result for _, result in steps))):
        lines.append("  not enough: a smaller model, group or max_new_tokens")
    return "\n".join(lines), fits


def listed(parts: Estimate) -> list[str]:
    """One line a part, those of size 0 left out, the phase beside its first."""
    lines = []
    for phase in ("always", "sampling", "training"):
        label = phase
        for part, size in getattr(parts, phase).items():
            if size:
                lines.append(f"  {label:10} {part:18} {size / GB:7.2f}")
                label = ""
    return lines


def memory_of_this_machine() -> float:
    """GB of the first GPU, or 24 without one."""
    if not torch.cuda.is_available():
        return 24.0
    return torch.cuda.get_device_properties(0).total_memory / GB
