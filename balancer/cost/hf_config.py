"""Shapes from a Hugging Face ``config.json``: each known ``model_type`` becomes modules of :mod:`balancer.cost.shapes`.

It reads local files only. A missing key has a default only where Hugging Face's library leaves it out itself: parts
nested in a multimodal configuration are saved without the values that equal their class's defaults.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from balancer.cost.hf_decoders import DECODERS, qwen2
from balancer.cost.hf_encoders import QWEN3_VITS, VISION_ENCODERS, whisper
from balancer.cost.hf_families import TEXT_KEYS
from balancer.cost.hf_section import Section
from balancer.cost.layers import Projector
from balancer.cost.shapes import Decoder, Module, VisionEncoder
from balancer.errors import InputError

QWEN2_VIT: dict[str, Any] = {
    "depth": 32,
    "embed_dim": 1280,
    "hidden_size": 3584,
    "mlp_ratio": 4,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN2_5_VIT = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_QWEN3_VIT = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}
_QWEN3_DEEP = {**_QWEN3_VIT, "deepstack_visual_indexes": [8, 16, 24]}
_LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
_CLIP_B32 = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_NESTED_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA_7B, "intermediate_size": 11008},
    "mistral": {**_LLAMA_7B, "intermediate_size": 14336, "num_key_value_heads": 8},
    "clip_vision_model": {**_CLIP_B32, "patch_size": 32, "image_size": 224},
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_vision"), QWEN2_VIT),
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_vl_vision"), _QWEN2_5_VIT),
    **{kind: _QWEN3_DEEP if kind.startswith("qwen3_vl") else _QWEN3_VIT for kind in QWEN3_VITS},
    "siglip_vision_model": {**_CLIP_B32, "patch_size": 16, "image_size": 224},
}


def _known(readers: Mapping[str, Any], section: Section) -> Any:
    kind = section.values.get("model_type")
    if not isinstance(kind, str) or kind not in readers:
        raise InputError(
            f"{section.where}: unknown {section.prefix}model_type {kind!r}; known ones are {', '.join(sorted(readers))}"
        )
    return readers[kind]


def _qwen_vl(section: Section) -> dict[str, Module]:
    vision = section.part("vision_config", _NESTED_DEFAULTS, str(section.raw("model_type")))
    # Older configurations have the language model's keys at the top, newer ones in a part of their own.
    nested = isinstance(section.values.get("text_config"), dict)
    text = section.part("text_config", {}) if nested else section
    return {"vision": _known(VISION_ENCODERS, vision)(vision), "llm": qwen2(text)}


def _two_parts(section: Section, text_key: str) -> tuple[VisionEncoder, Decoder]:
    vision, text = (section.part(key, _NESTED_DEFAULTS) for key in ("vision_config", text_key))
    return _known(VISION_ENCODERS, vision)(vision), _known(DECODERS, text)(text)


def _internvl(section: Section) -> dict[str, Module]:
    vision, llm = _two_parts(section, "llm_config")
    ratio = section.raw("downsample_ratio", 0.5)
    if not isinstance(ratio, float | int) or not 0 < ratio <= 1 or (1 / ratio) % 1:
        raise section.refuse("downsample_ratio", ratio, "must be one over a whole number")
    # The ratio is of each side, so a token is made of its square in patches.
    merge = round(1 / ratio) ** 2
    wide = vision.block.hidden * merge
    widths = (wide, llm.block.hidden, llm.block.hidden)
    projector = Projector(merge=merge, widths=widths, norm_parameters=2 * wide)
    return {"vision": replace(vision, projector=projector), "llm": llm}


def _llava(section: Section) -> dict[str, Module]:
    vision, llm = _two_parts(section, "text_config")
    widths = (vision.block.hidden, llm.block.hidden, llm.block.hidden)
    return {"vision": replace(vision, projector=Projector(merge=1, widths=widths)), "llm": llm}


def _qwen2_audio(section: Section) -> dict[str, Module]:
    audio, text = (section.part(key, _NESTED_DEFAULTS) for key in ("audio_config", "text_config"))
    llm = _known(DECODERS, text)(text)
    projector = Projector(merge=2, widths=(audio.count("d_model"), llm.block.hidden))
    return {"audio": whisper(audio, projector), "llm": llm}


def _text_alone(path: str, kind: str) -> Callable[[Section], dict[str, Module]]:
    """Read the language model of several modules whose encoders are not known."""

    def read(section: Section) -> dict[str, Module]:
        for key in path.split("."):
            section = section.part(key, {}, kind)
        return {"llm": _known(DECODERS, section)(section)}

    return read


def _beside_vision(path: str, kind: str, vision_type: str) -> Callable[[Section], dict[str, Module]]:
    """Read the vision encoder too, where the configuration has one."""
    text_alone = _text_alone(path, kind)

    def read(section: Section) -> dict[str, Module]:
        text = text_alone(section)
        if section.raw("vision_config", None) is None:
            return text
        vision = section.part("vision_config", _NESTED_DEFAULTS, vision_type)
        encoder: VisionEncoder = _known(VISION_ENCODERS, vision)(vision)
        if encoder.projector is None:
            encoder = replace(encoder, projector=_pooled(section, vision, text["llm"].block.hidden))
        return {"vision": encoder, **text}

    return read


def _pooled(section: Section, vision: Section, hidden: int) -> Projector:
    """Return Gemma 3's: as many tokens of every image, each the mean of a square of patches, through one matrix."""
    side, width = vision.count("image_size") // vision.count("patch_size"), vision.count("hidden_size")
    tokens = section.count("mm_tokens_per_image", 256)
    # A token is the mean of a square of patches, and the tokens of an image form a square, too.
    merge = (side // isqrt(tokens)) ** 2
    if merge * tokens != side * side:
        raise section.refuse("mm_tokens_per_image", tokens, f"must be {side} x {side} patches in squares")
    return Projector(merge=merge, widths=(width, hidden), bias=False, norm_parameters=width)


_VISION_BESIDE = {
    **{kind: kind for kind in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")},
    "gemma3": "siglip_vision_model",
}

_SEVERAL: dict[str, Callable[[Section], dict[str, Module]]] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), _qwen_vl),
    "internvl_chat": _internvl,
    "llava": _llava,
    "qwen2_audio": _qwen2_audio,
    **{name: _text_alone(*where) for name, where in TEXT_KEYS.items()},
    **{name: _beside_vision(*TEXT_KEYS[name], vision) for name, vision in _VISION_BESIDE.items()},
}


