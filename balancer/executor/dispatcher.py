"""The dispatcher, which a trainer calls each step. It decides nothing.

A step is told in :meth:`Dispatcher.step`: draw and read the mini-batch, say to all ranks what it is like
(``gathered.py``), plan, agree on the plan (``ranks.py``), move every element once, and hand over (``dispatched.py``).
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from balancer._version import __version__
from balancer.cost import CostModel, OnlineCost
from balancer.described import as_dict, said_of
from balancer.errors import InputError
from balancer.executor.arguments import as_setup
from balancer.executor.dispatched import Dispatched, Shared
from balancer.executor.exchange import compile_runs
from balancer.executor.fields import Field
from balancer.executor.gathered import Gathered, Message, put_together, read_batch
from balancer.executor.layouts import tensor_groups
from balancer.executor.online import Correction, CostCorrection, as_online
from balancer.executor.ranks import TIMEOUT, Ranks, attempt, check_failed, summary
from balancer.executor.ways import way_names
from balancer.laid_out import LaidOut, laid_out
from balancer.layouts.layout import ModuleLayout, StepLayout, read_layout
from balancer.layouts.mesh import Mesh
from balancer.plan.balance_report import BalanceReport
from balancer.plan.step_plan import StepPlan
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup, as_topology
from balancer.step import StepFile, read_step
from balancer.step_planner import plan_step
from solvers import USES_CLOCK
from solvers._jit import compile_at_once
from solvers.errors import WordedError

__all__ = ["Dispatcher", "all_have_ended"]

PLANNING = ("replicate", "broadcast")
"""Who plans: every rank the same, or rank 0 for all."""

_STEPS_ALIKE = 3  # in which all samples are of one length: that is padding, or there is nothing to balance


def all_have_ended(statuses: Sequence[str]) -> bool:
    """Whether no rank has anything to draw."""
    return all(status == "ended" for status in statuses)


class Dispatcher:
    """Rearranges the mini-batches of a data-parallel group, step by step. All its ranks make it at the same time.

    Parameters
    ----------
    dp_group : ProcessGroup, optional
        The data-parallel group; by default all ranks.
    ranks_per_node : int, optional
        Must divide the ranks of the group; by default all share one node.
    phases : sequence of Phase, or mapping of name to length, optional
        The modules of a multimodal model, as :func:`balancer.orchestrate` takes them. A column that they name is a
        field, or one that :meth:`dispatch` is given. Of a field the lengths count, or, where it has whole numbers for
        each sample, these numbers. By default there is one phase, which computes whole samples.
    fields : mapping of str to str, optional
        The phase that takes each field. An encoder gets the field's items. ``"llm:own"`` takes the pieces that the
        samples of that phase bring from home. All other fields go to the last phase, with their samples.
    length : str, optional
        Without phases: the columns whose sum is a sample's length, ``"input_ids"`` or ``"text+image"``; by default
        those of the only ragged field.
    cost : str, CostModel, OnlineCost, or mapping of str to OnlineCost
        Without phases: as :func:`balancer.balance` takes it, or an :class:`balancer.cost.OnlineCost`, which
        :meth:`observe` corrects. With phases: the costs to correct by phase, in place of those phases' own.
    planning : str
        ``"replicate"``: every rank computes the plan. ``"broadcast"``: rank 0 does, for methods that read the clock.
    replica_group : ProcessGroup, optional
        Tensor, context and pipeline peers of this rank. All of them get the samples and the plan of their first rank;
        what the others hand in is not looked at.
    layouts : StepLayout or mapping of str to ModuleLayout or Mesh, optional
        How the ranks, which then are GPUs, are split for each phase, as :func:`balancer.orchestrate` takes it. It takes
        the place of a replica group. See :meth:`dispatch`.
    device : torch.device or str, optional
        Where fields are brought before the exchange; by default they stay where they are. Text stays on the host.
    timeout : timedelta
        How long any one collective waits for a rank.
    settings
        Further keywords of :func:`balancer.balance` or :func:`balancer.orchestrate`: ``method``, ``time_budget``,
        ``stop_at``, ``equal_counts``, ``max_tokens_per_rank``, ``min_samples_per_rank``, ``rank_speeds``; and
        ``cut``: ``MicroBatches(8192)``, or ``SequenceGroups(...)``, by which ranks share long samples: see
        :meth:`dispatch`.
        Constraints that need a value for each sample name a column here, which is gathered with the lengths:
        ``keep_together="prompt"``; ``caps={"patches": 60_000, "text+audio": 8192}``, the most of each that a rank gets;
        ``allowed_ranks="ranks"``, a column of the ranks on which a sample may run, a list or one number a sample. With
        phases, constraints are those of each :class:`balancer.Phase`.

    Attributes
    ----------
    current : Dispatched or None
        The step that :meth:`dispatch` returned, or a :class:`PrefetchDispatcher` yielded, last.

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used.
    """

    def __init__(
        self,
        dp_group: Any = None,
        ranks_per_node: int | None = None,
        phases: Sequence[Phase] | Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        length: str | None = None,
        cost: str | CostModel | OnlineCost | Mapping[str, OnlineCost] = "linear",
        planning: str = "replicate",
        replica_group: Any = None,
        layouts: StepLayout | Mapping[str, ModuleLayout | Mesh] | None = None,
        device: torch.device | str | None = None,
        timeout: timedelta = TIMEOUT,
        **settings: Any,
    ) -> None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise RuntimeError("call torch.distributed.init_process_group before making a Dispatcher")
        if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
            raise ValueError(f"timeout must be a timedelta above 0, got {timeout!r}")
        self.ranks = Ranks(dp_group, replica_group, timeout)

        def make() -> tuple[Setup, Correction | None]:
            if layouts is not None and replica_group is not None:
                raise ValueError(
                    "replica_group cannot be combined with layouts, which say who shares samples: leave it out"
                )
            online = as_online(cost, phases)
            fixed = "linear" if isinstance(cost, OnlineCost | Mapping) else cost
            topology = as_topology(self.ranks.size, ranks_per_node)
            replica_size = 1 if replica_group is None else torch.distributed.get_world_size(replica_group)
            setup = as_setup(topology, phases, fixed, length, settings, layouts, replica_size)
            _check_planning(planning, setup)
            for field, way in (fields or {}).items():
                if way not in (names := way_names(setup)):
                    raise ValueError(f"fields[{field!r}] must be one of {', '.join(names)}, got {way!r}")
            return setup, Correction(online, setup, self._speaks) if online else None

        # Settings are the same on all ranks from here on, so that all make the same groups, and need not be compared.
        made = self.ranks.alike("making a dispatcher", make, lambda made: _settings(made[0], fields or {}, planning))
        self.setup, self._correction = made
        self._broadcasts = planning == "broadcast"
        self._most: tuple[str, int | None] = ("", None)  # the file that says how many samples a rank has, and that
        self._asked = {
            name.strip() for phase in self.setup.phases for text in phase.numbers for name in text.split("+")
        }
        self.ranks.tensor = tensor_groups(self.setup, self.ranks)
        groups = self.ranks.groups_of(self.setup.rank_sets())
        self.device = None if device is None else torch.device(device)
        self._shared = Shared(dict(fields or {}), self.device, groups, {})
        self.current: Dispatched | None = None
        self._looks_at_lengths, self._steps_alike, self._one_length = self.ranks.size > 1, 0, 0
        self._looks_at_batches = self.ranks.size > 1
        self._reports: dict[str, BalanceReport] = {phase.name: BalanceReport() for phase in self.setup.phases}
        # A kernel that begins as Python is compiled in some later step, and all ranks would wait for it.
        compile_at_once()
        compile_runs()

    @classmethod
    def from_step(cls, step: str | os.PathLike[str], dp_group: Any = None, **beside: Any) -> Dispatcher:
        """Make a dispatcher of a step file (``step.toml``): nodes, phases with costs and constraints, cut, placement.

        Parameters
        ----------
        step : path
            As ``balancer plan --step`` takes it. Its ranks must be those of the group, and no rank may hand in more
            than its ``batch_per_rank``; what else a file says of how rows are drawn is the loader's.
        dp_group, **beside
            As the class takes them; keywords given here win.
        """
        file = read_step(step)
        if file.across():
            raise InputError(f"{file.path}: a dispatcher gets its samples as they were drawn: leave [deferral] and "
                             "step_tokens to balancer plan")  # fmt: skip
        size = torch.distributed.get_world_size(dp_group)
        if file.ranks not in (None, size):
            raise ValueError(f"{file.path}: ranks must be {size}, those of the group, got {file.ranks}")
        try:
            made = cls(dp_group, **_said_by(file.with_keys(ranks=size)) | beside)
        except WordedError as error:
            raise error.within(file.path) from None
        made._most = file.path, file.batch_per_rank
        return made

    @property
    def rank(self) -> int:
        """Number of this rank in the data-parallel group."""
        return self.ranks.rank

    @property
    def cost_correction(self) -> Mapping[str, CostCorrection]:
        """How the costs are corrected, by phase (``"all"``, where nobody named any): the same on all ranks."""
        return {} if self._correction is None else dict(self._correction.state)

    def observe(self, seconds: float | Mapping[str, float | None] | None) -> None:
        """Report how long this rank took for :attr:`current`; costs are corrected by what all ranks report.

        Any rank may leave it out, in any step. A report is sent with the lengths of the next step that is made, and
        changes the plan after that one. A correction is used while it predicts better than the cost that was given;
        when it does not, the planner's rank warns. Of replica peers, the leader's report counts.

        Parameters
        ----------
        seconds : float, or mapping of str to float
            What the rank's own samples took, without waiting for other ranks; with several phases, by phase. With
            pipeline stages, that of the forwards, added up over the stages of the phase. None: no report.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            No step was dispatched; no cost is corrected; a phase whose cost is not; seconds that are not positive and
            finite.
        """
        if self._correction is None:
            raise ValueError("no cost is corrected: give the dispatcher cost=OnlineCost(...)")
        if seconds is not None:
            self._correction.observe(self.current, seconds)

    def dispatch(self, samples: Any, columns: Mapping[str, ArrayLike | Ragged] | None = None) -> Dispatched:
        """Exchange this rank's mini-batch for its balanced share of the global batch. All ranks call it.

        Parameters
        ----------
        samples : mapping of str to field, or one field
            An entry a sample: a tensor or a NumPy array (the first dimension), a jagged nested tensor, a
            :class:`RaggedTensor`, a list of tensors, or of lists of tensors (several items a sample). The entries of
            any other list are pickled one by one. Of any number of samples, none included: ``{}`` or ``[]``. Replica
            peers may give None.
        columns : mapping of str to int64[n] or lists, optional
            What plans need of each sample and no field shows: a number or a list of numbers a sample, under the names
            by which `phases`, `length` and constraints ask for them. They do not travel.

        Returns
        -------
        Dispatched
            Its fields in the form in which they came; arrays, and lists of tensors of one number, as one tensor. Where
            ranks share samples, a field is cut if each of its rows is as long as the plan says of its sample: an entry
            then is a rank's share of a sample, with zeros where the plan pads. All other rows go whole to every rank of
            the group. With layouts, an entry of a field that is cut is the share of the GPU's shard. Tensor replicas
            have the same share: each gets a window of it, and they gather the rest. Fields of ``"llm:own"`` are cut
            into the segments in each GPU's own window. All other rows go to all GPUs of the replica, those of all
            pipeline devices.

        Raises
        ------
        ExecutorError
            Other ranks failed, or ranks have other fields, lengths or plans: it names them, and what. Or a rank is gone
            or stands still: then a call ends within the timeout.
        TypeError, ValueError, InfeasibleError, SolverError
            What this rank handed in cannot be used, or cannot be planned.
        """
        step = self.step(lambda: (samples, columns or {}), self.ranks)
        assert step is not None
        return self.hand_over(step)

    def step(
        self, draw: Callable[[], Any], onward: Ranks, is_over: Callable[[Sequence[str]], bool] = all_have_ended
    ) -> Dispatched | None:
        """Make one step of what a rank draws: fields and columns, or why there are none, as ``"ended"``.

        None where the ranks' statuses say that all is over. Later exchanges of the step go by `onward`.
        """
        # Draw and read; the others must hear of a rank that cannot.
        read, failure = attempt(partial(self._read, draw))
        held, message = read or ({}, Message(error=summary(failure) if failure else None))
        if self._correction is not None:
            message = replace(message, costs=self._correction.message())
        # Say what the mini-batch is like, all but the payload.
        said: list[Message] = self.ranks.say(message)
        if failure is not None:
            raise failure
        check_failed("reading a mini-batch", [each.error for each in said])
        if is_over([each.status for each in said]):
            return None
        gathered = put_together(said)
        self._learn(gathered)
        # Plan, and agree on the plan and all that it was made of, and that the exchange depends on.
        digests = gathered.digests()
        plan = self.ranks.alike(
            "planning", lambda: self._planned(gathered), lambda plan: {**digests, "the plan": plan.digest()}
        )
        # Move, and hand over.
        return Dispatched(plan, gathered, held, self._shared, self.ranks, onward)

    def _read(self, draw: Callable[[], Any]) -> tuple[dict[str, Field], Message]:
        if not self.ranks.leads:  # what replica peers have is not looked at
            return {}, Message()
        drawn = draw()
        if isinstance(drawn, str):
            return {}, Message(status=drawn)
        samples, columns = drawn
        held, message = read_batch(samples, columns, self._asked, self.ranks.memory)
        path, most = self._most
        if most is not None and message.count > most:
            raise ValueError(f"{path}: batch_per_rank is {most}, but this rank hands in {message.count} samples")
        if self.device is None:
            return held, message
        held = {name: field.on(self.device) for name, field in held.items()}
        return held, replace(message, fields={name: (field.kind, field.rows) for name, field in held.items()})

    def _planned(self, gathered: Gathered) -> StepPlan | None:
        """Plan; where rank 0 plans for all, None on the others if it could not."""

        def plan() -> StepPlan:
            try:
                return plan_step(gathered.step(self.setup))
            except WordedError as error:  # those that name a sample say on which rank it is
                raise error.in_words(gathered.wording()) from None

        if not self._broadcasts:
            return plan()
        words, failure = attempt(lambda: pickle.dumps(plan())) if self._speaks else (None, None)
        words = self.ranks.tell(words)
        if failure is not None:
            raise failure
        return None if words is None else pickle.loads(words)  # noqa: S301 (of own ranks)

    @property
    def _speaks(self) -> bool:
        """Whether this is the rank that plans, fits costs and warns for all."""
        return self.ranks.rank == 0 and self.ranks.leads

    def _learn(self, gathered: Gathered) -> None:
        """Take over the costs that were said, and look whether the loader deals anything out."""
        if self._correction is not None:
            self.setup = self._correction.take_in(gathered.costs)
        if self._looks_at_batches and len(gathered.home.samples):
            self._looks_at_batches = False
            if gathered.is_the_same_on_all_ranks() and self._speaks:
                warnings.warn(
                    f"all {self.ranks.size} ranks drew the same mini-batch in the first step. If that is no chance, "
                    "each of them trains on all of the data: give the loader a torch.utils.data.DistributedSampler, "
                    "or let the trainer prepare it",
                    stacklevel=4,
                )

    def hand_over(self, step: Dispatched) -> Dispatched:
        """Make a step the current one, and count it in the report: steps made ahead count once they are taken."""
        self.current, plan = step, step.step
        self._warn_of_one_length(plan.last.lengths)
        for name, phase in plan.phases.items():
            self._reports[name] += BalanceReport.of_plan(phase.plan, plan.runtime_s, step.exchange_s)
        return step

    def _warn_of_one_length(self, lengths: NDArray[np.int64]) -> None:
        """Warn, once and on the first rank, where all samples of the first steps are of one length: padded."""
        if not self._looks_at_lengths or not len(lengths):
            return
        self._steps_alike += 1
        self._one_length = self._one_length or int(lengths[0])
        alike = bool((lengths == self._one_length).all())
        self._looks_at_lengths = alike and self._steps_alike < _STEPS_ALIKE
        if alike and not self._looks_at_lengths and self._speaks:
            warnings.warn(
                f"all samples of the first {_STEPS_ALIKE} steps are of length {self._one_length}, so nothing can be "
                "balanced. Padding makes them alike: hand in unpadded samples, as lists of tensors, and pad after the "
                "exchange, with PrefetchDispatcher(..., collate=...)",
                stacklevel=4,
            )

    def report(self, phase: str | None = None) -> BalanceReport:
        """Return what balancing did over the steps handed out so far, as their plans say; nothing is sent.

        Parameters
        ----------
        phase : str, optional
            Of several phases, which; by default the last. Seconds of planning and exchange are those of all phases.

        Raises
        ------
        KeyError
            There is no such phase.
        """
        if phase is not None and phase not in self._reports:
            raise KeyError(f"no phase {phase!r}; phases are {', '.join(self._reports)}")
        return self._reports[phase or list(self._reports)[-1]]


def _said_by(file: StepFile) -> dict[str, Any]:
    """Return the arguments of a dispatcher that a step file says."""
    found = LaidOut(file, None, None)
    if isinstance(file.layout, StepLayout):
        found = laid_out(file, file.layout)
    elif file.layout is not None:
        found = laid_out(file, read_layout(file.layout), file.layout)
    file, given = found.step, said_of(found.step.plan)
    if found.cut is not None or file.cut is not None:
        given["cut"] = found.cut or file.made_cut()
    given |= {} if found.layout is None else {"layouts": found.layout}
    given |= {} if file.ranks_per_node is None else {"ranks_per_node": file.ranks_per_node}
    if not file.is_single:
        given["phases"] = file.phases()
    elif file.phase:
        of_others = ("name", "model", "pieces", "frozen", "bytes_in", "bytes_out")
        given |= {name: value for name, value in said_of(file.phase[0]).items() if name not in of_others}
    return given


def _check_planning(planning: str, setup: Setup) -> None:
    """Raise ValueError if who plans is none of those there are, or that cannot go well."""
    if planning not in PLANNING:
        raise ValueError(f"planning must be one of {', '.join(PLANNING)}, got {planning!r}")
    method = setup.settings.method
    if planning == "replicate" and method in USES_CLOCK:
        raise ValueError(
            f"method {method!r} reads the clock, so that ranks would find different plans; use planning='broadcast'"
        )


def _settings(setup: Setup, fields: Mapping[str, str], planning: str) -> dict[str, Any]:
    """Return all settings by the names that errors call them by."""
    given, cut = setup.to_json(), setup.settings.cut
    of_cut = cut.to_json() | as_dict(cut, all_keys=True)
    planned = as_dict(setup.settings, all_keys=True) | {"cut": of_cut.pop("kind")}
    planned |= {f"cut.{name}": value for name, value in of_cut.items()}
    laid_out = {shown: given[name] for name, shown in (("layout", "layouts"), ("gpus", "gpus")) if name in given}
    said = {**given["topology"], **planned, **laid_out, "fields": sorted(fields.items()), "planning": planning}
    found = {"package version": __version__} | {f"setting {name!r}": value for name, value in said.items()}
    for phase in setup.phases:
        where = "" if phase.name == SINGLE_PHASE else f" of phase {phase.name!r}"
        found |= {f"setting {name!r}{where}": value for name, value in as_dict(phase, all_keys=True).items()}
    return found
