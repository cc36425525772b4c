"""The dispatcher, which a trainer calls each step. It decides nothing.

A step is: read the mini-batch (``fields.py``), gather all ranks' lengths (``gathering.py``), plan on every rank or on
one and agree on the plan (``agreement.py``), move every byte once (``dispatched.py``, which also holds the ways back).
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from balancer.cost import CostModel, OnlineCost
from balancer.described import said_of
from balancer.errors import InputError
from balancer.executor.agreement import agreed_plan, check_groups, check_planning
from balancer.executor.arguments import as_setup
from balancer.executor.correction import Correction, CostCorrection, as_online
from balancer.executor.dispatched import SINGLE_FIELD, Dispatched
from balancer.executor.features import Features
from balancer.executor.fields import Field, read_field
from balancer.executor.gathering import Gathered, gather, read_if_leader
from balancer.executor.meshes import read_meshes, tensor_groups
from balancer.executor.message import MiniBatch, Status, as_columns
from balancer.executor.peers import Peers
from balancer.executor.same_batches import SameBatches
from balancer.executor.streams import stream_names
from balancer.plan.balance_report import BalanceReport
from balancer.plan.step_plan import StepPlan
from balancer.problem.layout import ModuleLayout, StepLayout
from balancer.problem.mesh import Mesh
from balancer.problem.phases import Phase
from balancer.problem.ragged import Ragged
from balancer.problem.setup import as_topology
from balancer.problem.topology import Topology
from balancer.step import read_step
from solvers._jit import compile_at_once
from solvers.arguments import as_index

__all__ = ["Dispatcher"]

TIMEOUT = timedelta(minutes=2)

_STEPS_ALIKE = 3  # in which all samples are of one length: that is padding, or there is nothing to balance


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
        field, or one that :meth:`dispatch` is given. Of a field the lengths count, or, where it has a number for each
        sample, these numbers. By default there is one phase, which computes whole samples.
    topology : Topology, optional
        In place of `ranks_per_node`, for nodes of unequal size.
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
        ``"replicate"``: every rank computes the plan. ``"broadcast"``: one rank does, for methods that read the clock.
    planner_rank : int
        The rank that plans for all, and that fits costs which are corrected.
    replica_group : ProcessGroup, optional
        Tensor, context and pipeline peers of this rank. All of them get the samples and the plan of their first rank;
        what the others hand in is not looked at.
    layouts : StepLayout or mapping of str to ModuleLayout or Mesh, optional
        How the ranks, which then are GPUs, are split for each phase, as :func:`balancer.orchestrate` takes it. It takes
        the place of a replica group. See :meth:`dispatch`.
    meshes : mapping of str to DeviceMesh or ProcessGroup, optional
        With `layouts`, of any phases: where the GPUs are, by axes ``pp``, ``dp``, ``cp``, ``sp``, ``tp`` (axes that
        begin alike, as ``dp_shard``, count together); or this rank's tensor group alone. Tensor groups that are not
        given are made.
    exchange : str
        ``"direct"``; ``"node_wise"``: first within the node, then between equal places of all nodes; or ``"auto"``:
        node-wise from 64 ranks on where nodes are of equal size.
    device : torch.device or str, optional
        Where fields are brought before the exchange; by default they stay where they are. Text stays on the host.
    timeout : timedelta
        How long any one collective waits for a rank before it is taken for lost.
    same_batches : bool
        True: all ranks draw the same mini-batches on purpose. Otherwise three such steps are an error: the loader deals
        nothing out, and every rank trains on all of the data.
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
        topology: Topology | None = None,
        fields: Mapping[str, str] | None = None,
        length: str | None = None,
        cost: str | CostModel | OnlineCost | Mapping[str, OnlineCost] = "linear",
        planning: str = "replicate",
        planner_rank: int = 0,
        replica_group: Any = None,
        layouts: StepLayout | Mapping[str, ModuleLayout | Mesh] | None = None,
        meshes: Mapping[str, Any] | None = None,
        exchange: str = "auto",
        device: torch.device | str | None = None,
        timeout: timedelta = TIMEOUT,
        same_batches: bool = False,
        **settings: Any,
    ) -> None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise RuntimeError("call torch.distributed.init_process_group before making a Dispatcher")
        size = torch.distributed.get_world_size(dp_group)
        topology = as_topology(size if topology is None else None, ranks_per_node, topology)
        online = as_online(cost, phases)
        fixed = "linear" if isinstance(cost, OnlineCost | Mapping) else cost
        if layouts is not None and replica_group is not None:
            raise ValueError(
                "replica_group cannot be combined with layouts, which say who shares samples: leave it out"
            )
        group = torch.distributed.group.WORLD if dp_group is None else dp_group
        laid_out, groups = read_meshes(layouts, meshes, group)
        replica_size = 1 if replica_group is None else torch.distributed.get_world_size(replica_group)
        self.setup = as_setup(topology, phases, fixed, length, settings, laid_out, replica_size)
        check_planning(planning, self.setup)
        as_index("planner_rank", planner_rank, size)
        if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
            raise ValueError(f"timeout must be a timedelta above 0, got {timeout!r}")
        self._planner = planner_rank if planning == "broadcast" else None
        self._stream_of_field = dict(fields or {})
        for field, stream in self._stream_of_field.items():
            if stream not in (names := stream_names(self.setup)):
                raise ValueError(f"fields[{field!r}] must be one of {', '.join(names)}, got {stream!r}")
        self.device = None if device is None else torch.device(device)
        self.peers = Peers(dp_group, replica_group, topology, exchange, timeout)
        self._correction: Correction | None = None
        if online:
            fits = self.peers.rank == planner_rank and self.peers.leads
            self._correction = Correction(online, self.setup, planner_rank, fits)
            self.setup = self._correction.setup
        self.features = Features(self.peers)
        check_groups(self.peers, self.setup)
        self.peers.join(tensor_groups(self.setup, groups, group, timeout))
        self._same_batches = SameBatches(size, same_batches)
        self._groups = self.peers.groups_of(self.setup.rank_sets())
        self.current: Dispatched | None = None
        self._looks_at_lengths, self._steps_alike, self._one_length = size > 1, 0, 0
        self._reports: dict[str, BalanceReport] = {phase.name: BalanceReport() for phase in self.setup.phases}
        # A kernel that begins as Python is compiled in some later step, and all ranks would wait for it.
        compile_at_once()

    @classmethod
    def from_step(cls, step: str | os.PathLike[str], dp_group: Any = None, **beside: Any) -> Dispatcher:
        """Make a dispatcher of a step file (``step.toml``): nodes, phases with costs and constraints, cut, placement.

        Parameters
        ----------
        step : path
            As ``balancer plan --step`` takes it. Ranks that it names must be those of the group.
        dp_group, **beside
            As the class takes them; keywords given here win.
        """
        file = read_step(step)
        if file.across():
            raise InputError(f"{file.path}: a dispatcher gets its samples as they were drawn: leave [deferral] and "
                             "step_tokens to balancer plan")  # fmt: skip
        given: dict[str, Any] = said_of(file.plan)
        given |= {} if file.cut is None else {"cut": file.made_cut()}
        size = torch.distributed.get_world_size(dp_group)
        if file.ranks not in (None, size):
            raise ValueError(f"{file.path}: ranks must be {size}, those of the group, got {file.ranks}")
        given |= {} if file.ranks_per_node is None else {"ranks_per_node": file.ranks_per_node}
        if not file.is_single:
            given["phases"] = file.phases()
        elif file.phase:
            of_others = ("name", "model", "pieces", "frozen", "bytes_in", "bytes_out")
            given |= {name: value for name, value in said_of(file.phase[0]).items() if name not in of_others}
        return cls(dp_group, **given | beside)

    @property
    def rank(self) -> int:
        """Number of this rank in the data-parallel group."""
        return self.peers.rank

    def forget_features(self) -> None:
        """Agree anew on dtype and shape of activations; all ranks call this when a model changes them."""
        self.features.forget()

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

    def dispatch(self, samples: Any, lengths: Mapping[str, ArrayLike | Ragged] | None = None) -> Dispatched:
        """Exchange this rank's mini-batch for its balanced share of the global batch. All ranks call it.

        Parameters
        ----------
        samples : mapping of str to field, or one field
            An entry a sample: a tensor (its first dimension), a nested tensor, a :class:`RaggedTensor`, a NumPy array,
            or a list of tensors, of lists of tensors (several items a sample), of str, bytes, int, float or bool. Of
            any number of samples, none included: ``{}`` or ``[]``. Replica peers may give None.
        lengths : mapping of str to int64[n] or lists, optional
            Further columns, for `phases`, `length` or constraints: a number or a list of numbers a sample.

        Returns
        -------
        Dispatched
            Its fields in the form in which they came. Where ranks share samples, a field is cut if each of its rows is
            as long as the plan says of its sample: an entry then is a rank's share of a sample, with zeros where the
            plan pads. All other rows go whole to every rank of the group. With layouts, an entry of a field that is cut
            is the share of the GPU's shard. Tensor replicas have the same share: each gets a window of it, and they
            gather the rest. Fields of ``"llm:own"`` are cut into the segments in each GPU's own window. All other rows
            go to all GPUs of the replica, those of all pipeline devices.

        Raises
        ------
        PlanMismatchError, FieldMismatchError, PeerError, PeerLostError
            See :mod:`balancer.executor.errors`. Nothing hangs: a call ends within a few timeouts.
        TypeError, ValueError, InfeasibleError, SolverError
            What this rank handed in cannot be used, or cannot be planned.
        """
        batch, failure = read_if_leader(self.peers, lambda: self.read(samples, lengths or {}))
        gathered = self.gather(batch, Status.READY, failure)
        return self.hand_out(self.plan_and_move(batch, gathered, self.peers, self.features))

    def hand_out(self, step: Dispatched) -> Dispatched:
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
        if alike and not self._looks_at_lengths and self.peers.rank == 0 and self.peers.leads:
            warnings.warn(
                f"all samples of the first {_STEPS_ALIKE} steps are of length {self._one_length}, so nothing can be "
                "balanced. Padding makes them alike: hand in unpadded samples, as lists of tensors, and pad after the "
                "exchange, with PrefetchDispatcher(..., collate=...)",
                stacklevel=3,
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

    def gather(self, batch: MiniBatch | None, status: Status, failure: Exception | None = None) -> Gathered:
        """Gather lengths: the first half of :meth:`dispatch`. `status` says why there is no batch."""
        correction = self._correction
        gathered = gather(self.peers, batch, status, failure, None if correction is None else correction.message())
        if correction is not None:
            self.setup = correction.take_in(gathered.costs)
        self._same_batches.check(gathered, self.setup)
        return gathered

    def plan_and_move(
        self, batch: MiniBatch | None, gathered: Gathered, onward: Peers, features: Features
    ) -> Dispatched:
        """Plan and exchange: the second half. Later exchanges of the step go by the groups of `onward`."""
        plan = agreed_plan(self.peers, self.setup, gathered, self._planner)
        return self.move(batch, gathered, plan, onward, features)

    def move(
        self, batch: MiniBatch | None, gathered: Gathered, plan: StepPlan, onward: Peers, features: Features
    ) -> Dispatched:
        """Exchange by a plan that all ranks hold."""
        # Decided from what all ranks said, as one without samples knows no device of its own.
        device = self.device
        if device is None:
            on_cuda = any(spec.device == "cuda" for spec in gathered.specs.values())
            device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
        began = time.perf_counter()
        step = Dispatched(plan, self.peers, gathered, self._stream_of_field, batch, features, device, self._groups)
        step.peers, step.exchange_s = onward, time.perf_counter() - began
        return step

    def read(self, samples: Any, lengths: Mapping[str, ArrayLike | Ragged]) -> MiniBatch:
        """Read what a caller hands in to :meth:`dispatch`."""
        named = samples if isinstance(samples, Mapping) else {SINGLE_FIELD: samples}
        read = {name: read_field(name or "samples", data) for name, data in named.items()}
        columns = as_columns({**self._numbers_of(read), **lengths})
        fields = {name: self._placed(field) for name, field in read.items()}
        if not all(isinstance(name, str) for name in named):
            raise TypeError(f"fields must have names that are str, got {list(named)}")
        sizes = {name: len(field.rows) for name, field in fields.items()}
        sizes |= {f"lengths[{name!r}]": len(column) for name, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"fields must have the same number of samples, got {sizes}")
        return MiniBatch(next(iter(sizes.values()), 0), fields, columns)

    def _numbers_of(self, fields: Mapping[str, Field]) -> dict[str, list[Any]]:
        """Return the fields that hold a number a sample and are asked for as lengths: the numbers are the lengths."""
        asked = {name.strip() for phase in self.setup.phases for text in phase.numbers for name in text.split("+")}
        return {
            name: field.values.tolist()
            for name, field in fields.items()
            if name in asked and isinstance(field.values, Tensor) and field.spec.fixed and not field.spec.trailing
        }

    def _placed(self, field: Field) -> Field:
        if self.device is None or field.spec.form in ("str", "bytes", ""):
            return field
        return Field(replace(field.spec, device=self.device.type), field.rows, field.on(self.device))
