"""What a plan file says of its plans: claims, each read in one place, to be checked or taken over."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer.errors import InputError, PlanError
from balancer.io.plan_reader import PlanFile
from balancer.layouts.setup import setup_from_json
from balancer.offline.order import Order
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import held_in, reason_of, restored
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.constraints import PER_SAMPLE
from balancer.problem.limits import LIMITS_ASKED
from balancer.problem.phases import Phase
from balancer.problem.ragged import Ragged
from balancer.strategies import SHARING, STRATEGIES
from solvers.arguments import as_integer, as_share
from solvers.bounds import Bound
from solvers.check import SEARCHES
from solvers.errors import WordedError
from solvers.types import STOP_AT, SolveStatus, status_of

_CONTENTS = ("size", "sha256", "etag", "footer_sha256")

Ints = NDArray[np.int64]


@contextmanager
def read_from(plan_file: PlanFile) -> Iterator[None]:
    """Let what a description lacks, or has in another form, be an error of the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = str(error) if isinstance(error, ValueError | WordedError) else repr(error)
        raise InputError(f"{plan_file.path}: its description is not one this version reads: {what}") from None


@dataclass(frozen=True)
class FileClaim:
    """What a file says of one phase of a step that its rows do not show."""

    fell_back: str = ""  # why samples were not relocated
    num_slots: int = 0  # where slots behind the last that holds something are more than the cut asks for

    def kept(self, plan: DispatchPlan) -> DispatchPlan:
        """Return the plan of the rows with what is claimed of it besides."""
        return plan


@dataclass(frozen=True)
class SavedClaim(FileClaim):
    """What a file that holds one step's plan says of a phase: its certificate too."""

    status: SolveStatus = SolveStatus.FEASIBLE  # how the solver ended
    bound: Bound = Bound(0, "")  # noqa: RUF009 (frozen)  # what was proven where it was planned
    where: str = ""  # the file
    is_checked: bool = True  # whether all constraints are in the file; what others proved cannot be proven again
    stop_at: Fraction = STOP_AT  # the gap that was asked for

    def kept(self, plan: DispatchPlan) -> DispatchPlan:
        """Return the plan with the claimed bound, if it holds as far as can be told.

        A search may have proven more than a formula.
        """
        claimed, makespan = self.bound, plan.makespan
        if not self.is_checked and claimed.value > plan.lower_bound:
            return plan
        holds = 0 <= claimed.value <= makespan
        if not holds or (claimed.name not in SEARCHES and claimed.value > plan.lower_bound):
            claim = f"lower_bound = {claimed.value} ('{claimed.name}')"
            raise PlanError(f"{self.where}: claims {claim}, which does not hold")
        out_of_time = self.status is SolveStatus.TIME_LIMIT
        if self.status is not status_of(makespan, claimed.value, self.stop_at, out_of_time=out_of_time):
            raise PlanError(f"{self.where}: claims status '{self.status}' with lower_bound = {claimed.value}")
        return replace(plan, lower_bound=claimed.value, bound_name=claimed.name, status=self.status)


