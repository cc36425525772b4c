"""A whole log planned from Python: what ``balancer plan`` does, and what it found."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from balancer.described import as_dict, changed, said_of
from balancer.errors import InputError, did_you_mean
from balancer.io.columns import LengthUnknownError
from balancer.io.log import LengthLog, choose_length, default_columns, open_log
from balancer.io.log_files import LogPath, files_of
from balancer.io.plan_reader import open_plan
from balancer.io.tables import is_table
from balancer.offline.claims import Claims, SavedClaims
from balancer.offline.continued import left_of
from balancer.offline.of_step import settings_of_step
from balancer.offline.run import plan_run
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import full_steps, phases_in, ratios_in, summary
from balancer.offline.steps import plan_log as plans_of
from balancer.plan.rows import data_frame
from balancer.plan.shown import Ratios, as_html
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.cuts import as_cut
from balancer.problem.cuts.in_slots import InSlots
from balancer.problem.phases import CONSTRAINTS, SINGLE_PHASE, Phase
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import as_phases, as_topology
from balancer.report.remarks import how_many, warnings_of
from balancer.report.text import counted
from balancer.step import PhaseKeys, StepFile, read_step
from solvers.arguments import as_count
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError, WordedError, Wording

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogPlan", "about", "about_plan", "opened_by", "plan_log", "settings_of"]

_OF_RANKS = ("num_ranks", "ranks_per_node", "topology")
_OF_TOP = ("batch_per_rank", "home", "drop_last", "epochs", "shuffle")
_OF_LOG = ("first_epoch", "first_sample")
_OF_DEFERRAL = tuple(field.name for field in fields(AcrossSteps))


_OWN = {
    "plan_log": ("step", "out", "jobs", "overwrite", "continued", "at_step"),
    "advise": ("step", "price", "gpus_per_rank"),
}
"""What functions are told beside what makes their settings."""

_KEYWORDS = Wording({"cost of phases": "cost", "layouts": "layout", "layout": "stages"})
"""What keywords of :func:`plan_log` are called that have another name elsewhere."""


@dataclass(frozen=True, slots=True, repr=False)
class LogPlan:
    """A log's plan: what it adds up to, and its rows.

    Attributes
    ----------
    log : LengthLog
    settings : LogSettings
        How the log was cut into steps, and how each was planned.
    steps : pyarrow.Table
        A row a step and phase: see ``balancer.offline.step_table.COLUMNS``.
    out : str or None
        The file or folder of the plan, if it was written.
    """

    log: LengthLog
    settings: LogSettings
    steps: pa.Table
    out: str | None = None

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, as ``balancer plan --json`` prints them, without what depends on the clock."""
        return summary(self.steps) | about(self.log, self.settings)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the plan to a file, or with a trailing slash to a folder; it is planned again, and the same."""
        _check_named(self.log)
        plan_run(self.log, self.settings, os.fspath(path), who=1, overwrite=overwrite)

    def to_arrow(self) -> Any:
        """Return the rows of the plan as an Arrow table: step, phase, sample, rank, slot, position."""
        import pyarrow.parquet as pq

        if self.out is not None and os.path.isfile(self.out):
            return pq.read_table(self.out)
        # Rows were not kept. The same request gives the same plan, so they are made again.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.parquet")
            plan_run(self.log, self.settings, path, who=1)
            return pq.read_table(path)

    def to_pandas(self) -> Any:
        """Return the rows of the plan as a pandas DataFrame; needs the extra ``pandas``."""
        return data_frame(self.to_arrow)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page of the plan, as ``balancer report --html`` does; needs the extra ``plot``."""
        from balancer.report.charts import require_plotting

        require_plotting("to_html()")
        from balancer.report.page import write_page
        from balancer.report.plan_page import Drawn, plan_page

        drawn = Drawn(self.steps)
        for plan in plans_of(self.log, self.settings):
            drawn.add(plan)
        title, log = f"a plan of {self.log.path.name}", str(self.log.path)
        write_page(os.fspath(path), plan_page(self.steps, drawn, title, self.out or "", log))

    def __repr__(self) -> str:
        ranks = counted(self.settings.setup.topology.num_ranks, "rank")
        ratios = ", ".join(f"{name} {each[0]:.4g} -> {each[1]:.4g}" for name, each in self._ratios().items())
        return f"<LogPlan: {how_many(summary(self.steps))} on {ranks}, imbalance {ratios}>"

    def _repr_html_(self) -> str:
        found = summary(self.steps)
        followers = {name for name, phase in found["phases"].items() if "in_pipeline" in phase}
        phases = {
            name: Ratios(before, after, None if name in followers else best)
            for name, (before, after, best) in self._ratios().items()
        }
        return as_html(self.log.path.name, how_many(found), phases, warnings_of(self.steps))

    def _ratios(self) -> dict[str, tuple[float, float, float]]:
        """Return the imbalance ratios of every phase: before, after, and at best."""
        return {name: ratios_in(rows) for name, rows in phases_in(full_steps(self.steps)).items()}


