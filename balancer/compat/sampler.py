"""Balanced batches for any data loader: lengths in, the batches of a rank out, and no sample is exchanged.

Told from top to bottom: the *order* of an epoch -> *blocks* of ``window + 1`` steps -> *steps*, which are pieces of the
sorted block -> *ranks* and *micro-batches* -> the *place* in the epoch, which is saved. All ranks compute the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.compat.data_ranks import agree, world
from balancer.compat.epoch_order import EpochOrder, Order, digest, whole_numbers
from balancer.compat.free_steps import FreeSteps
from balancer.compat.rank_batches import Place, RankBatches
from balancer.compat.row_costs import RowCosts
from balancer.compat.row_limits import digest_of, no_limits, read_limits
from balancer.compat.sampler_report import SamplerReport
from balancer.compat.step_blocks import Block, CountedSteps
from balancer.compat.step_grid import Grid, StepPlanner
from balancer.cost.given import as_numbers
from balancer.cost.model import CostModel
from solvers.arguments import as_count, as_flag, as_index, as_integer
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError

if TYPE_CHECKING:
    from balancer.problem.limits import AnyLimit

__all__ = ["BalancedBatchSampler"]

Ints = NDArray[np.int64]

SYNCS = ("step", "micro_batch")
_FEW = 2**20  # ranks and micro-steps: as many may repeat the rows of a smaller dataset


class BalancedBatchSampler(RankBatches):
    """Batches of row numbers for one data-parallel rank, of even cost; the `batch_sampler` of a DataLoader.

    An epoch's order is cut into steps of ``batch_size * num_replicas * gradient_accumulation_steps`` rows. Each step is
    balanced: every rank gets `batch_size` rows in every micro-step, and ranks finish together.

    Parameters
    ----------
    lengths : int64[n]
        Tokens, frames or patches of every sample of the dataset: a list, an array, or a torch CPU tensor.
    batch_size : int or None
        Samples of a rank in a micro-step. None: each step takes as many of the next rows as its micro-batches hold
        within `limits` and `step_tokens`; rows that find no place come first in the next step.
    num_replicas, rank : int, optional
        Data-parallel ranks, and which of them this is; by default torch.distributed's world. Under tensor, context or
        pipeline parallelism give those of the *data-parallel* group. ``rank="all"``: the batches of all ranks in turn,
        for ``accelerator.prepare`` to deal out.
    cost : str, CostModel, float64[n] or float64[n, c]
        What to balance: a cost of lengths as in :func:`balancer.balance`, ``"padded"`` if batches are padded to their
        longest; or one number a sample, such as measured seconds or loss tokens. With a column for each of c <= 8
        phases, in one unit, ranks wait in each: of the encoder, then of the LLM.
    gradient_accumulation_steps : int
        Micro-steps in an optimizer step.
    sync : str
        Where ranks wait for each other. ``"step"``: once an optimizer step (DDP with ``no_sync``, ZeRO-1).
        ``"micro_batch"``: in every micro-step (FSDP, ZeRO-2 and 3, expert parallelism, DDP without ``no_sync``).
    window : int
        Steps by which a sample may move, so that samples of like cost share a step: every ``window + 1`` steps are
        sorted by cost, cut, and run in random order. With 0 every step has the samples that were drawn for it.
    order : int64[m], iterable, sampler, or function of the epoch, optional
        The rows of an epoch, the same on all ranks; may leave rows out and repeat them. By default all rows, shuffled.
    rank_speeds : int64[num_replicas], optional
        Unlike ranks: cost units that each does in a unit of time, such as measured tokens a second. Ranks then hold
        unlike numbers of samples, at least one in each micro-step, and `batch_size` is their mean.
    limits : sequence of Limit, CountLimit, PaddedLimit, Kinds, Everywhere
        What a micro-batch may hold, never exceeded: :class:`balancer.Limit` and its like, with an array of the
        dataset's length where they have one, and a number for each rank as the `most` of a `Limit` where ranks are
        unlike. Counts of micro-batches are then free, and `batch_size` is their mean. A window whose sorted steps do
        not fit runs as it was drawn; a step that does not fit then raises an error that names it, and the limit.
    step_tokens : int, optional
        With ``batch_size=None``: the most tokens of a step, of all ranks together; padded ones under a padded cost.
        Such steps run in the order in which they were drawn.
    step_tokens_within : float or str, optional
        With a window: how far, as a share of the mean of its window, the tokens of a step may be from that mean:
        ``0.2`` or ``"20%"``. A window that cannot keep it runs as it was drawn.
    shuffle : bool
        Of the default order: every epoch in another; if False, in the order of the dataset.
    seed : int
    prefix, prefix_length : array[n], int64[n], optional
        The key and the length of the prompt of each sample, which a micro-batch computes once; with ``window=0``. See
        :func:`balancer.balance`.
    drop_last : bool
        Leave out the rows after the last full step. If False, they make a shorter one, which a few of the epoch's
        first rows fill up so that all micro-batches of it are of one size.

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used. In `set_epoch`: ranks with unlike orders, lengths or settings.

    Notes
    -----
    Where a process group of `num_replicas` ranks is up, `set_epoch` compares them, and so waits for all of these. No
    other call does: one rank may make a sampler, look at batches and reports. Epochs that come by themselves are not
    compared.

    The next iteration is the next epoch; `set_epoch` says another. `state_dict` counts rows of the epoch, not ranks: a
    sampler with other `num_replicas`, `batch_size`, accumulation, cost or window goes on with exactly the rows that
    were not trained. A step is planned when its first batch is asked for, in a millisecond at 64 ranks x 16, under
    limits in some ten; ``len()`` plans all steps of free size.

    Examples
    --------
    >>> lengths = [900, 100, 400, 600, 500, 500, 200, 800]
    >>> ranks = [BalancedBatchSampler(lengths, 2, num_replicas=2, rank=rank) for rank in range(2)]
    >>> [[sum(lengths[row] for row in batch) for batch in sampler] for sampler in ranks]
    [[800, 1000], [900, 1300]]

    A sampler cannot express: groups of samples kept together, such as the answers to a prompt, samples that ranks share
    and pipelines, for which plan steps with :func:`balancer.balance` or a dispatcher; a `batch_size` that warms up, for
    which make a sampler for each size and load the state of the one before; evaluation without repeats, where the
    last step's are left out of metrics; and speeds measured while it runs, for which begin an epoch with new ones.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        batch_size: int | None = None,
        num_replicas: int | None = None,
        rank: int | str | None = None,
        *,
        cost: str | CostModel | ArrayLike = "linear",
        gradient_accumulation_steps: int = 1,
        sync: str = "step",
        window: int = 0,
        order: Order | None = None,
        step_tokens_within: float | str | None = None,
        rank_speeds: ArrayLike | None = None,
        limits: Sequence[AnyLimit] = (),
        step_tokens: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        prefix: ArrayLike | None = None,
        prefix_length: ArrayLike | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(*world(num_replicas, rank))
        self.lengths = whole_numbers("lengths", as_numbers("lengths", lengths), 0)
        micro_steps = as_count("gradient_accumulation_steps", gradient_accumulation_steps)
        self._batch_size = None if batch_size is None else as_count("batch_size", batch_size)
        if sync not in SYNCS:
            raise ArgumentError("sync", f"be one of {', '.join(SYNCS)}", repr(sync))
        self.sync, self.window, self.seed = sync, as_count("window", window, 0), as_integer("seed", seed)
        self._drop, batches = as_flag("drop_last", drop_last), self.num_replicas * micro_steps
        self.samples_per_step = None if self._batch_size is None else self._batch_size * batches
        count, least = len(self.lengths), self.samples_per_step or batches
        self._order = EpochOrder(order, count, as_flag("shuffle", shuffle), self.seed, least if drop_last else 1)
        self._costs = RowCosts(self.lengths, cost, prefix, prefix_length)
        if prefix is not None and (self.window or self._costs.given is not None or not self._costs.additive):
            raise UsageError(
                "{prefix} is for window=0 and a cost of lengths without padding: prompts stay with their samples",
                "leave one of them out",
            )
        if batches > max(count, _FEW):
            rule = f"be <= the {count} samples, one a micro-step each"
            raise ArgumentError("num_replicas * gradient_accumulation_steps", rule, batches)
        self._costs.check_sums(min((self.samples_per_step or count) * (self.window + 1), max(least, count)))
        speeds = None if rank_speeds is None else whole_numbers("rank_speeds", rank_speeds, 1)
        held = read_limits(limits, self.lengths, self.num_replicas)
        if held is None and self.samples_per_step is None:
            if step_tokens is None:
                raise UsageError("{batch_size=None} needs {limits} or {step_tokens}: they say how large steps are")
            held = no_limits(count)
        self._planner = StepPlanner(self._costs, self.num_replicas, micro_steps, sync, speeds, held)
        self._cutter = self._how_to_cut(step_tokens, step_tokens_within)
        self._kept: dict[tuple[int, int, bytes], Block | None] = {}
        self._ends: dict[int, dict[tuple[int, bytes], tuple[Place, int] | None]] = {}

    def _how_to_cut(self, step_tokens: int | None, within: float | str | None) -> CountedSteps | FreeSteps:
        """Return what cuts the order into steps: of so many samples, or of as many as fit."""
        if self.samples_per_step is None:
            if within is not None:
                raise UsageError("{step_tokens_within} is for a {batch_size}", "give {step_tokens}")
            return FreeSteps(self._planner, step_tokens, self.window, self.seed, self._drop)
        if step_tokens is not None:
            raise UsageError("{step_tokens} is for {batch_size=None}: else a step has so many samples",
                             "for steps of like tokens give a {window} and {step_tokens_within}")  # fmt: skip
        return CountedSteps(self._planner, self.samples_per_step, self.window, within, self.seed, self._drop)

    def __repr__(self) -> str:
        cost = "of each sample" if self._costs.given is not None else repr(str(self._costs))
        shape = f"{len(self.lengths)} samples, batch_size={self._batch_size}"
        ranks = f"num_replicas={self.num_replicas}, rank={self.rank!r}"
        steps = f"gradient_accumulation_steps={self._planner.micro_steps}, sync={self.sync!r}, window={self.window}"
        return f"BalancedBatchSampler({shape}, {ranks}, cost={cost}, {steps})"

    def _begins(self, epoch: int) -> None:
        self._order.running = epoch

    def _check_ranks(self) -> None:
        at = self._at if self._resumes else self._beginning(self.epoch)  # where the next iteration begins
        agree(self.num_replicas, f"begin epoch {self.epoch}", {
            "epoch": self.epoch, **self._order_of(self.epoch), "cost": self._settings["cost"],
            "settings": self._settings, "place": [at.samples, at.steps, len(at.carried)],
        })  # fmt: skip

    # Blocks of ``window + 1`` steps. What an earlier run left of its last window comes first.

    def _block(self, at: Place, number: int) -> Block | None:
        """Return the block that begins at a place; what was planned last is kept, as states ask for it again."""
        key = at.epoch, at.samples, at.carried.tobytes()
        if key not in self._kept:
            block = self._cutter.block(at, self._order.drawn(at.epoch), number)
            self._kept = {**dict(list(self._kept.items())[-1:]), key: block}
        return self._kept[key]

    def _first_step(self, at: Place) -> int:
        """Return which step of the epoch its block has first."""
        return at.batches // self._planner.micro_steps - at.steps

    def _blocks(self, at: Place) -> Iterator[tuple[Place, Block]]:
        number = self._first_step(at)
        while (block := self._block(at, number)) is not None:
            yield at, block
            number, at = number + block.count, block.behind

    def _places(self, at: Place) -> Iterator[tuple[Place, int]]:
        number, micro_steps = self._first_step(at), self._planner.micro_steps
        if at.epoch not in self._ends:
            self._ends = {at.epoch: {}}
        ends = self._ends[at.epoch]
        while True:
            # It is kept where blocks end: those of free size have to be planned for that.
            if (key := (at.samples, at.carried.tobytes())) not in ends:
                block = self._block(at, number)
                ends[key] = None if block is None else (block.behind, block.count)
            if (found := ends[key]) is None:
                return
            behind, count = found
            yield from ((replace(at, steps=step), micro_steps) for step in range(at.steps + 1, count))
            yield behind, micro_steps
            at, number = behind, number + count

    # An epoch: its steps, one after the other.

    def _steps(self, at: Place, ranks: Sequence[int]) -> Iterator[tuple[Place, list[list[list[int]]]]]:
        for begin, block in self._blocks(at):
            for step in range(begin.steps, block.count):
                after = replace(begin, steps=step + 1) if step + 1 < block.count else block.behind
                yield after, block.grid(step).batches(ranks)

    def plan(self, epoch: int | None = None) -> Iterator[list[list[list[int]]]]:
        """Yield the steps of an epoch, by default the next, as [micro-step][rank] -> rows; the place stays as it is."""
        at = self._beginning(self.epoch if epoch is None else as_integer("epoch", epoch))
        return (grid for _, grid in self._steps(at, range(self.num_replicas)))

    def report(self, epoch: int | None = None) -> SamplerReport:
        """Plan an epoch, by default the next, and compare its steps with those that were drawn."""
        epoch = self.epoch if epoch is None else as_integer("epoch", epoch)
        report = SamplerReport(self.sync, self._costs.additive, self._planner.speeds)
        for _, block in self._blocks(self._beginning(epoch)):
            drawn = (Grid.cut(block.order.rows(step), self._planner.shape) for step in block.drawn)
            for figures, grids in (report.drawn, drawn), (report.planned, map(block.grid, range(block.count))):
                for grid in grids:
                    figures.add(self.lengths[grid.rows], grid.counts, self._planner.loads(grid.rows, grid.batch))
        # One mean for both: by its own, a plan with less padding would look less even.
        report.drawn.worked = report.planned.worked = min(report.drawn.worked, report.planned.worked)
        return report

    # The place: what of the order has run. Between windows that is a position; inside one, also what is left of it.

    @cached_property  # loaders may ask for the state at every batch
    def _settings(self) -> dict[str, Any]:
        """All that is asked for, as JSON."""
        speeds, limits, size = self._planner.speeds, self._planner.limits, self._batch_size
        return {
            "samples_per_step": self.samples_per_step, "window": self.window, "sync": self.sync,
            "samples_per_micro_step": None if size is None else size * self.num_replicas,
            "shape": list(self._planner.shape), "cost": str(self._costs), "drop_last": self._drop,
            "rank_speeds": None if speeds is None else speeds.tolist(),
            "limits": None if limits is None else digest_of(limits), **self._cutter.words,
        }  # fmt: skip

    @property
    def steps_are(self) -> dict[str, Any]:
        """What decides which rows each step has; runs in which it is alike have the same steps, on any ranks."""
        names, free = ["samples_per_step", "window"], self.samples_per_step is None
        if self.window:
            names += ["cost", "step_tokens_within", "sync"]
            if self.sync == "micro_batch" or self._settings["step_tokens_within"]:
                names.append("samples_per_micro_step")
        if self._planner.limits is not None and (self.window or free):  # what fits depends on all this
            names += ["limits", "shape", "sync", "rank_speeds", "cost"]
        return {name: self._settings[name] for name in (*names, *(("step_tokens", "drop_last") if free else ()))}

    @cached_property  # loaders may ask for the state at every batch
    def _lengths_are(self) -> str:
        return digest(self.lengths)

    def _order_of(self, epoch: int) -> dict[str, Any]:
        return {"lengths": self._lengths_are, **self._order.words(epoch)}

    def _window(self, at: Place) -> dict[str, Any] | None:
        if not at.steps and not len(at.carried):
            return None
        end, left = at.samples, at.carried
        if at.steps:
            _, block = next(self._blocks(at))
            had = np.concatenate(block.steps[: at.steps])
            end = block.behind.samples
            left = np.setdiff1d(np.concatenate([block.positions, block.behind.carried]), had)
        return {
            "of": self.steps_are, "steps": at.steps, "carried": _as_bits(at.carried),
            "end": end, "left": _as_bits(left),
        }  # fmt: skip

    def _loaded(self, at: Place, window: Any) -> Place:
        total, names = self._order.drawn(at.epoch).total, ("of", "steps", "carried", "end", "left")
        as_index("state.samples", at.samples, total + 1)
        if window is None:
            return at
        if not isinstance(window, Mapping) or not window.keys() >= set(names):
            raise ArgumentTypeError("state.window", "be what state_dict() returned", repr(window)[:60])
        if window["of"] != self.steps_are:
            end = as_index("state.window.end", window["end"], total + 1)
            return replace(at, samples=end, carried=_of_bits("state.window.left", window["left"], end))
        # The same steps: the window is planned again, and those that ran left out.
        at = replace(at, carried=_of_bits("state.window.carried", window["carried"], at.samples))
        count = next((block.count for _, block in self._blocks(at)), 0)
        return replace(at, steps=as_index("state.window.steps", window["steps"], count + 1))


def _as_bits(positions: Ints) -> tuple[int, str]:
    """Return positions as JSON: the first, and a bit for each behind it."""
    if not len(positions):
        return 0, ""
    first = int(positions.min())
    held = np.zeros(int(positions.max()) - first + 1, dtype=bool)
    held[positions - first] = True
    return first, np.packbits(held).tobytes().hex()


def _of_bits(name: str, bits: Any, stop: int) -> Ints:
    """Return the positions that :func:`_as_bits` wrote, ascending and below `stop`."""
    try:
        first, held = bits
        found = np.flatnonzero(np.unpackbits(np.frombuffer(bytes.fromhex(held), dtype=np.uint8)))
        if not len(found) or 0 <= first <= first + found[-1] < stop:
            return int(first) + found
    except (TypeError, ValueError):
        pass
    raise ArgumentError(name, f"be [first, bits in hex] of positions below {stop}", repr(bits)[:60])