class Claims:
    """What a plan file says, each part of it read when it is asked for; InputError where it cannot be read."""

    def __init__(self, plan_file: PlanFile) -> None:
        self.plan_file, self.said = plan_file, plan_file.description
        self._of_part: tuple[int, Mapping[int, Mapping[str, FileClaim]]] = -1, {}

    @property
    def is_saved(self) -> bool:
        """Whether the file holds lengths and homes, and needs no log."""
        return {"length", "home_rank"} <= set(self.plan_file.columns)

    @property
    def num_steps(self) -> Any:
        """How many steps it has."""
        return self.said.get("steps")

    @property
    def settings(self) -> LogSettings:
        """How a log was planned."""
        with read_from(self.plan_file):
            settings = LogSettings.from_json(self.said)
        if settings.setup.several_items and "item" not in self.plan_file.columns:
            raise PlanError(
                f"{self.plan_file.path}: has no column 'item', though its phases have several items a sample"
            )
        if settings.across is not None and "nominal_step" not in self.plan_file.columns:
            raise PlanError(
                f"{self.plan_file.path}: has no column 'nominal_step', though its samples run early or late"
            )
        return settings

    @property
    def order(self) -> Order:
        """Which samples of which epoch its steps have."""
        said = self.said
        with read_from(self.plan_file):
            if "batch_per_rank" not in said:  # a plan that was saved by itself
                count = as_integer("samples", said["samples"])
                return Order(count, max(1, count), step_samples=((count,),))
            sizes: tuple[tuple[int, ...], ...] = ()
            if "across_steps" in said:
                sizes = tuple(tuple(as_integer("step_samples", size) for size in each) for each in said["step_samples"])
            settings = LogSettings.from_json(said)
            order = settings.order(as_integer("rows", said["rows"]), sizes)
            if len(sizes) != (settings.epochs if settings.across else 0) or order.num_steps != said["steps"]:
                raise ValueError(
                    f"steps must be {order.num_steps} of {settings.epochs} epochs, got {said['steps']!r:.60}"
                )
        return order

    @property
    def sources(self) -> tuple[list[str], list[dict[str, object]]]:
        """The paths of the log that it was made from, and what tells the contents of each of the log's files."""
        sources, log = self.said.get("sources"), self.said.get("log")
        try:
            files = [{name: source[name] for name in _CONTENTS if name in source} for source in sources or ()]
            paths = [source["file"] for source in sources or ()]
            named: list[Any] = paths if log == paths[0] or (log is None and len(paths) == 1) else [log]
        except (AttributeError, LookupError, TypeError):
            named = []
        if not files or not named or not all(isinstance(path, str) for path in named):
            raise InputError(f"{self.plan_file.path}: its description does not name the log it was made from")
        return named, files

    def of_step(self, step: int) -> Mapping[str, FileClaim]:
        """Return what the table of steps says of the phases of a step that rows do not show."""
        firsts = [header["description"].get("first_step", 0) for header in self.plan_file.headers]
        part = max(0, bisect_right(firsts, step) - 1)
        if self._of_part[0] != part:
            names, claims = ("fell_back", "fell_back_percent", "slots"), defaultdict[int, dict[str, FileClaim]](dict)
            table = table_in(self.plan_file, part, held_in)
            for number, phase, *why, slots in zip(*(table[name].to_pylist() for name in ("step", "phase", *names)),
                                                  strict=True):  # fmt: skip
                claims[number][phase] = FileClaim(reason_of(*why), slots or 0)
            self._of_part = part, claims
        return self._of_part[1].get(step, {})

    def check_digest(self, digest: str, num_steps: int) -> None:
        """Raise PlanError unless this is the digest of its steps that it says."""
        if digest != self.said.get("digest"):
            raise PlanError(f"{self.plan_file.path}: the digest of its {num_steps} steps is {digest}, not what it says")


def table_in(plan_file: PlanFile, part: int, read: Callable[[str], pa.Table] = restored) -> pa.Table:
    """Return the table of steps that one file of a plan has, as `read` makes it of the text in its header."""
    text = plan_file.headers[part].get("table_of_steps")
    if not isinstance(text, str):
        raise InputError(f"{plan_file.parts[part]}: has no table of steps: plan the log again")
    try:
        return read(text)
    except ValueError as error:
        raise InputError(f"{plan_file.parts[part]}: {error}") from None


class Beside(NamedTuple):
    """Lengths and keys of a phase that its rows do not hold; None where the phase asks for none."""

    outputs: Ints | None  # int64[k]: what each item puts out
    own: Ragged | None  # what each sample brings in
    keys: Ints | None  # int64[k]: equal where items stay together
    prompts: tuple[Ints | None, Ints] | None  # int64[k] each: key, where prompts are shared, and length of each prefix