def about(log: LengthLog, settings: LogSettings) -> dict[str, Any]:
    """Return what was planned, as documents have it."""
    topology = settings.setup.topology
    return {
        "log": [str(file) for file in log.files],
        "ranks": topology.num_ranks,
        "node_sizes": list(topology.node_sizes),
        "batch_per_rank": settings.batch_per_rank,
    } | ({} if settings.across is None else {"deferral": settings.across.to_json()})


def about_plan(path: str, log: LogPath | None = None) -> dict[str, Any]:
    """Return what a plan file was planned of, as documents have it; `log` is where its log is now."""
    plan_file = open_plan(path)
    claims = Claims(plan_file)
    if claims.is_saved:  # of lengths that it holds itself
        topology, files, batch = SavedClaims(plan_file).setup.topology, [], None
    else:
        settings = claims.settings
        topology, batch = settings.setup.topology, settings.batch_per_rank
        files = list(claims.sources[0]) if log is None else [str(file) for file in files_of(log)]
    return {
        "log": files, "ranks": topology.num_ranks, "node_sizes": list(topology.node_sizes), "batch_per_rank": batch
    }  # fmt: skip


def plan_log(
    log: Any, step: str | os.PathLike[str] | None = None, *, out: str | os.PathLike[str] | None = None, jobs: int = 1,
    engine: Executor | None = None, overwrite: bool = False, continued: str | os.PathLike[str] | None = None,
    at_step: int | None = None, **beside: Any,
) -> LogPlan:  # fmt: skip
    """Plan every global batch of a log, as ``balancer plan`` does.

    Parameters
    ----------
    log : path, sequence of paths, DataFrame, Arrow table, data set of Hugging Face's, or mapping of str to array
        One row for each sample: a log that :doc:`balancer plan </how_to/your_log>` reads, or a table in memory.
    step : path, optional
        A step file: ranks, batch, phases, cut, placement. Keywords override it.
    out : path, optional
        Where the plan is written: a file, or with a trailing slash a folder of parts. Not for a table in memory,
        because a plan file could not name it.
    jobs : int
        Processes that plan; several write a folder, or nothing.
    engine : concurrent.futures.Executor, optional
        Who plans in place of `jobs` processes: an executor of MPI, of Dask, or
        ``balancer.offline.ray_executor.RayExecutor()``. The plan is the same, byte for byte.
    overwrite : bool
        Replace what is at `out`, even if it is not a plan of the same request.
    continued : path, optional
        A plan of this log. The rest of its epochs, after its first `at_step` steps, is planned for other ranks.
    at_step : int, optional
        Steps of `continued` that were trained.
    **beside
        ``num_ranks``, ``ranks_per_node``, ``topology``, ``batch_per_rank``, ``home``, ``drop_last``, ``epochs``,
        ``shuffle``; ``window``, with ``step_tokens``, ``tokens_within`` and ``counts`` as of :func:`balancer.defer`,
        and ``stage``, a column; ``phases`` as of :func:`balancer.orchestrate`, or ``length``, ``cost`` and constraints
        (names of columns) of the only phase; ``layout``, a :class:`balancer.StepLayout` or its file, as ``balancer
        configure --out`` writes it; ``cut``, ``method``, ``placement``, ``eps`` and all other settings of planning.

    Returns
    -------
    LogPlan

    Raises
    ------
    TypeError, ValueError, InfeasibleError, SolverError
        An argument, a file or a row that cannot be used; a step that no plan satisfies.

    Examples
    --------
    >>> plan = plan_log({"tokens": [900, 100, 400, 600, 500, 500, 70, 7]}, num_ranks=2, batch_per_rank=2)
    >>> numbers = plan.summary()["phases"]["all"]
    >>> round(numbers["imbalance_ratio_before"], 3), round(numbers["imbalance_ratio_after"], 3)
    (1.3, 1.02)
    """
    if out is not None and is_table(log):
        _check_named(log)
    target = None if out is None else os.fspath(out)
    with opened_by(log, step, beside) as (opened, said):
        settings = settings_of(opened, said, beside | _left(log, continued, at_step, beside))
        who = as_count("jobs", jobs) if engine is None else engine
        found = plan_run(opened, settings, target, who=who, overwrite=overwrite)
    return LogPlan(opened, settings, found, target)


@contextlib.contextmanager
def opened_by(
    log: Any, step: str | os.PathLike[str] | None, beside: Mapping[str, Any]
) -> Iterator[tuple[LengthLog, StepFile]]:
    """Open a log, or a table, and a step file; errors in the context are told as Python's callers know things."""
    if isinstance(log, list | tuple) and not all(isinstance(path, str | os.PathLike) for path in log):
        raise ArgumentTypeError("log", "be a path, paths, or a table", "numbers: give {'tokens': numbers}")
    said = StepFile() if step is None else read_step(step)
    with _told(said.path):
        yield open_log(log), said