def _whole(part: str, read: Callable[[Section], Module]) -> Callable[[Section], dict[str, Module]]:
    return lambda section: {part: read(section)}


_VISION_ALONE = (
    "intern_vit_6b", "clip_vision_model", "siglip_vision_model", "qwen2_vl_vision", "qwen2_5_vl_vision",
    *(kind for kind in QWEN3_VITS if kind.endswith("_vision")),
)  # fmt: skip
_WHOLE: dict[str, Callable[[Section], dict[str, Module]]] = {
    **{kind: _whole("llm", read) for kind, read in DECODERS.items()},
    **{kind: _whole("vision", VISION_ENCODERS[kind]) for kind in _VISION_ALONE},
    **dict.fromkeys(("whisper", "qwen2_audio_encoder"), _whole("audio", whisper)),
    **_SEVERAL,
}

MODEL_TYPES = tuple(sorted(_WHOLE))
"""Every ``model_type`` that :func:`read_config` understands."""


def modules_of(config: Mapping[str, Any], where: str = "config") -> dict[str, Module]:
    """Give the modules of a configuration that is already in memory; errors call it `where`.

    Examples
    --------
    >>> gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    >>> modules_of({**gpt2, "vocab_size": 50257})["llm"].parameters
    124439808
    """
    section = Section(config, where)
    modules: dict[str, Module] = _known(_WHOLE, section)(section)
    return modules


def read_config(path: str | os.PathLike[str]) -> dict[str, Module]:
    """Read the modules that a local ``config.json`` describes.

    Returns
    -------
    dict of str to Module
        Under ``llm``, ``vision`` and ``audio``, as far as the model has them. A projector belongs to its encoder.

    Raises
    ------
    InputError
        If there is no such file, it is no JSON object, its ``model_type`` is unknown (the known ones are listed), or a
        key is missing or has a value that no model can have; the key is named.
    """
    where = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as handle:
            config = json.load(handle)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: cannot be read as JSON: {str(error).splitlines()[0][:200]}") from error
    if not isinstance(config, dict):
        raise InputError(f"{where}: must hold one JSON object, as a model's config.json does")
    try:
        return modules_of(config, where)
    except InputError:
        raise
    except ValueError as error:  # sizes that are legal one by one, and impossible together
        raise InputError(f"{where}: {error}") from error
