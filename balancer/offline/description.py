"""The description in a plan file: how it was planned, from which log, with which result."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from balancer._version import __version__
from balancer.io.log import LengthLog, unit_of
from balancer.io.store import file_sha256, footer_sha256, is_remote, size_and_tag
from balancer.offline.settings import LogSettings
from balancer.offline.steps import columns_of, read_rows
from balancer.plan.reasons import Reasons
from balancer.plan.rows import slots_beyond_rows
from balancer.plan.step_plan import StepPlan


class _Runs:
    """Of each phase, by words that hold for some of its steps: the first and last step of each run of these."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, Any], list[list[int]]] = {}

    def add(self, phase: str, word: Any, first: int, last: int) -> None:
        """Take in steps behind all others of the same word."""
        runs = self._runs.setdefault((phase, word), [])
        if runs and runs[-1][1] == first - 1:
            runs[-1][1] = last
        else:
            runs.append([first, last])

    def of(self, phase: str, word: Any) -> list[list[int]]:
        """Return the runs of a word."""
        return self._runs[phase, word]

    def stored(self) -> list[Any]:
        """Return all of it as JSON has it."""
        return [[phase, word, runs] for (phase, word), runs in self._runs.items()]

    def join(self, stored: Iterable[Any]) -> None:
        """Take in those of later steps, as :meth:`stored` gave them."""
        for phase, word, runs in stored:
            for first, last in runs:
                self.add(phase, tuple(word) if isinstance(word, list) else word, first, last)


class PlanDigest:
    """The digest of a plan file, and what its rows do not show of some steps: why they fell back, empty last slots.

    A part's digest is SHA-256 over the digests of its plans in order, and a file's that over the digests of its parts;
    of a single part, as all steps are by default, it is the part's.
    """

    def __init__(self, steps_per_part: int | None = None, first_step: int = 0) -> None:
        self._per_part, self._steps = steps_per_part, first_step
        self._parts: list[str] = []
        self._hash, self._in_hash = hashlib.sha256(), 0
        self._reasons: dict[str, Reasons] = {}
        self._fell_back, self._slots = _Runs(), _Runs()

    def add(self, plan: StepPlan) -> None:
        """Take in the next plan."""
        # Digests go part by part, so that processes which plan parts come to the same digest as one that plans all.
        if self._in_hash == self._per_part:
            self._end_part()
        self._hash.update(bytes.fromhex(plan.digest()))
        self._in_hash += 1
        for name, phase in plan.phases.items():
            if phase.plan.fell_back:
                kind = self._reasons.setdefault(name, Reasons()).add(phase.plan.fell_back)
                self._fell_back.add(name, kind, self._steps, self._steps)
            if slots := slots_beyond_rows(phase.plan):
                self._slots.add(name, slots, self._steps, self._steps)
        self._steps += 1

    def _end_part(self) -> None:
        self._parts.append(self._hash.hexdigest())
        self._hash, self._in_hash = hashlib.sha256(), 0

    def stored(self) -> dict[str, Any]:
        """Return it, the digest of one part, as the description of that part holds it."""
        reasons = {name: reasons.stored() for name, reasons in self._reasons.items()}
        found = {"digest": self.hexdigest(), "fell_back": reasons, "fell_back_steps": self._fell_back.stored()}
        return found | ({"slots": slots} if (slots := self._slots.stored()) else {})  # most plans have none

    def join(self, stored: Mapping[str, Any]) -> None:
        """Take in the next part, as :meth:`stored` gave it."""
        self._parts.append(stored["digest"])
        for name, reasons in stored["fell_back"].items():
            self._reasons.setdefault(name, Reasons()).join(reasons)
        self._fell_back.join(stored["fell_back_steps"])
        self._slots.join(stored.get("slots", ()))

    @property
    def fell_back(self) -> dict[str, dict[str, list[list[int]]]]:
        """Of each phase, reasons why samples were not relocated, and the steps: first and last of each run of steps.

        Reasons that differ in a percentage alone are joined to one, with its range.
        """
        return {
            name: {text: self._fell_back.of(name, kind) for kind, text in reasons.told().items()}
            for name, reasons in self._reasons.items()
        }

    @property
    def slots(self) -> dict[str, dict[str, list[list[int]]]]:
        """Of each phase, numbers of slots that rows do not show, and in which steps."""
        found: dict[str, dict[str, list[list[int]]]] = {}
        for phase, slots, runs in self._slots.stored():
            found.setdefault(phase, {})[str(slots)] = runs
        return found

    def hexdigest(self) -> str:
        """Digest of the plans so far."""
        parts = self._parts + [self._hash.hexdigest()] * (self._in_hash > 0 or not self._parts)
        return parts[0] if len(parts) == 1 else hashlib.sha256(b"".join(map(bytes.fromhex, parts))).hexdigest()


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


def describe(
    log: LengthLog, settings: LogSettings, steps: int, samples: int, digest: PlanDigest,
    sources: list[dict[str, Any]] | None = None, step_samples: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the description that goes into a plan file: enough to replay it from the log.

    `step_samples` is how many samples each step has, epoch by epoch, where some run early or late.
    """
    given = sources_of(log, settings) if sources is None else sources
    return asked(log, settings, given, step_samples) | found(steps, samples, digest)


def asked(
    log: LengthLog, settings: LogSettings, sources: list[dict[str, Any]], step_samples: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return what a description says of the whole plan."""
    named = {} if log.files == (log.path,) else {"log": str(log.path)}
    across = {} if settings.across is None else {"step_samples": step_samples}
    rows = len(read_rows(log, settings))
    return settings.to_json() | named | {"sources": sources, "rows": rows, "producer": __version__} | across


def found(steps: int, samples: int, digest: PlanDigest) -> dict[str, Any]:
    """Return what a description says of the steps of a file."""
    told = {"steps": steps, "samples": samples, "digest": digest.hexdigest(), "fell_back": digest.fell_back}
    return told | ({"slots": slots} if (slots := digest.slots) else {})
