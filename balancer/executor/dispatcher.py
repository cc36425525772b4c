"""The dispatcher: lengths gathered, a plan agreed on, every byte moved once. It decides nothing."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from numpy.typing import ArrayLike

from balancer.cost import CostModel, OnlineCost
from balancer.executor.agreement import agreed_plan, check_groups, check_planning
from balancer.executor.arguments import as_setup
from balancer.executor.correction import Correction, CostCorrection, as_online
from balancer.executor.dispatched import SINGLE_FIELD, Dispatched
from balancer.executor.features import Features
from balancer.executor.fields import Field, read_field
from balancer.executor.gathering import Gathered, gather
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
from balancer.problem.topology import Topology
from solvers._jit import compile_at_once
from solvers.arguments import as_index

__all__ = ["Dispatcher"]

TIMEOUT = timedelta(minutes=2)


class Dispatcher:
    """Rearranges the mini-batches of a data-parallel group, step by step; all its ranks make it at the same time.

    Parameters
    ----------
    dp_group : ProcessGroup, optional
        The data-parallel group; by default all ranks.
    topology : Topology or int, optional
        Nodes of the group, or ranks a node; by default one node.
    phases : sequence of Phase, or mapping of name to items, optional
        The modules of a multimodal model, as :func:`balancer.orchestrate` takes them. Columns that they name are
        fields, for their lengths, or given to :meth:`dispatch`. By default one phase that computes whole samples.
    fields : mapping of str to str, optional
        Which phase takes a field: an encoder gets its items; ``"llm:own"`` are the pieces that the samples of that
        phase bring in besides. Other fields travel with their samples to the last phase.
    length : str, optional
        Without phases: the columns whose sum is a sample's length, ``"input_ids"`` or ``"text+image"``; by default
        those of the only ragged field.
    cost : str, CostModel, OnlineCost, or mapping of str to OnlineCost
        Without phases; as :func:`balancer.balance` takes it. An :class:`balancer.cost.OnlineCost` is corrected by what
        :meth:`observe` is told. With phases, a mapping of those whose costs are corrected, in place of what they have.
    planning : str
        ``"replicate"``: every rank computes the plan. ``"broadcast"``: one rank does, for methods that read the clock.
    planner_rank : int
        Who plans for all, and fits costs that are corrected.
    replica_group : ProcessGroup, optional
        Tensor, context and pipeline peers of this rank. They get the samples and plan of their first rank; theirs are
        not looked at.
    layouts : StepLayout or mapping of str to ModuleLayout or Mesh, optional
        How the ranks, which are GPUs then, are split for each phase, as :func:`balancer.orchestrate` takes it; in place
        of a replica group. See :meth:`dispatch`.
    meshes : mapping of str to DeviceMesh or ProcessGroup, optional
        With `layouts`, of any phases: where the GPUs are, by axes ``pp``, ``dp``, ``cp``, ``sp``, ``tp`` (several that
        begin alike, as ``dp_shard``, count together); or this rank's tensor group alone. Tensor groups that nobody
        gives are made.
    exchange : str
        ``"direct"``, ``"node_wise"`` (first within the node, then between equal places of all nodes), or ``"auto"``:
        node-wise from 64 ranks on where nodes are of equal size.
    device : torch.device or str, optional
        Where fields are brought before the exchange; by default they stay where they are. Text stays on the host.
    timeout : timedelta
        How long a rank is waited for, in any one collective, before it is held lost.
    same_batches : bool
        True: all ranks draw the same mini-batches on purpose. Else that is an error, as soon as it is seen in three
        steps: the loader then deals nothing out, and every rank trains on all of the data.
    settings
        Further keywords of :func:`balancer.balance` or :func:`balancer.orchestrate`: ``method``, ``time_budget``,
        ``stop_at`` (here ``"0.1%"`` by default: a search ends once it has proven so small a gap),
        ``equal_counts``, ``max_tokens_per_rank``, ``min_samples_per_rank``, ``rank_speeds``; and the fields of
        :class:`balancer.MicroBatches`, as errors call them: ``micro_batch_tokens``, ``schedule``, ``allow_empty``,
        ``num_micro_batches``, ``min_micro_batches``, ``micro_batches_multiple_of``, ``over_long``...
        ``sequence_groups=SequenceGroups(...)`` lets ranks share long samples: see :meth:`dispatch`.
        Those with a value for each sample name columns instead, which are gathered with the lengths:
        ``keep_together="prompt"``; ``caps={"patches": 60_000, "text+audio": 8192}``, the most of each that a rank gets;
        ``allowed_ranks="ranks"``, whose column lists the ranks on which a sample may run, or names the one. With
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
        topology: Topology | int | None = None,
        phases: Sequence[Phase] | Mapping[str, str] | None = None,
        *,
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
        if not isinstance(topology, Topology):
            topology = Topology.uniform(size, topology)
        online = as_online(cost, phases)
        fixed = "linear" if isinstance(cost, OnlineCost | Mapping) else cost
        if layouts is not None and replica_group is not None:
            raise ValueError(
                "replica_group cannot be combined with layouts, which say who shares samples: leave it out"
            )
        group = torch.distributed.group.WORLD if dp_group is None else dp_group
        laid_out, groups = read_meshes(layouts, meshes, group)
        self.setup = as_setup(topology, phases, fixed, length, settings, laid_out)
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
        self._reports: dict[str, BalanceReport] = {phase.name: BalanceReport() for phase in self.setup.phases}
        compile_at_once()  # so that no later step waits for it

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
        """Tell how long this rank took for :attr:`current`; its cost is corrected by what all ranks tell.

        Any rank may leave it out, in any step. It is sent with the lengths of the next step that is made, and counts
        from the one after that; with the next one made ahead, a step later. A correction is used while it predicts
        better than the cost that was given; where it is given up, the planner's rank warns. Of replica peers, what the
        leader tells counts.

        Parameters
        ----------
        seconds : float, or mapping of str to float
            What the rank's own samples took, without waiting for other ranks; of several phases a mapping. With
            pipeline stages those of the forwards, added up over the stages of the phase. None: nothing is told.

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
            Its fields in the form in which they came. Where ranks share samples, a field whose rows all have the
            lengths that the plan has of their samples is cut: an entry is a rank's share of a sample, with zeros where
            the plan pads. Of all other fields every rank of a group gets the whole row. With layouts likewise: an entry
            of a field that is cut is the share of the GPU's shard, the same on its tensor replicas, which gather it of
            windows; of fields of ``"llm:own"`` each gets the segments in its own window; all other rows go to all GPUs
            of the replica, pipeline devices included.

        Raises
        ------
        PlanMismatchError, FieldMismatchError, PeerError, PeerLostError
            See :mod:`balancer.executor.errors`. Nothing hangs: a call ends within a few timeouts.
        TypeError, ValueError, InfeasibleError, SolverError
            What this rank handed in cannot be used, or nobody can plan it.
        """
        batch, failure = None, None
        try:
            if self.peers.leads:
                batch = self.read(samples, lengths or {})
        except Exception as error:  # whatever it is, the other ranks must hear of it
            failure = error
        gathered = self.tell(batch, Status.FAILED if failure else Status.READY, failure)
        if failure is not None:
            raise failure
        return self.hand_out(self.exchanged(batch, gathered, self.peers, self.features))

    def hand_out(self, step: Dispatched) -> Dispatched:
        """Make a step the current one, and count it; one made ahead that nobody takes is not counted."""
        self.current, plan = step, step.step
        for name, phase in plan.phases.items():
            self._reports[name] += BalanceReport.of_plan(phase.plan, plan.runtime_s, step.exchange_s)
        return step

    def report(self, phase: str | None = None) -> BalanceReport:
        """Return what balancing did over the steps that were handed out so far, as their plans say; nothing is sent.

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

    def tell(self, batch: MiniBatch | None, status: Status, failure: Exception | None = None) -> Gathered:
        """Gather lengths: the first half of :meth:`dispatch`."""
        correction = self._correction
        gathered = gather(self.peers, batch, status, failure, None if correction is None else correction.message())
        if correction is not None:
            self.setup = correction.heard(gathered.besides)
        self._same_batches.heard(gathered, self.setup)
        return gathered

    def exchanged(self, batch: MiniBatch | None, gathered: Gathered, onward: Peers, features: Features) -> Dispatched:
        """Plan and exchange: the second half. What comes after goes by the groups of `onward`."""
        plan = agreed_plan(self.peers, self.setup, gathered, self._planner)
        return self.moved(batch, gathered, plan, onward, features)

    def moved(
        self, batch: MiniBatch | None, gathered: Gathered, plan: StepPlan, onward: Peers, features: Features
    ) -> Dispatched:
        """Exchange by a plan that all ranks hold."""
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
        fields = {name: self._placed(read_field(name or "samples", data)) for name, data in named.items()}
        columns = as_columns(lengths)
        if not all(isinstance(name, str) for name in named):
            raise TypeError(f"fields must have names that are str, got {list(named)}")
        sizes = {name: len(field.rows) for name, field in fields.items()}
        sizes |= {f"lengths[{name!r}]": len(column) for name, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"fields must have the same number of samples, got {sizes}")
        return MiniBatch(next(iter(sizes.values()), 0), fields, columns)

    def _placed(self, field: Field) -> Field:
        if self.device is None or field.spec.form in ("str", "bytes", ""):
            return field
        return Field(replace(field.spec, device=self.device.type), field.rows, field.on(self.device))