class SavedClaims(Claims):
    """What a file says that holds one step's plan, its lengths too: read at once, and refused as a whole."""

    def __init__(self, plan_file: PlanFile) -> None:
        super().__init__(plan_file)
        with read_from(plan_file):
            slots = {name: as_integer("slots", count) for name, count in self.said.get("slots", {}).items()}
            self.setup = setup_from_json(self.said)
            self._saved = dict(self.said["saved"])
            if set(self._saved) != {phase.name for phase in self.setup.phases}:
                raise ValueError(f"certificates are of {', '.join(self._saved)}, not of its phases")
            self.makespans = {phase.name: self._makespan(phase) for phase in self.setup.phases}
            self._claims = {phase.name: self._certificate(phase, slots) for phase in self.setup.phases}
            self.strategy = self.said["strategy"]
            if self.strategy not in (known := STRATEGIES | SHARING):
                raise ValueError(f"unknown strategy {self.strategy!r:.60}; known ones are {', '.join(known)}")

    def of_step(self, step: int) -> Mapping[str, FileClaim]:
        """Return what it says of the phases of its only step."""
        return self._claims

    def _makespan(self, phase: Phase) -> int:
        certificate = self._saved[phase.name]["certificate"]
        return _whole_numbers([certificate[key] for key in ("makespan", "lower_bound")])[0]

    def _certificate(self, phase: Phase, slots: Mapping[str, int]) -> SavedClaim:
        name, said = phase.name, self._saved[phase.name]
        certificate, left_out = said["certificate"], said["left_out"]
        if not isinstance(certificate["bound_name"], str) or not isinstance(said["fell_back"], str):
            raise ValueError(f"phase {name!r}: bound_name and fell_back must be text")
        known = (*PER_SAMPLE, LIMITS_ASKED)
        if not isinstance(left_out, list) or not set(left_out) <= set(known):
            raise ValueError(f"phase {name!r}: left_out must be of {', '.join(known)}, got {left_out!r:.60}")
        in_file = (("keys", "keep_together"), ("prompts", "prefix"))
        held = [*left_out, *(constraint for key, constraint in in_file if said.get(key) is not None)]
        if unchecked := [key for key in PER_SAMPLE if getattr(phase, key) and key not in held]:
            raise ValueError(f"phase {name!r}: {unchecked[0]} cannot be checked without the log, and is said to be")
        return SavedClaim(
            said["fell_back"], slots.get(name, 0), SolveStatus(certificate["status"]),
            Bound(certificate["lower_bound"], certificate["bound_name"]),
            str(self.plan_file.path), not left_out, as_share("stop_at", self.setup.settings.stop_at),
        )  # fmt: skip

    def beside(self, phase: Phase, num_items: int, num_samples: int) -> Beside:
        """Return what the rows of a phase do not hold, of so many items and samples; ValueError if that cannot be."""
        said = self._saved[phase.name]
        outputs, own, keys = said["outputs"], said["own"], said.get("keys")
        for name, given in (("outputs", outputs), ("own", own)):
            if (given is None) != (getattr(phase, name) is None):
                raise ValueError(
                    f"phase {phase.name!r} must have {name} in the file if it asks for them, and else none"
                )
        if keys is not None and phase.keep_together is None:
            raise ValueError(f"phase {phase.name!r} has keys in the file, and keeps nothing together")
        put_out = None if outputs is None else _of_items(outputs, num_items, phase, "put out a length")
        codes = None if keys is None else _of_items(keys, num_items, phase, "have a key")
        if ((prompts := said.get("prompts")) is None) != (phase.prefix_length is None):
            raise ValueError(f"phase {phase.name!r} must have prompts in the file if it asks for any, and else none")
        shared = None if prompts is None else _prompts(prompts, num_items, phase)
        pieces = None if own is None else Ragged.checked(*map(_whole_numbers, own))
        if pieces is not None and len(pieces) != num_samples:
            raise ValueError(f"phase {phase.name!r} must have own lengths of each of its {num_samples} samples")
        return Beside(put_out, pieces, codes, shared)

    def check(self, digest: str, num_samples: int, makespans: Mapping[str, int]) -> None:
        """Raise PlanError unless the plan of the rows has the digest and the numbers that the file says."""
        if digest != self.said.get("digest"):
            raise PlanError(f"{self.plan_file.path}: the plan's digest is {digest}, not what its description says")
        said = self.said.get("steps"), self.said.get("samples"), self.makespans
        if said != (held := (1, num_samples, dict(makespans))):
            names = "steps, samples and makespans"
            raise PlanError(f"{self.plan_file.path}: {names} must be {held}, as its rows have them, got {said!r:.200}")


def _of_items(values: Any, num_items: int, phase: Phase, what: str) -> Ints:
    """Return numbers of which a phase must have one for each of its items."""
    numbers = np.asarray(_whole_numbers(values), dtype=np.int64)
    if len(numbers) != num_items:
        raise ValueError(f"phase {phase.name!r} must {what} for each of its {num_items} items")
    return numbers


def _prompts(values: Any, num_items: int, phase: Phase) -> tuple[Ints | None, Ints]:
    """Return keys, where prompts are shared, and lengths of prefixes."""
    if not isinstance(values, list) or len(values) != 2 or (values[0] is None) != (phase.prefix is None):
        raise ValueError(f"phase {phase.name!r}: prompts must be keys, if any are shared, and lengths")
    keys = None if values[0] is None else _of_items(values[0], num_items, phase, "have a prompt")
    return keys, _of_items(values[1], num_items, phase, "have a prefix")


def _whole_numbers(values: Any) -> list[int]:
    """Return a list of numbers that JSON has as such, each a length; numpy would take text and fractions too."""
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise ValueError(f"must be a list of whole numbers from 0, got {values!r:.60}")
    return values
