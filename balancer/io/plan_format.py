"""The form of plan files, which writer and reader share: column types and description.

A plan file is one Parquet file, or a folder of parts, each of which is one. One row places one sample, one of the items
inside it or a piece of it, in one phase of one step; the description is JSON under the key ``balancer`` of the schema
metadata. Only the form is defined here, not what a plan means.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from balancer.errors import InputError, PlanError
from balancer.io.plan_rows import GAP

METADATA_KEY = b"balancer"
FORMAT, VERSION = "balancer-plan", 4
ARRAYS = {"sample": np.int64, "rank": np.int32, "slot": np.int32, "position": np.int32}
ITEM = {"item": np.int32}
PIECE = {"start": np.int64, "stop": np.int64, "group": np.int32}
"""Rows of what runs in the gaps of phase P's pipelines have the phase ``P:gaps``, and no other has a colon and this."""
NOMINAL = {"nominal_step": np.int64}
"""Of plans whose samples run early or late, beside ``step``: the step for which each was drawn."""
EXTRA = {"length": np.int64, "home_rank": np.int32}
OPTIONAL: dict[str, Any] = EXTRA | ITEM | PIECE | GAP | NOMINAL
TYPES = {"step": pa.int64(), "phase": pa.dictionary(pa.int32(), pa.string())}
TYPES |= {name: pa.from_numpy_dtype(dtype) for name, dtype in (ARRAYS | OPTIONAL).items()}


def to_json(value: Mapping[str, object]) -> bytes:
    """Return a description as it is stored; NaN and infinity are refused."""
    # Sorted, because the text is hashed: the same description must give the same digest.
    return json.dumps(value, sort_keys=True, allow_nan=False).encode()


def from_json(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text holds; None where it holds anything else, or is nested too deeply.

    NaN and infinity, which :func:`to_json` writes nowhere, are anything else.
    """
    value: Any = None
    with suppress(ValueError, RecursionError):
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    return value if isinstance(value, dict) else None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def header(description: Mapping[str, object], **more: object) -> dict[str, object]:
    """Return the header of a plan, which is in its metadata."""
    described = dict(description)
    own = {
        "format": FORMAT,
        "version": VERSION,
        "description_sha256": _sha256(described),
        "beside_sha256": _sha256(more),
    }
    return {**own, "description": described, **more}


_OWN = ("format", "version", "description_sha256", "beside_sha256", "description")


def _sha256(description: Mapping[str, object]) -> str:
    return hashlib.sha256(to_json(description)).hexdigest()


def described_in(path: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description in a header, if this release reads it."""
    if found.get("format") != FORMAT:
        raise InputError(f'{path}: a plan must say "format": "{FORMAT}", got {found.get("format")!r:.80}')
    if found.get("version") != VERSION:
        version = repr(found.get("version"))[:80]
        raise InputError(f"{path}: is a plan of format {version}, and format {VERSION} is read: plan the log again")
    description = found.get("description")
    if not isinstance(description, dict):
        raise InputError(f"{path}: must hold a description, a JSON object")
    if found.get("description_sha256") != _sha256(description):
        raise PlanError(f"{path}: its description is not the one that was written: its SHA-256 differs")
    beside = {name: value for name, value in found.items() if name not in _OWN}
    if found.get("beside_sha256") != _sha256(beside):
        raise PlanError(f"{path}: its table of steps or row groups are not those that were written: SHA-256 differs")
    return description


OF_PART = ("part", "first_step", "steps", "samples", "digest")
"""What the description of a part says of its own steps; all else is of the whole plan."""


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the description of a plan, given those of its parts."""
    if len(parts) == 1:
        return {name: value for name, value in parts[0].items() if name not in ("part", "first_step")}
    digests = b"".join(bytes.fromhex(part["digest"]) for part in parts)
    whole = {name: value for name, value in parts[0].items() if name not in OF_PART}
    whole |= {name: sum(part[name] for part in parts) for name in ("steps", "samples")}
    whole["digest"] = hashlib.sha256(digests).hexdigest()
    return whole
