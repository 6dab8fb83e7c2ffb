"""Load a causal language model by name or folder, and run its forward pass.

Everything the trainer needs from a model goes through `Policy`: text in and out, the chat format,
the end token, and the only calls of the network. Weights that learn, and their optimiser, are
float32 always: bfloat16 has 8 bits of mantissa, and an update of 5e-6 to a weight near 1 is lost.
With `dtype: bfloat16` only the arithmetic of the forward pass runs in bfloat16 (autocast); beside
LoRA adapters the frozen weights themselves are bfloat16.

Left out: inputs other than text, and recurrent networks (refused when loaded).
"""

import copy
import inspect
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from llm_trainer.config import Config, ConfigError, first_line, require

if TYPE_CHECKING:  # peft takes half a second to import; only runs with adapters need it
    from peft import PeftModel


@dataclass
class Policy:
    """A network, its tokenizer, and how to talk to both."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    end_id: int  # the response is over after its first token of this id
    pad_id: int  # fills the rest of a row; may equal end_id, no mask depends on it
    device: torch.device
    dtype: torch.dtype  # arithmetic of the forward pass
    adapters: "PeftModel | None" = None  # LoRA inside `model`, whose own weights are frozen
    adapters_off: bool = False  # true for a reference
    compiled: bool = False  # training passes through torch.compile; decoding never

    def prompt(self, question: str) -> list[int]:
        """Token ids of a conversation with one user turn, up to where the answer begins.

        Qwen3 is asked not to think first: the answer has to be the whole response.
        """
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            enable_thinking=False,
            tokenize=False,
        )
        # The template has written every marker already: adding them again would double the first.
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def text(self, tokens: list[int]) -> str:
        """The response as it is scored: cut before the first end token, markers left visible.

        Hiding special tokens here would let a model write one inside its answer for free.
        """
        if self.end_id in tokens:
            tokens = tokens[: tokens.index(self.end_id)]
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.model.config)

    def forward(
        self,
        tokens: Tensor,
        attention: Tensor,
        positions: Tensor,
        *,
        cache: DynamicCache | None = None,
        keep: int = 0,
    ) -> Tensor:
        """Logits for the last `keep` tokens (0: all).

        tokens, positions : (rows, time); attention : (rows, past + time), 1 on real tokens
        returns : (rows, keep or time, vocabulary)
        """
        with self._arithmetic():
            out = self.model(
                input_ids=tokens,
                attention_mask=attention,
                position_ids=positions,
                logits_to_keep=keep,
                **self._cached(cache),
            )
        return out.logits.float()

    def hidden(
        self,
        tokens: Tensor,
        attention: Tensor,
        positions: Tensor,
        *,
        cache: DynamicCache | None = None,
    ) -> Tensor:
        """The last hidden states: what the head turns into logits.

        tokens, positions : (rows, time); attention : (rows, past + time), 1 on real tokens
        returns : (rows, time, width)
        """
        with self._arithmetic():
            return self._trained_body(
                input_ids=tokens,
                attention_mask=attention,
                position_ids=positions,
                **self._cached(cache),
            ).last_hidden_state

    @property
    def body(self) -> nn.Module:
        """The network below the head."""
        return self.model.base_model

    @cached_property
    def _trained_body(self) -> nn.Module:
        # Lengths differ from batch to batch: one graph for all of them.
        return torch.compile(self.body, dynamic=True) if self.compiled else self.body

    @property
    def head_weight(self) -> Tensor:
        """(vocabulary, width); the embeddings' own weight where the two are tied."""
        return self.model.get_output_embeddings().weight

    @property
    def head_bias(self) -> Tensor | None:
        """(vocabulary,), or None"""
        return self.model.get_output_embeddings().bias

    @cached_property
    def head_is_plain(self) -> bool:
        """Whether logits are W·states + b and nothing else: no cap, no scale, no adapter.

        Asked of the model itself: its head is made to return 100 times what it is given, and that
        has to come out as the logits.
        """
        head = self.model.get_output_embeddings()
        if type(head) is not nn.Linear:
            return False
        states = torch.linspace(-1, 1, head.in_features)[None].to(head.weight)  # (1, width)
        hook = head.register_forward_hook(lambda module, inputs, logits: 100 * inputs[0])
        with torch.no_grad(), hook:  # it is there within the block only
            return torch.equal(self.logits(states), (100 * states).float())

    def logits(self, states: Tensor) -> Tensor:
        """What the model makes of given last hidden states, by its own code, whatever that does.

        The body runs on one token, for nothing: a hook puts `states` in place of its result.

        states (rows, width) → (rows, vocabulary)
        """

        def put(module, inputs, result):
            result.last_hidden_state = states[None]
            return result

        with self._arithmetic(), self.body.register_forward_hook(put):
            any_token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
            return self.model(input_ids=any_token, use_cache=False).logits[0].float()

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """What every pass runs under: bfloat16 if wanted, and a reference without its adapters."""
        mixed = self.dtype != torch.float32
        adapted = self.adapters.disable_adapter() if self.adapters_off else nullcontext()
        with adapted, torch.autocast(self.device.type, dtype=self.dtype, enabled=mixed):
            yield

    def _cached(self, cache: DynamicCache | None) -> dict:
        if cache is None:
            return {"use_cache": False}
        # transformers 5.24 calls the argument `cache`; before, it was `past_key_values`.
        name = "cache" if "cache" in self._arguments else "past_key_values"
        return {name: cache, "use_cache": True}

    def __post_init__(self) -> None:
        self._arguments = inspect.signature(self.model.forward).parameters

    def recompute(self, on: bool) -> None:
        """Switch gradient checkpointing on for a training pass (if the model was loaded with it).

        transformers asks each layer whether it is training. `model.train()` would say so to its
        dropout too; here only the layers that recompute hear it.
        """
        for module in self.model.modules():
            if getattr(module, "gradient_checkpointing", False):
                module.training = on

    def trainable(self) -> list[nn.Parameter]:
        """The weights that learn: all, or the adapters."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def reference(self) -> "Policy":
        """The policy that the KL term compares with; call it before anything is learned.

        A frozen copy; with adapters the same network, run with them switched off.
        """
        return replace(self, adapters_off=True) if self.adapters else self.frozen_copy()

    def frozen_copy(self) -> "Policy":
        """The same policy in memory of its own, never trained again."""
        model = copy.deepcopy(self.model).requires_grad_(False).eval()
        return Policy(model, self.tokenizer, self.end_id, self.pad_id, self.device, self.dtype)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs to bring these weights back: all of them, or the adapters."""
        if self.adapters is None:
            return self.model.state_dict()
        return {n: w.detach() for n, w in self.model.named_parameters() if w.requires_grad}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave."""
        for name, weight in self.state().items():
            weight.copy_(state[name])

    def weights(self) -> dict[str, Tensor]:
        """All weights under the names of an ordinary model, adapters merged in."""
        if self.adapters is None:
            return self.model.state_dict()
        from llm_trainer.lora import merged_weights

        return merged_weights(self.model)

    def save(self, folder: Path) -> None:
        """Model and tokenizer as ordinary Hugging Face files; adapters alone in `adapter/` too."""
        self.model.save_pretrained(folder, state_dict=self.weights())
        self.tokenizer.save_pretrained(folder)
        if self.adapters:
            from llm_trainer.lora import save_adapters

            save_adapters(self.adapters, folder)


def load_policy(config: Config, folder: str | Path | None = None) -> Policy:
    """The policy that `config.model` names, or the one saved in `folder`.

    Raises ConfigError if the folder or name cannot be loaded, has no chat template or no end
    token, or if the device is missing.
    """
    source = str(folder or config.model)
    device = pick_device(config.device)
    if device.type == "cpu":
        torch.set_num_threads(config.threads)
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    # Frozen weights lose no updates.
    tokenizer, model = read_model(source, dtype if config.lora_rank else torch.float32)
    check_tokenizer(tokenizer, model, source)
    end_id = end_token(tokenizer, model)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_id
    # eval() switches dropout off: with it the ratio would differ from 1 at unchanged weights.
    policy = Policy(model.to(device).eval(), tokenizer, end_id, pad_id, device, dtype)
    try:
        policy.prompt("test")
    except Exception as error:  # a template is a program of the model's own
        raise ConfigError(f"model = {source!r}: its chat template fails: {error}") from None
    check_network(replace(policy), source)  # a copy: what it looked at is not kept
    policy.compiled = config.compile
    try:
        if config.gradient_checkpointing:
            # transformers 5 has another name for it
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)()
        if config.lora_rank:
            from llm_trainer.lora import add_adapters

            policy.adapters = add_adapters(
                model, rank=config.lora_rank, alpha=config.lora_alpha, seed=config.seed
            )
    except ValueError as error:
        raise ConfigError(f"model = {source!r}: {first_line(error)}") from None
    return policy


def read_model(source: str, dtype: torch.dtype) -> tuple[PreTrainedTokenizerBase, nn.Module]:
    """Tokenizer and network of a folder or name, weights in this dtype. Raises ConfigError."""
    is_folder = Path(source).is_dir()
    require(
        is_folder or re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None,
        f"model = {source!r}: no such folder, and not a Hugging Face name (owner/name) either; "
        "allowed: tiny, a folder with config.json, weights and tokenizer, or a name",
    )
    only_adapters = (
        f"model = {source!r}: this holds adapters, not a model; start from the folder of the run "
        "that made them, where they are merged into one"
    )
    require(not (Path(source) / "adapter_config.json").is_file(), only_adapters)
    require(
        not is_folder or (Path(source) / "config.json").is_file(),
        f"model = {source!r}: this folder holds no model (no config.json)",
    )
    transformers_logging.disable_progress_bar()
    try:
        local = {"local_files_only": is_folder or not hub_is_reachable()}
        tokenizer = AutoTokenizer.from_pretrained(source, **local)
        model, found = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True, **local
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # files that are damaged fail in any of several libraries
        raise ConfigError(
            f"model = {source!r}: this folder holds no loadable model ({first_line(error)})"
            if is_folder
            else f"model = {source!r}: no such folder, and no model of this name in the cache of "
            "Hugging Face models or on the hub"
        ) from None
    require(not getattr(model, "_hf_peft_config_loaded", False), only_adapters)
    missing = sorted(found["missing_keys"])  # transformers would go on with random numbers there
    require(
        not missing,
        f"model = {source!r}: its files lack {len(missing)} of the network's weights, "
        f"{', '.join(missing[:3])} among them",
    )
    return tokenizer, model


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: nn.Module, source: str) -> None:
    """ConfigError unless it can hold a conversation that ends, in tokens the network knows."""
    require(
        tokenizer.eos_token_id is not None, f"model = {source!r}: its tokenizer has no end token"
    )
    require(
        tokenizer.chat_template is not None,
        f"model = {source!r}: its tokenizer has no chat template; use an instruction-tuned model",
    )
    rows = model.get_input_embeddings().num_embeddings
    require(
        len(tokenizer) <= rows,
        f"model = {source!r}: its tokenizer has {len(tokenizer)} tokens, the network only {rows}",
    )


def end_token(tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> int:
    """The one token that ends a response: what the chat template writes after an answer.

    A model may name several end tokens (Qwen: <|im_end|> and <|endoftext|>; Gemma's tokenizer names
    one that no answer ends with). Of these only the template's ends a turn in the conversations the
    model has seen; any other is an ordinary token here. Where the template writes none of them it
    is the tokenizer's.
    """
    named = getattr(model.generation_config, "eos_token_id", None)
    named = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # this template only writes prompts
        return tokenizer.eos_token_id
    after = tokenizer(text.rpartition("ANSWER")[2], add_special_tokens=False)["input_ids"]
    return next((token for token in after if token in named), tokenizer.eos_token_id)


@torch.no_grad()
def check_network(policy: Policy, source: str) -> None:
    """Refuse a network that sampling and training would run differently from the model's own way.

    Two prompts of different lengths, padded on the left, and their last token through the attention
    cache must give what each gives alone, without padding or cache, body and head run apart.

    Raises ConfigError, so for recurrent networks (Mamba, RWKV), whose cache cannot be repeated for
    a group, and for those that take no positions.
    """
    prompt, wanted = policy.prompt("test"), []
    missing = len(prompt) // 2
    padded = [policy.pad_id] * missing + prompt[missing:]
    tokens = torch.tensor([prompt, padded], device=policy.device)
    attention = torch.ones_like(tokens)
    attention[1, :missing] = 0
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    try:
        cache = policy.new_cache()
        policy.forward(tokens[:, :-1], attention[:, :-1], positions[:, :-1], cache=cache)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 2], device=policy.device))
        found = policy.forward(tokens[:, -1:], attention, positions[:, -1:], cache=cache)[:, -1]
        for row in (tokens[:1], tokens[1:, missing:]):
            alone = torch.ones_like(row)
            states = policy.hidden(row, alone, alone.cumsum(1) - 1)
            wanted.append(policy.logits(states[0, -1:]))
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"model = {source!r}: {type(policy.model).__name__} cannot be run with positions, left "
            f"padding and an attention cache for a group: {first_line(error)}"
        ) from None
    off = (found.log_softmax(-1) - torch.cat(wanted).log_softmax(-1)).abs().mean().item()
    require(
        off <= (1e-3 if policy.dtype == torch.float32 else 0.5),
        f"model = {source!r}: with left padding, an attention cache and its head run apart, "
        f"{type(policy.model).__name__} gives other probabilities than by itself, {off:.2g} nats a "
        "token apart: its samples could not be scored",
    )


def pick_device(name: str) -> torch.device:
    """auto → the GPU if there is one; raises ConfigError for a GPU that is not there."""
    gpu = torch.cuda.is_available()
    built_for_gpus = torch.version.cuda or torch.version.hip
    cause = "" if built_for_gpus else f" (torch {torch.__version__} is a build without CUDA)"
    require(
        name != "cuda" or gpu,
        f"device = 'cuda': torch sees no GPU here{cause}; use auto or cpu, or see 'On a GPU' in "
        "llm_trainer/README.md",
    )
    return torch.device("cuda" if gpu and name != "cpu" else "cpu")


def hub_is_reachable() -> bool:
    """Whether the hub's host name resolves; without it, downloading would retry for a minute."""
    if any(name in os.environ for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True
    host = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443)
        return True
    except OSError:
        return False
