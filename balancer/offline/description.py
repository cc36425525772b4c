"""The description in a plan file: how it was planned, from which log, with which result."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from balancer._version import __version__
from balancer.io.log import LengthLog, unit_of
from balancer.io.store import file_sha256, footer_sha256, is_remote, size_and_tag
from balancer.offline.settings import LogSettings
from balancer.offline.steps import columns_of, read_rows


def digest_of(steps: Sequence[str], steps_per_part: int | None = None) -> str:
    """Return the digest of a plan, given those of its steps: SHA-256 over those of its parts, or of the only one."""
    size = steps_per_part or max(1, len(steps))
    parts = [steps[i : i + size] for i in range(0, len(steps), size)] or [[]]
    digests = [hashlib.sha256(b"".join(map(bytes.fromhex, part))) for part in parts]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(each.digest() for each in digests))
    return whole.hexdigest()


def sources_of(log: LengthLog, settings: LogSettings) -> list[dict[str, Any]]:
    """Return which bytes a log is: the files, each with size and SHA-256, or size, ETag and footer's in a store.

    A table in memory is in no file: what is planned of it is written to be read at once, and not kept.
    """
    phases = settings.setup.phases
    sums, _ = columns_of(log, phases)
    units = {phase.name: unit_of(log, sums[phase.length]) for phase in phases if phase.length in sums}
    files = log.files if log.table is None else ()
    return [{"file": str(file), **contents_of(file), "format": log.format, "unit": units} for file in files]


def contents_of(file: Path) -> dict[str, Any]:
    """Return what tells the contents of a file from all others."""
    # A file in a store is not read to its end for a hash: its tag and footer tell it from others.
    if not is_remote(file):
        return {"size": file.stat().st_size, "sha256": file_sha256(file)}
    size, tag = size_and_tag(file)
    return {"size": size, "etag": tag, "footer_sha256": footer_sha256(file)}


def asked(
    log: LengthLog, settings: LogSettings, sources: list[dict[str, Any]], step_samples: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return what a description says of the whole plan."""
    named = {} if log.files == (log.path,) else {"log": str(log.path)}
    across = {} if settings.across is None else {"step_samples": step_samples}
    rows = len(read_rows(log, settings))
    return settings.to_json() | named | {"sources": sources, "rows": rows, "producer": __version__} | across
