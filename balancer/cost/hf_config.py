"""Modules from a Hugging Face ``config.json``: of families that were checked, and of others as far as keys tell.

It reads local files only. A missing key has a default only where Hugging Face's library leaves it out itself: parts
nested in a multimodal configuration are saved without the values that equal their class's defaults.
"""

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

from balancer.cost.hf_encoders import pooled, vision_of, whisper_of
from balancer.cost.hf_families import ENCODERS, FAMILIES, NESTED, SAME_AS, WHOLE
from balancer.cost.hf_keys import Config
from balancer.cost.hf_layers import decoder_of
from balancer.cost.parts import Part, projector
from balancer.cost.shapes import Decoder, Module
from balancer.errors import InputError

_AUDIO = ("whisper", "qwen2_audio_encoder")
MODEL_TYPES = tuple(sorted({*FAMILIES, *WHOLE, *ENCODERS, *_AUDIO, "qwen2_vl_text", "qwen2_5_vl_text"}))
"""Every ``model_type`` that was checked: parameters are those of the library's classes, or, where it has none, those
published, to 0.1 or 0.2 %; FLOPs those of its products."""


def modules_of(config: Mapping[str, Any], where: str = "config") -> dict[str, Module]:
    """Give the modules of a configuration that is already in memory; errors call it `where`.

    A ``model_type`` that is not in :data:`MODEL_TYPES` is read by its keys alone, with a warning that says so and how
    many parameters that makes.

    Examples
    --------
    >>> gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    >>> modules_of({**gpt2, "vocab_size": 50257})["llm"].parameters
    124439808
    """
    whole = Config(config, where)
    kind = whole.kind
    if kind in ENCODERS:
        return {"vision": vision_of(whole)}
    if kind in _AUDIO:
        return {"audio": whisper_of(whole)}
    if kind not in WHOLE:
        path = next((key for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), "")
        return {"llm": _text(whole, path)}
    of = WHOLE[kind]
    has_vision = bool(of.vision_kind) and (not of.vision_optional or whole.has("vision_config"))
    vision = whole.part("vision_config", of.vision_kind) if has_vision else None
    # Older configurations have the language model's keys at the top, newer ones in a part of their own.
    at_top = of.text_at_top and not whole.has(of.text)
    text = _text(whole, "" if at_top else of.text, of.text_kind)
    if kind == "qwen2_audio":
        audio = whole.part("audio_config")
        return {"audio": whisper_of(audio, projector(2, audio.count("d_model"), text.hidden)), "llm": text}
    return {"llm": text} if vision is None else {"vision": _vision(whole, vision, text.hidden), "llm": text}


def _text(whole: Config, path: str, kind: str = "") -> Decoder:
    """Return the language model that lies under a path, of its own type, or else of this one."""
    section = whole
    for key in path.split(".") if path else ():
        section = section.part(key, kind or None)
    if kind and not path:
        section = section.with_values({"model_type": kind})
    family = SAME_AS.get(section.kind or "", section.kind)
    sizes = NESTED.get(family or "", {}) if path else {}
    found = decoder_of(section.filled(sizes).with_values({"model_type": family}))
    if family not in FAMILIES:
        _warn(section, found)
    return found


def _vision(whole: Config, vision: Config, hidden: int) -> Module:
    """Return a vision encoder, and what makes tokens of its patches."""
    project = None
    if whole.kind == "internvl_chat":
        ratio = whole.get("downsample_ratio", 0.5)
        if not isinstance(ratio, float | int) or not 0 < ratio <= 1 or (1 / ratio) % 1:
            raise whole.refuse("downsample_ratio", ratio, "must be one over a whole number")
        # The ratio is of each side, so a token is made of its square in patches.
        wide = vision.count("hidden_size") * round(1 / ratio) ** 2
        project = projector(round(1 / ratio) ** 2, wide, hidden, hidden) + Part(parameters=2 * wide)
    elif whole.kind == "llava":
        project = projector(1, vision.count("hidden_size", 768), hidden, hidden)
    elif whole.kind == "gemma3":
        project = pooled(whole, vision, hidden)
    found = vision_of(vision, project)
    if SAME_AS.get(vision.kind or "", vision.kind) not in ENCODERS:
        _warn(vision, found)
    return found


def _warn(config: Config, found: Module) -> None:
    """Say that a family was not checked, and the count of parameters, which tells a wrong reading."""
    warnings.warn(
        f"{config.where}: {config.prefix}model_type {config.kind!r} was not checked: read by its keys it has "
        f"{found.parameters / 1e9:.3g} G parameters; compare with its model card",
        stacklevel=2,
    )


def read_config(path: str | os.PathLike[str]) -> dict[str, Module]:
    """Read the modules that a local ``config.json`` describes.

    Returns
    -------
    dict of str to Module
        Under ``llm``, ``vision`` and ``audio``, as far as the model has them. A projector belongs to its encoder.

    Raises
    ------
    InputError
        If there is no such file, it is no JSON object, or a key is missing, contradicts another one or has a value that
        no model can have; the key is named.
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