def _left(
    log: Any, continued: str | os.PathLike[str] | None, at_step: int | None, beside: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is left of a plan's epochs, as keywords."""
    if continued is None and at_step is None:
        return {}
    if continued is None or at_step is None:
        raise UsageError("{continued} and {at_step}, the steps of that plan that were trained, need each other")
    _check_named(log)
    if odd := [name for name in ("epochs", "shuffle") if beside.get(name) is not None]:
        raise UsageError(f"{{{odd[0]}}} cannot be combined with {{continued}}, which goes on in the order of that plan")
    return left_of(continued, log, at_step)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Tell errors in Python's words, and after a step file's name where there is one."""
    try:
        yield
    except WordedError as error:
        if not isinstance(error, InputError):
            raise (error.within(path) if path else error).in_words(_KEYWORDS) from error.__cause__
        if not isinstance(error, LengthUnknownError):
            raise
        such = f", such as length={error.likely!r}" * bool(error.likely)
        raise InputError(f"{error.what}\nsay which: length='COLUMN[+COLUMN...]'{such}") from None


def _check_named(log: Any) -> None:
    if log.table is not None if isinstance(log, LengthLog) else is_table(log):
        raise InputError(
            "a plan file names its log, and a table in memory has no name: write it to a file, and plan that"
        )


def settings_of(log: LengthLog, said: StepFile, beside: Mapping[str, Any], of: str = "plan_log") -> LogSettings:
    """Return how a log is planned by what a step file says, by keywords of a function, or by both."""
    known = tuple(spec.name for spec in fields(PlanSettings))
    of_step = ("phases", "length", "cost", *CONSTRAINTS)
    names = (*_OF_RANKS, *_OF_TOP, *_OF_LOG, *_OF_DEFERRAL, *known, *of_step, "layout")
    if odd := [name for name in beside if name not in names]:
        # The first by name: the same call must always give the same error.
        meant = did_you_mean(min(odd), (*names, *_OWN[of]))
        raise TypeError(f"{of} has no argument {min(odd)!r}{meant}; see help(balancer.{of})")
    ranks = {name: beside[name] for name in _OF_RANKS if beside.get(name) is not None}
    topology = as_topology(**{"num_ranks": None} | ranks) if ranks or not said.path else None
    top = {name: beside[name] for name in ("step_tokens", "layout", *_OF_TOP) if beside.get(name) is not None}
    top |= {} if topology is None else {"ranks": topology.num_ranks}
    deferral = {name: beside[name] for name in _OF_DEFERRAL if name != "step_tokens" and beside.get(name) is not None}
    try:
        said = said.with_keys(**top, deferral=changed(said.deferral, **deferral))
    except (ArgumentError, ArgumentTypeError) as error:
        raise InputError(str(error)) from None
    own = {name: beside[name] for name in ("cost", *CONSTRAINTS) if name in beside}
    phases, length = beside.get("phases"), beside.get("length")
    given = None
    if phases is not None or length is not None or own or not said.path:
        of_file = said_of(said.phase[0]) if phases is None and said.phase else {}
        if len(said.phase) > 1 and of_file:
            which = "length" if length is not None else min(own)
            raise InputError(f"{said.path}: {which} is for a step of one phase, and these are {', '.join(said.names)}: "
                             "give phases=[Phase(...), ...]")  # fmt: skip
        length = length if length is not None else of_file.get("length")
        given = _phases(log, phases, length, {**of_file, **own})
        said = said.with_keys(phase=tuple(PhaseKeys(name=each.name, cost=each.cost) for each in given))
    planned = {name: beside[name] for name in known if name in beside}
    if said.layout is not None and isinstance(cut := as_cut(planned.pop("cut", None)), InSlots):
        said = said.with_cut(as_dict(cut))
    of_log = {name: beside[name] for name in _OF_LOG if name in beside}
    return settings_of_step(said, log, phases=given, topology=topology, planned=planned, **of_log)


def _phases(
    log: LengthLog, phases: Sequence[Phase] | Mapping[str, str] | None, length: str | None, of_phase: dict[str, Any]
) -> tuple[Phase, ...]:
    """Return the phases, or the only one by its length, cost and constraints."""
    if phases is not None:
        if length is not None or of_phase:
            odd = "length" if length is not None else min(of_phase)
            raise InputError(f"{odd} cannot be combined with phases, each of which has its own")
        return as_phases(phases)
    columns = default_columns(log) if length is None else choose_length(log, length)
    return (Phase(**{"name": SINGLE_PHASE, **of_phase, "length": "+".join(columns)}),)
