"""Rows between modules with unlike layouts: windows by one all-to-all, then gathered within tensor groups; and back."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from balancer.executor.agreement import agreed_plan, check_planning
from balancer.executor.arguments import as_setup
from balancer.executor.collectives import Collectives
from balancer.executor.differentiable import move_activations
from balancer.executor.features import Features
from balancer.executor.gathering import gather
from balancer.executor.message import MiniBatch, Status, as_columns
from balancer.executor.peers import Peers
from balancer.executor.route import Route
from balancer.executor.shared_streams import placed
from balancer.plan.pieces import Pieces
from balancer.plan.resharding import Resharding, Shards, Source
from balancer.plan.step_plan import StepPlan, reshard
from balancer.problem.layout import ModuleLayout, StepLayout
from balancer.problem.phases import Phase
from balancer.problem.ragged import Ragged
from balancer.problem.setup import as_layout
from balancer.problem.topology import Topology
from solvers._as_python import compile_at_once

__all__ = ["Resharder"]


class _Gather(torch.autograd.Function):
    """A GPU's buffer of the windows of its tensor group; backward, what all of them have for its window, summed."""

    @staticmethod
    def forward(ctx: Any, window: Tensor, order: Tensor, group: Collectives) -> Tensor:
        ctx.save_for_backward(order)
        ctx.group, ctx.size = group, len(window) * group.size
        return group.all_gather(window)[order]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        windows = gradient.new_zeros((ctx.size, *gradient.shape[1:]))
        windows[order] = gradient
        return ctx.group.reduce_scatter(windows), None, None


