"""Streams to and between the GPUs of unlike layouts, of which each composes its own part alone.

Of a field with an element for each that the plan has, a GPU gets its window of what its shard holds, and gathers the
rest in its tensor group. All other rows go to every GPU of their sample's replica, and come home from the first GPU of
its last pipeline device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.differentiable import move_activations
from balancer.executor.features import Features
from balancer.executor.fields import Column, Field, Spec
from balancer.executor.gathering import Gathered
from balancer.executor.home_streams import HomeStream, stream_names
from balancer.executor.inputs import PhaseInputs
from balancer.executor.peers import Peers
from balancer.executor.ragged_tensor import RaggedTensor
from balancer.executor.route import Route, RouteEnd
from balancer.executor.shared_streams import CutStream, SharedFieldRoute, Way, elements_of, of_tokens, placed
from balancer.executor.windows import Windows
from balancer.plan.pieces import Pieces
from balancer.plan.resharding import Resharding, Shards, Source
from balancer.plan.step_plan import StepPlan, own_name, reshard, reshard_on, shards_of
from balancer.problem.ragged import Ragged

__all__ = ["LaidOutInputs", "laid_out_streams"]


@dataclass(frozen=True, eq=False)
class LaidOutStream(HomeStream):
    """Items that travel from home to a phase with a layout: a row here is a shard's share of an item."""

    shards: Shards
    peers: Peers

    @cached_property
    def here(self) -> NDArray[np.int64]:
        """The items of this GPU's replica, in order."""
        return self.target.samples_on_rank(self.shards.mesh.place_of(self.rank)[1])

    def sizes_here(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements of this GPU's share of each item, padding included."""
        return self.shards.share[self.here]

    def field_route(self, name: str, gathered: Gathered) -> SharedFieldRoute:
        """Return how a field travels: cut if each of its rows has the length that the plan has of the item."""
        rows, home = gathered.rows[name], gathered.field(name, self.rank)
        if self.sample_of_item is not None:
            self._check_items(name, gathered, self.sample_of_item)
            rows = rows.values if isinstance(rows, Ragged) else rows[self.sample_of_item]
            home = replace(home, spec=home.spec.of_items)
        if not isinstance(rows, Ragged) and of_tokens(home.spec) and np.array_equal(rows, self.shards.lengths):
            return self._cut(gathered.field(name, self.rank), home.spec)
        sizes = rows.sums() if isinstance(rows, Ragged) else rows
        here: Column = rows.take(self.here) if isinstance(rows, Ragged) else rows[self.here]
        to = self._gpus[self.target.rank_of_sample[self.home]]
        copies = np.repeat(np.arange(len(self.home)), to.shape[1])
        route = self._to(to.ravel(), self.here).with_lengths(sizes[self.home][copies], sizes[self.here])
        forth, back = Way(route, elements_of(sizes[self.home], copies)), self._from_first(sizes)
        return SharedFieldRoute.of(gathered.field(name, self.rank), Field(home.spec, here), forth, back)

    def result_route(self, spec: Spec, lengths: Any) -> SharedFieldRoute:
        """Return how results travel, given how long they are: of tokens by pieces, else from a replica's first GPU."""
        replicas = self.shards.mesh.replica_of_gpu(self.peers.size)
        held = np.concatenate([self.target.samples_on_rank(replica) for replica in replicas])
        home = Field(spec, self.shards.lengths[self.home])
        if of_tokens(spec) and np.array_equal(lengths, self.shards.share[held]):
            return self._cut(home, spec)
        ends = np.cumsum(np.diff(self.target.offsets)[replicas])
        of_item = np.empty(len(self.shards.lengths), dtype=np.int64)
        for gpu in self._first_gpus.tolist():
            mine = slice(ends[gpu - 1] if gpu else 0, ends[gpu])
            of_item[held[mine]] = lengths[mine]
        here = lengths[ends[self.rank] - len(self.here) : ends[self.rank]]
        back = self._from_first(of_item, here)
        return SharedFieldRoute.of(Field(spec, of_item[self.home]), Field(spec, here), Way(back.route.back), back)

    # Elements: windows, and the rest from tensor peers.

    def _cut(self, home: Field, spec: Spec) -> SharedFieldRoute:
        layout = self.shards.mesh.layout
        sending, receiving = self._part(range(layout.pp))
        windows = Windows.of(self.shards, self.name, self.peers)
        arriving = receiving.arriving(self.rank)
        forth = Way(_route(sending, receiving, self.rank), sending.sent(self.rank), arriving, windows)
        if layout.pp > 1:
            sending, receiving = self._part((-1,))
            arriving = receiving.arriving(self.rank)
        taken = arriving if windows is None else windows.taken(arriving)
        back = Way(_route(sending, receiving, self.rank).back, taken, sending.sent(self.rank))
        return SharedFieldRoute.of(home, Field(spec, self.sizes_here(home.lengths)), forth, back)

    def _part(self, devices: Sequence[int]) -> tuple[Resharding, Resharding]:
        """Return what this GPU sends, and what it gets, of all elements."""
        held = Source(Pieces.whole(self.source, self.shards.lengths))
        return Resharding.on(self.rank, self.name, [held], self.shards, self.peers.size, devices)

    # Whole rows.

    @property
    def _gpus(self) -> NDArray[np.int32]:
        """The GPUs of each replica: int32[replicas, k]."""
        return np.moveaxis(self.shards.mesh.gpus, 1, 0).reshape(self.shards.mesh.layout.dp, -1)

    @property
    def _first_gpus(self) -> NDArray[np.int32]:
        """The GPU of each replica from which whole rows come home."""
        return self.shards.mesh.gpus[-1, :, 0, 0]

    def _to(self, gpus: NDArray[np.int32], here: NDArray[np.int64]) -> Route:
        """Return the route of the rows at home, each to a GPU, with the lengths still to be set."""
        size, source = self.peers.size, self.source.rank_of_sample[here]
        sent = np.argsort(gpus, kind="stable")
        got = np.lexsort((self.source.position_of_sample[here], source))
        before, after = np.zeros(len(gpus), dtype=np.int64), np.zeros(len(here), dtype=np.int64)
        sending = RouteEnd(np.bincount(gpus, minlength=size), sent, before)
        return Route(sending, RouteEnd(np.bincount(source, minlength=size), got, after), self.rank)

    def _from_first(self, of_item: NDArray[np.int64], here: NDArray[np.int64] | None = None) -> Way:
        """Return the way home of whole rows of these lengths; `here` are those on this GPU, if others than these."""
        gpus = self._first_gpus[self.target.rank_of_sample[self.home]]
        first = self.here if self.rank in self._first_gpus else self.here[:0]
        route = self._to(gpus, first).with_lengths(of_item[self.home], of_item[first])
        here = of_item[self.here] if here is None else here
        return Way(route.back, elements_of(here, np.arange(len(first))))


@dataclass(frozen=True, eq=False)
class LaidOutPieces(CutStream):
    """What samples bring in besides: a row here is a segment of a piece, in a GPU's window of its shard's samples."""

    step: StepPlan
    part: tuple[Resharding, Resharding]

    @cached_property
    def _segments(self) -> Route:
        return _route(*self.part, self.rank)

    def result_route(self, spec: Spec, lengths: Any) -> SharedFieldRoute:
        """Return how results travel; all GPUs' segments are composed for it."""
        cut = reshard(self.step, self.name).stream
        whole = CutStream(
            self.name, self.source, cut.target, self.sample_of_item, self.rank, False, cut, self.item_lengths, None
        )
        return whole.result_route(spec, lengths)


def laid_out_streams(step: StepPlan, peers: Peers) -> Mapping[str, HomeStream]:
    """Return the streams from home to the GPUs of layouts by name."""
    streams: dict[str, HomeStream] = {}
    for name in stream_names(step.setup):
        items = step.phases[name.removesuffix(":own")].items
        if name not in step.phases:
            samples, part = items.own.row_of_value, reshard_on(step, peers.rank, name)
            cut, home = part[1].stream, step.home.lifted(samples)
            streams[name] = LaidOutPieces(
                name, home, cut.target, samples, peers.rank, False, cut, items.own.values, None, step, part
            )
            continue
        of_samples = items.fed_by or items.feeds is None
        source = step.home if of_samples else step.home.lifted(items.sample_of_item)
        streams[name] = LaidOutStream(
            name, source, step[name].target, None if of_samples else items.sample_of_item, peers.rank, False,
            shards_of(step, name), peers,
        )  # fmt: skip
    return streams


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LaidOutInputs(PhaseInputs):
    """All that a fed phase with a layout takes: windows of outputs travel; its own pieces are in their window already.

    `sent` are the elements of windows that the GPU sends, in order.
    """

    sent: NDArray[np.int64]
    cut: Mapping[str, Windows]
    whole: Windows | None
    window: int

    @classmethod
    def on(cls, step: StepPlan, phase: str, peers: Peers) -> "LaidOutInputs":
        """Return what a phase takes, as one GPU sends and receives it."""
        gpu, outs, own = peers.rank, step.parts[phase].streams[:-1], own_name(phase)
        sending, receiving = reshard_on(step, gpu, f"{phase}:inputs", outs)
        kept, target = reshard_on(step, gpu, own)[1], receiving.target
        sizes, cut = {}, {}
        for name, source in zip(outs, sending.sources, strict=True):
            if not isinstance(source.held, Shards):
                raise TypeError(f"{name!r} must come from shards")
            sizes[name] = int(source.held.slot_sizes[source.held.mesh.place_of(gpu)[1]].sum())
            if (windows := Windows.of(source.held, name.removesuffix(":out"), peers)) is not None:
                cut[name] = windows
        sizes[own] = int(kept.stream.lengths[kept.stream.target.samples_on_rank(gpu)].sum())
        device, replica, _, _ = target.mesh.place_of(gpu)
        here = target.place.samples_on_rank(replica)[: None if device == 0 else 0]
        return cls(
            phase, _route(sending, receiving, gpu), target.share[here], sizes,
            np.concatenate([receiving.arriving(gpu), kept.arriving(gpu)]), sent=sending.sent(gpu), cut=cut,
            whole=Windows.of(target, phase, peers) if device == 0 else None,
            window=int(target.windows[replica].sum()) if device == 0 else 0,
        )  # fmt: skip

    def brought(
        self, tensors: Sequence[Tensor | None], peers: Peers, features: Features, device: torch.device,
        differentiable: bool,
    ) -> RaggedTensor:  # fmt: skip
        """Bring the tensors, stream after stream, where the phase takes them."""
        held = [
            self.cut[name].cut(tensor if differentiable else tensor.detach())
            if tensor is not None and name in self.cut else tensor
            for name, tensor in zip(self.sizes, tensors, strict=True)
        ]  # fmt: skip
        counts = [0 if one is None else len(one) for one in held]
        values = features.alike(self.phase, held, counts, device)
        there, own = values.split([sum(counts[:-1]), counts[-1]])
        index = torch.from_numpy(self.sent).to(values.device)
        moved = move_activations(there[index], self.route, peers, differentiable)
        window = placed(torch.cat([moved, own if differentiable else own.detach()]), self.places, self.window)
        return RaggedTensor(window if self.whole is None else self.whole.joined(window), self.lengths)


def _route(sending: Resharding, receiving: Resharding, gpu: int) -> Route:
    """Return a GPU's route, of what it sends and what it gets."""
    ends = [Route.of(each.stream.source, each.stream.target, each.stream.lengths, gpu) for each in (sending, receiving)]
    return Route(ends[0].sending, ends[1].receiving, gpu)
