"""Load a causal language model by name or folder, and run its forward pass.

Everything the trainer needs from a model goes through `Policy`: text in and out, the chat format,
the end token, and `forward`, the only place that calls the network. Weights and optimiser are
float32 always: bfloat16 has 8 bits of mantissa, and an update of 5e-6 to a weight near 1 is lost.
With `dtype: bfloat16` only the arithmetic of the forward pass runs in bfloat16 (autocast).

Left out: adapters (LoRA), critics, several devices.
"""

import copy
import inspect
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from llm_trainer.config import Config, ConfigError, first_line, require


@dataclass
class Policy:
    """A network, its tokenizer, and how to talk to both."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    end_id: int  # the response is over after its first token of this id
    pad_id: int  # fills the rest of a row; may equal end_id, no mask depends on it
    device: torch.device
    dtype: torch.dtype  # arithmetic of the forward pass

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
        if cache is not None:
            # transformers 5.24 calls the argument `cache`; before, it was `past_key_values`.
            name = "cache" if "cache" in self._arguments else "past_key_values"
            kwargs = {name: cache, "use_cache": True}
        else:
            kwargs = {"use_cache": False}
        with torch.autocast(
            self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32
        ):
            out = self.model(
                input_ids=tokens,
                attention_mask=attention,
                position_ids=positions,
                logits_to_keep=keep,
                **kwargs,
            )
        return out.logits.float()

    def __post_init__(self) -> None:
        self._arguments = inspect.signature(self.model.forward).parameters

    def frozen_copy(self) -> "Policy":
        """The same policy, never trained again: the reference of the KL term."""
        model = copy.deepcopy(self.model).requires_grad_(False).eval()
        return Policy(model, self.tokenizer, self.end_id, self.pad_id, self.device, self.dtype)


def load_policy(config: Config, folder: str | Path | None = None) -> Policy:
    """The policy that `config.model` names, or the one saved in `folder`.

    Raises ConfigError if the folder or name cannot be loaded, has no chat template or no end
    token, or if the device is missing.
    """
    source = str(folder or config.model)
    device = pick_device(config.device)
    if device.type == "cpu":
        torch.set_num_threads(config.threads)
    is_folder = Path(source).is_dir()
    require(
        is_folder or re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None,
        f"model = {source!r}: no such folder, and not a Hugging Face name (owner/name) either; "
        "allowed: tiny, a folder with config.json, weights and tokenizer, or a name",
    )
    transformers_logging.disable_progress_bar()
    try:
        local = {"local_files_only": is_folder or not hub_is_reachable()}
        tokenizer = AutoTokenizer.from_pretrained(source, **local)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **local)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"model = {source!r}: this folder holds no loadable model ({first_line(error)})"
            if is_folder
            else f"model = {source!r}: no such folder, and no model of this name in the cache of "
            "Hugging Face models or on the hub"
        ) from None
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
    end_id = tokenizer.eos_token_id
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_id
    if config.gradient_checkpointing:
        # The name changes with transformers 6.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)()
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    # eval() switches dropout off: with it the ratio would differ from 1 at unchanged weights.
    policy = Policy(model.to(device).eval(), tokenizer, end_id, pad_id, device, dtype)
    try:
        policy.prompt("test")
    except Exception as error:  # a template is a program of the model's own
        raise ConfigError(f"model = {source!r}: its chat template fails: {error}") from None
    return policy


def pick_device(name: str) -> torch.device:
    """auto → the GPU if there is one; raises ConfigError for a GPU that is not there."""
    gpu = torch.cuda.is_available()
    require(name != "cuda" or gpu, "device = 'cuda': torch sees no GPU here; use auto or cpu")
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
