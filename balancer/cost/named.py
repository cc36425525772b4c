"""Models by name: their configuration, and where it was published."""

import os
from pathlib import PurePath
from typing import Any

from balancer.cost.hf_config import modules_of, read_config
from balancer.cost.hf_families import QWEN2_VIT
from balancer.cost.polynomial import LengthPolynomial
from balancer.cost.shapes import Module
from balancer.errors import InputError
from solvers.errors import ArgumentTypeError


def _decoder(
    kind: str, hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": mlp, "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }  # fmt: skip


def _intern_vit(hidden: int, layers: int, heads: int, large: bool) -> dict[str, Any]:
    return {
        "model_type": "intern_vit_6b", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "patch_size": 14, "image_size": 448, "qkv_bias": not large,
        "norm_type": "rms_norm" if large else "layer_norm", "qk_normalization": large,
    }  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    # Qwen2 Technical Report (2024), table 1
    "qwen2-7b": _decoder("qwen2", 3584, 28, 28, 4, 18944, 152064),
    "qwen2-72b": _decoder("qwen2", 8192, 80, 64, 8, 29568, 152064),
    # The Llama 3 Herd of Models (2024), table 3
    "llama-3-8b": _decoder("llama", 4096, 32, 32, 8, 14336, 128256),
    "llama-3-70b": _decoder("llama", 8192, 80, 64, 8, 28672, 128256),
    # Model cards InternViT-300M-448px and InternViT-6B-448px-V1-5 (2024): of the latter's 48 blocks 3 are discarded
    "internvit-300m": _intern_vit(1024, 24, 16, large=False),
    "internvit-6b": _intern_vit(3200, 45, 25, large=True),
    # Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution (2024), table 1; with the
    # merger of the 7B model
    "qwen2-vl-vit": {"model_type": "qwen2_vl_vision", **QWEN2_VIT},
    # Robust Speech Recognition via Large-Scale Weak Supervision (2022), table 1; 128 mel bins: model card
    # whisper-large-v3 (2023)
    "whisper-large-v3-encoder": {
        "model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120, "num_mel_bins": 128, "max_source_positions": 1500,
    },
}  # fmt: skip
"""Models by name, which is lower case: their configuration in the keys of Hugging Face's ``config.json``."""


def module(name: str) -> Module:
    """Find the module that `name` means: one of :data:`MODELS`, or a ``config.json``, as ``PATH`` or ``PATH#vision``.

    Raises
    ------
    TypeError
        Anything but text.
    InputError
        An unknown name (the known ones are listed), or a configuration that cannot be used, or has several modules of
        which none is named.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError("model", "be a name or a path of a config.json, as text", repr(name)[:80])
    path, hash_mark, part = name.partition("#")
    if (known := MODELS.get(name.lower())) is not None:
        modules = modules_of(known)
    elif not path.endswith(".json"):
        raise InputError(f"unknown model {name!r}; known are {', '.join(MODELS)}, and paths that end in .json")
    else:
        modules = read_config(os.path.expanduser(path))
    if hash_mark and part not in modules:
        raise InputError(f"{path}: no module {part!r}; there are {', '.join(modules)}")
    if not hash_mark and len(modules) > 1:
        raise InputError(f"{path}: has several modules; add one of {', '.join('#' + part for part in modules)}")
    return modules[part] if hash_mark else next(iter(modules.values()))


def shown_name(name: str) -> str:
    """Return a model's name as reports show it: of a path the file and its folder, alike on every machine.

    Examples
    --------
    >>> shown_name("Qwen2-7B"), shown_name("/data/models/gemma-3-4b/config.json#llm")
    ('qwen2-7b', 'gemma-3-4b/config.json#llm')
    """
    return name.lower() if name.lower() in MODELS else "/".join(PurePath(name).parts[-2:])


def flops(name: str, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
    """FLOPs of one sample of a named model, or of a ``config.json``, as a polynomial in its length.

    Parameters
    ----------
    name : str
        As for :func:`module`.
    backward : bool
        Count the backward pass too: twice the forward pass.
    checkpointing : bool
        Count the forward pass again, as activation checkpointing recomputes it.

    Returns
    -------
    LengthPolynomial
        Exact; its ``length_unit`` says what a length counts.

    Raises
    ------
    InputError
        As :func:`module`.

    Examples
    --------
    >>> flops("qwen2-7b").exact(4096) / 1e15  # PFLOPs of 4096 tokens
    0.183861107490816
    >>> str(flops("qwen2-7b").cost_model())
    'quadratic:a=493184,b=7'
    """
    return module(name).flops(backward=backward, checkpointing=checkpointing)
