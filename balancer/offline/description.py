"""The description in a plan file: how it was planned, from which log, with which result."""

import hashlib
from typing import Any

from balancer._version import __version__
from balancer.errors import InputError
from balancer.io.logs import LengthLog, choose_length, file_sha256, unit_of
from balancer.io.plan_reader import PlanFile
from balancer.offline.settings import LogSettings
from balancer.plan.reasons import Reasons
from balancer.plan.step_plan import StepPlan

__all__ = ["FellBack", "PlanDigest", "describe", "unreadable"]


class PlanDigest:
    """The digest of a plan file, SHA-256 over the digests of its plans in order; and why plans fell back."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._steps = 0
        self._reasons: dict[str, Reasons] = {}
        self._runs: dict[tuple[str, tuple[str, ...]], list[list[int]]] = {}

    def add(self, plan: StepPlan) -> None:
        """Take in the next plan."""
        self._hash.update(bytes.fromhex(plan.digest()))
        for name, phase in plan.phases.items():
            if phase.plan.fell_back:
                kind = self._reasons.setdefault(name, Reasons()).add(phase.plan.fell_back)
                runs = self._runs.setdefault((name, kind), [])
                if runs and runs[-1][1] == self._steps - 1:
                    runs[-1][1] = self._steps
                else:
                    runs.append([self._steps, self._steps])
        self._steps += 1

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
        return self._hash.hexdigest()


def describe(log: LengthLog, settings: LogSettings, steps: int, samples: int, digest: PlanDigest) -> dict[str, Any]:
    """Return the description that goes into a plan file: enough to replay it from the log."""
    units = {
        phase.name: unit_of(log, choose_length(log, phase.numbers[0]))
        for phase in settings.setup.phases
        if "(" not in phase.items
    }
    sources = [
        {
            "file": str(file),
            "size": file.stat().st_size,
            "sha256": file_sha256(file),
            "format": log.format,
            "unit": units,
        }
        for file in log.files
    ]
    named = {} if log.files == (log.path,) else {"log": str(log.path)}
    return (
        settings.to_json()
        | named
        | {
            "sources": sources,
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