class _Window(torch.autograd.Function):
    """A GPU's window of a buffer that all of its tensor group have; backward, the buffer of their windows."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, order: Tensor, size: int, group: Collectives) -> Tensor:
        ctx.save_for_backward(order)
        ctx.group = group
        windows = buffer.new_zeros((size * group.size, *buffer.shape[1:]))
        windows[order] = buffer
        return windows[group.rank * size : (group.rank + 1) * size]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (order,) = ctx.saved_tensors
        return ctx.group.all_gather(gradient)[order], None, None, None


class Resharder:
    """Plans steps of modules with unlike layouts, and brings rows to their GPUs, and gradients back.

    All GPUs make it at the same time.

    Parameters
    ----------
    phases, layouts
        As :func:`balancer.orchestrate` takes them.
    topology : Topology or int, optional
        Nodes of the GPUs, or GPUs a node; by default one node.
    group : ProcessGroup, optional
        All GPUs of the step, in the order in which its layouts number them; by default all processes.
    tensor_groups : mapping of str to ProcessGroup
        By phase, the tensor group that this GPU is in, such as ``mesh["tp"].get_group()``; of phases with one tensor
        shard none.
    exchange, timeout
        As :class:`balancer.executor.Dispatcher` takes them.
    settings
        Those of a Dispatcher with phases.
    """

    def __init__(
        self, phases: Sequence[Phase] | Mapping[str, str], layouts: StepLayout | Mapping[str, ModuleLayout],
        topology: Topology | int | None = None, *, group: Any = None,
        tensor_groups: Mapping[str, Any] | None = None, exchange: str = "auto",
        timeout: timedelta = timedelta(minutes=2), **settings: Any,
    ) -> None:  # fmt: skip
        if not isinstance(topology, Topology):
            topology = Topology.uniform(dist.get_world_size(group), topology)
        self.setup = as_setup(topology, phases, "linear", None, settings, as_layout(layouts))
        check_planning("replicate", self.setup)
        self._peers = Peers(group, None, topology, exchange, timeout)
        self._features = Features(self._peers)
        self._tensor = {name: Collectives(one, timeout, "tensor peer") for name, one in (tensor_groups or {}).items()}
        for collectives in self._tensor.values():
            collectives.lookout = self._peers.direct.lookout
        compile_at_once()  # so that no later step waits for it
        self._step: StepPlan | None = None
        self._found: dict[str, tuple[Resharding, Route]] = {}

    @property
    def rank(self) -> int:
        """Number of this GPU."""
        return self._peers.rank

    def plan(self, lengths: Mapping[str, ArrayLike | Ragged]) -> StepPlan:
        """Gather all GPUs' lengths and plan a step, the same on all; all GPUs call it.

        Parameters
        ----------
        lengths : mapping of str to int64[n] or lists
            Of this GPU's samples, the columns that phases name; ``{}`` where it has none.

        Raises
        ------
        PlanMismatchError, FieldMismatchError, PeerError, PeerLostError
            See :mod:`balancer.executor.errors`.
        TypeError, ValueError, InfeasibleError, SolverError
            Lengths that cannot be used, or that nobody can plan.
        """
        batch, failure = None, None
        try:
            columns = as_columns(lengths)
            sizes = {f"lengths[{name!r}]": len(column) for name, column in columns.items()}
            if len(set(sizes.values())) > 1:
                raise ValueError(f"lengths must be of the same number of samples, got {sizes}")
            batch = MiniBatch(next(iter(sizes.values()), 0), {}, columns)
        except Exception as error:  # whatever it is, the other GPUs must hear of it
            failure = error
        gathered = gather(self._peers, batch, Status.FAILED if failure else Status.READY, failure)
        if failure is not None:
            raise failure
        return agreed_plan(self._peers, self.setup, gathered, None)

    def of(self, step: StepPlan, stream: str) -> Resharding:
        """Return how a stream travels: positions, ``cu_seqlens``, windows."""
        return self._route(step, stream)[0]

    def __call__(
        self, step: StepPlan, stream: str, rows: Tensor | Mapping[str, Tensor], differentiable: bool = True
    ) -> Tensor:
        """Bring rows along a stream; all GPUs call it, and reach its backward, those without rows too.

        Parameters
        ----------
        step : StepPlan
            As :meth:`plan` makes it.
        stream : str
            A name of ``step.streams``, or that of all that a phase takes: ``"llm:inputs"``.
        rows : Tensor[elements, ...] or mapping of str to Tensor
            What this GPU has of the stream, or by name of each: of its samples at home, in order (``"vision:in"``,
            ``"llm:own"``), or of its module's packed outputs (``"vision:out"``), the same on all tensor replicas. GPUs
            that put out nothing may leave it out of a mapping.
        differentiable : bool
            False: no gradients return. The same on all GPUs.

        Returns
        -------
        Tensor[elements, ...]
            This GPU's packed buffer, slot after slot, zeros for padding; of no rows on later pipeline devices. Its
            gradient is summed over tensor replicas.

        Raises
        ------
        ValueError
            Rows that are not as many as the plan has, layouts and tensor groups that do not go together.
        FieldMismatchError, PeerLostError
            See :mod:`balancer.executor.errors`.
        """
        found, route = self._route(step, stream)
        names = step.parts[stream.rpartition(":")[0]].streams if stream.endswith(":inputs") else (stream,)
        given = rows if isinstance(rows, Mapping) else {stream: rows}
        windows = [
            self._window(name, source, given.get(name), differentiable)
            for name, source in zip(names, found.sources, strict=True)
        ]
        held = [0 if window is None else len(window) for window in windows]
        values = self._features.alike(stream, windows, held, torch.device("cpu"))
        moved = move_activations(values[_index(found.sent(self.rank), values)], route, self._peers, differentiable)
        if not self._is_on(found.target, 0):
            return moved
        order, size = found.target.gathered(self.rank)
        window = placed(moved, found.arriving(self.rank), size)
        if found.target.mesh.layout.tp == 1:
            return window
        phase = stream.rpartition(":")[0]
        if stream.endswith(":out"):
            phase = step.phases[phase].items.feeds or phase
        whole: Tensor = _Gather.apply(window, _index(order, window), self._tensor_group(phase, found.target))
        return whole

    def _route(self, step: StepPlan, stream: str) -> tuple[Resharding, Route]:
        """Return a stream's exchange, composed once a step."""
        if step is not self._step:
            self._step, self._found = step, {}
        if stream not in self._found:
            found = reshard(step, stream)
            carried = found.stream
            self._found[stream] = found, Route.of(carried.source, carried.target, carried.lengths, self.rank)
        return self._found[stream]

    def _is_on(self, shards: Shards, device: int) -> bool:
        return bool((shards.mesh.gpus[device] == self.rank).any())

    def _window(self, name: str, source: Source, rows: Tensor | None, differentiable: bool) -> Tensor | None:
        """Return what a GPU may send of a stream: its window of what its tensor group has."""
        shards = source.held
        if isinstance(shards, Pieces):
            mine = shards.place.samples_on_rank(self.rank)
            return _as_many(name, rows, int((shards.stop[mine] - shards.start[mine]).sum()))
        if not self._is_on(shards, -1):
            return _as_many(name, rows, 0)
        order, size = shards.gathered(self.rank)
        whole = _as_many(name, rows, len(order))
        if whole is None or shards.mesh.layout.tp == 1:
            return whole
        group = self._tensor_group(name.rpartition(":")[0], shards)
        if not differentiable:
            whole = whole.detach()
        window: Tensor = _Window.apply(whole, _index(order, whole), size, group)
        return window

    def _tensor_group(self, phase: str, shards: Shards) -> Collectives:
        """Return the collectives of this GPU's tensor group; ValueError if it is not that of the layout."""
        device, replica, shard, _ = shards.mesh.place_of(self.rank)
        expected = shards.mesh.gpus[device, replica, shard].tolist()
        if phase not in self._tensor:
            raise ValueError(f"tensor_groups must have one of phase {phase!r}, of GPUs {expected}")
        numbers = {process: gpu for gpu, process in enumerate(dist.get_process_group_ranks(self._peers.direct.group))}
        members = [numbers.get(process) for process in dist.get_process_group_ranks(self._tensor[phase].group)]
        if members != expected:
            raise ValueError(f"tensor_groups[{phase!r}] must be of GPUs {expected}, in this order, got {members}")
        return self._tensor[phase]


def _index(order: NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(order).to(like.device)


def _as_many(name: str, rows: Tensor | None, size: int) -> Tensor | None:
    """Return what a GPU gives of a stream, checked."""
    if (0 if rows is None else len(rows)) != size:
        given = "is missing" if rows is None else f"has {len(rows)}"
        raise ValueError(f"rows of {name!r} must be {size} on this GPU, one for each element it holds, but it {given}")
    return rows
