"""Where a plan may be written: not over its log, under a name that tells what it is, and over nothing else unasked."""

import json
import os
from pathlib import Path
from typing import Any

from balancer.errors import InputError, PlanError
from balancer.io.log import LengthLog
from balancer.io.plan_folder import parts_in
from balancer.io.plan_format import OF_PART, to_json
from balancer.io.plan_reader import open_plan
from balancer.io.store import exists, is_folder, is_remote
from balancer.offline.settings import LogSettings
from solvers.errors import UsageError

_SUFFIXES = ("", ".parquet", ".pq")
_OF_RESULT = (*OF_PART, "rows", "producer", "sources", "step_samples")
"""What a description says besides the request; sources are compared by their contents."""


def is_parts(out: str) -> bool:
    """Whether a plan written to `out` is a folder of parts."""
    return out.endswith((os.sep, "/")) or (not is_remote(out) and os.path.isdir(out))


def check_name(out: str, log: LengthLog) -> None:
    """Refuse, before anything is read, a place that is the log's, or whose name is that of another format."""
    if any(is_same(file, out) for file in log.files):
        raise InputError(f"{out}: the plan would overwrite its log; choose another --out")
    suffix = Path(out).suffix.lower()
    if not is_parts(out) and suffix not in _SUFFIXES:
        raise InputError(f"{out}: a plan is written as Parquet, so its name must not end in {suffix}; choose .parquet")


def check_target(out: str, key: str, sources: list[dict[str, Any]], settings: LogSettings, overwrite: bool) -> None:
    """Refuse a place for a plan before the work; the same request may write over what it wrote before.

    Raises
    ------
    UsageError
        Unless `overwrite`, there is anything but the plan of this request.
    """
    there_are = any(part.key != key for part in parts_in(out)) if is_parts(out) else _is_there(out)
    if overwrite or not there_are:
        return
    there, asked = _request_at(out), _request_of(sources, settings)
    if there is None:
        raise UsageError("{out} holds no plan that this version reads", "{overwrite} replaces it", out=out)
    if there != asked:
        what = _difference(there, asked)
        raise UsageError(
            "{out} holds the plan of another request ({what})", "{overwrite} replaces it", out=out, what=what
        )


def is_same(file: Path, out: str) -> bool:
    """Whether a file of a log is the one that would be written."""
    if is_remote(file) or is_remote(out):
        return str(file) == out
    # By file, not by name: a link to the log is the log.
    return os.path.exists(out) and os.path.samefile(file, out)


def _is_there(out: str) -> bool:
    """Whether a file would be replaced."""
    return not is_folder(out) and exists(out) if is_remote(out) else os.path.isfile(out)


def _request_at(out: str) -> Any:
    """Return the request whose plan is there; None where it is no plan that this version reads."""
    try:
        found = open_plan(out).description
        sources = [{name: value for name, value in source.items() if name != "file"} for source in found["sources"]]
    except (InputError, PlanError, OSError, LookupError, TypeError, AttributeError):
        return None
    return {name: value for name, value in found.items() if name not in (*_OF_RESULT, "log")} | {"sources": sources}


def _difference(there: Any, asked: Any, name: str = "") -> str:
    """Say what the first difference between two requests is: where, what is there and what is asked for."""
    if isinstance(there, dict) and isinstance(asked, dict):
        keys = [key for key in {**there, **asked} if there.get(key) != asked.get(key)]
        return _difference(there.get(keys[0]), asked.get(keys[0]), f"{name}.{keys[0]}".strip("."))
    if isinstance(there, list) and isinstance(asked, list) and len(there) == len(asked):
        k = next(k for k, pair in enumerate(zip(there, asked, strict=True)) if pair[0] != pair[1])
        return _difference(there[k], asked[k], f"{name}[{k}]")
    was, now = (f"{json.dumps(value):.60}" for value in (there, asked))
    return f"{name} is {was} there, and {now} here"


def _request_of(sources: list[dict[str, Any]], settings: LogSettings) -> Any:
    contents = [{name: value for name, value in source.items() if name != "file"} for source in sources]
    # Through JSON and back, because the other request comes from a file: tuples are lists there.
    return json.loads(to_json(settings.to_json() | {"sources": contents}))
