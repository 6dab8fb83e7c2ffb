"""LoRA: two small trained matrices beside each frozen one, through peft.

    W x  →  W x + (alpha / rank) · B A x      (Hu et al. 2021, equation 3, scaled as in section 4.1)

A (rank, in) starts random and B (out, rank) at zero, so the adapted network starts as the network
itself, and the network itself stays there: with the adapters switched off it is the KL term's
reference, without a second copy in memory. Every linear layer but the head is adapted.

Left out: dropout, adapters on embeddings or head, quantised weights, starting from adapters.
"""

import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn

FOLDER = "adapter"  # inside a run's folder; beside config.json transformers would add it once more
FILES = [f"{FOLDER}/adapter_config.json", f"{FOLDER}/adapter_model.safetensors"]


def add_adapters(model: nn.Module, *, rank: int, alpha: float, seed: int) -> PeftModel:
    """Freeze `model` and put float32 adapters into it, in place; peft's handle on them.

    Raises ValueError if the model has no linear layer that peft knows.
    """
    settings = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,  # with dropout the ratio would differ from 1 at unchanged weights
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft on transformers' names and on GPT-2's layers
        torch.manual_seed(seed)
        return get_peft_model(model.requires_grad_(False), settings)


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of an ordinary model that computes the same: W + (alpha / rank) · B A.

    Names and dtypes are those the model had before `add_adapters`. In bfloat16 a change below one
    512th of a weight (at worst one 256th) is rounded away: the adapters alone hold all of it.
    """
    weights = {
        name.replace(".base_layer.", "."): weight
        for name, weight in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            weight = layer.get_base_layer().weight
            change = layer.get_delta_weight("default")  # (out, in) as the weight is, float32
            weights[f"{name}.weight"] = (weight.float() + change.float()).to(weight.dtype)
    return {name: weight.detach() for name, weight in weights.items()}


def save_adapters(adapters: PeftModel, folder: Path) -> None:
    """`FILES` below `folder`, for `PeftModel.from_pretrained(model, folder / "adapter")`."""
    (folder / FOLDER).mkdir()
    adapters.peft_config["default"].save_pretrained(folder / FOLDER)
    weights = get_peft_model_state_dict(adapters)
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / FILES[1])
