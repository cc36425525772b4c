"""The description in a plan file: how it was planned, from which log, with which result."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from balancer._version import __version__
from balancer.errors import InputError
from balancer.io.logs import LengthLog, choose_length, file_sha256, footer_sha256, unit_of
from balancer.io.plan_reader import PlanFile
from balancer.io.store import is_remote, size_and_tag
from balancer.offline.settings import LogSettings
from balancer.plan.reasons import Reasons
from balancer.plan.step_plan import StepPlan

__all__ = ["FellBack", "PlanDigest", "contents_of", "describe", "sources_of", "unreadable"]


class PlanDigest:
    """The digest of a plan file, and why plans in it fell back.

    A part's digest is SHA-256 over the digests of its plans in order, and a file's that over the digests of its parts;
    of a single part, as all steps are by default, it is the part's.
    """

    def __init__(self, steps_per_part: int | None = None, first_step: int = 0) -> None:
        self._per_part, self._steps = steps_per_part, first_step
        self._parts: list[str] = []
        self._hash, self._in_hash = hashlib.sha256(), 0
        self._reasons: dict[str, Reasons] = {}
        self._runs: dict[tuple[str, tuple[str, ...]], list[list[int]]] = {}

    def add(self, plan: StepPlan) -> None:
        """Take in the next plan."""
        if self._in_hash == self._per_part:
            self._end_part()
        self._hash.update(bytes.fromhex(plan.digest()))
        self._in_hash += 1
        for name, phase in plan.phases.items():
            if phase.plan.fell_back:
                kind = self._reasons.setdefault(name, Reasons()).add(phase.plan.fell_back)
                self._run(name, kind, self._steps, self._steps)
        self._steps += 1

    def _end_part(self) -> None:
        self._parts.append(self._hash.hexdigest())
        self._hash, self._in_hash = hashlib.sha256(), 0

    def _run(self, phase: str, kind: tuple[str, ...], first: int, last: int) -> None:
        runs = self._runs.setdefault((phase, kind), [])
        if runs and runs[-1][1] == first - 1:
            runs[-1][1] = last
        else:
            runs.append([first, last])

    def stored(self) -> dict[str, Any]:
        """Return it, the digest of one part, as the description of that part holds it."""
        runs = [[name, list(kind), runs] for (name, kind), runs in self._runs.items()]
        reasons = {name: reasons.stored() for name, reasons in self._reasons.items()}
        return {"digest": self.hexdigest(), "fell_back": reasons, "fell_back_steps": runs}

    def join(self, stored: Mapping[str, Any]) -> None:
        """Take in the next part, as :meth:`stored` gave it."""
        self._parts.append(stored["digest"])
        for name, reasons in stored["fell_back"].items():
            self._reasons.setdefault(name, Reasons()).join(reasons)
        for name, kind, runs in stored["fell_back_steps"]:
            for first, last in runs:
                self._run(name, tuple(kind), first, last)

    @property
    def fell_back(self) -> dict[str, dict[str, list[list[int]]]]:
        """Of each phase, reasons why samples were not relocated, and the steps: first and last of each run of steps.

        Reasons that differ in a percentage alone are joined to one, with its range.
        """
        return {
            name: {text: self._runs[name, kind] for kind, text in reasons.told().items()}
            for name, reasons in self._reasons.items()
        }

    def hexdigest(self) -> str:
        """Digest of the plans so far."""
        parts = self._parts + [self._hash.hexdigest()] * (self._in_hash > 0 or not self._parts)
        return parts[0] if len(parts) == 1 else hashlib.sha256(b"".join(map(bytes.fromhex, parts))).hexdigest()


def sources_of(log: LengthLog, settings: LogSettings) -> list[dict[str, Any]]:
    """Return which bytes a log is: the files, each with size and SHA-256, or size, ETag and footer's in a store."""
    units = {
        phase.name: unit_of(log, choose_length(log, phase.numbers[0]))
        for phase in settings.setup.phases
        if "(" not in phase.items
    }
    return [{"file": str(file), **contents_of(file), "format": log.format, "unit": units} for file in log.files]


def contents_of(file: Path) -> dict[str, Any]:
    """Return what tells the contents of a file from all others."""
    if not is_remote(file):
        return {"size": file.stat().st_size, "sha256": file_sha256(file)}
    size, tag = size_and_tag(file)
    return {"size": size, "etag": tag, "footer_sha256": footer_sha256(file)}


def describe(
    log: LengthLog, settings: LogSettings, steps: int, samples: int, digest: PlanDigest,
    sources: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the description that goes into a plan file: enough to replay it from the log."""
    named = {} if log.files == (log.path,) else {"log": str(log.path)}
    return (
        settings.to_json()
        | named
        | {
            "sources": sources_of(log, settings) if sources is None else sources,
            "steps": steps,
            "samples": samples,
            "digest": digest.hexdigest(),
            "producer": __version__,
            "fell_back": digest.fell_back,
        }
    )


class FellBack:
    """Why a plan file says that samples were not relocated, by phase and step."""

    def __init__(self, plan_file: PlanFile) -> None:
        self._runs: dict[str, list[tuple[int, int, str]]] = {}
        try:
            for phase, reasons in plan_file.description.get("fell_back", {}).items():
                runs = [(int(first), int(last), str(reason)) for reason, of in reasons.items() for first, last in of]
                self._runs[phase] = sorted(runs)
        except (AttributeError, TypeError, ValueError) as error:
            raise unreadable(plan_file, error) from None

    def of(self, phase: str, step: int) -> str:
        """Return why in this step, empty if they were; steps are asked for in order."""
        runs = self._runs.get(phase, [])
        while runs and runs[0][1] < step:
            runs.pop(0)
        return runs[0][2] if runs and runs[0][0] <= step else ""


def unreadable(plan_file: PlanFile, error: Exception) -> InputError:
    """Return the error for a description that lacks something, or has it in another form."""
    what = str(error) if isinstance(error, ValueError) else repr(error)
    return InputError(f"{plan_file.path}: its description is not one this version reads: {what}")
