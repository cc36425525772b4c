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
from balancer.compat.epoch_order import EpochOrder, Order, digest
from balancer.compat.free_steps import FreeSteps
from balancer.compat.rank_batches import Place, RankBatches
from balancer.compat.row_costs import RowCosts
from balancer.compat.row_limits import digest_of, read_limits
from balancer.compat.sampler_report import SamplerReport, StepFigures
from balancer.compat.step_blocks import Block, CountedSteps, DrawnOrder
from balancer.compat.step_grid import Grid, StepPlanner
from balancer.cost.given import as_numbers
from balancer.cost.model import CostModel
from solvers.arguments import as_count, as_flag, as_index, as_int64, as_integer, as_share
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
        # A copy: the caller may go on to change theirs.
        self.lengths = as_int64("lengths", as_numbers("lengths", lengths)).copy()
        if len(odd := np.flatnonzero(self.lengths < 0)):
            raise ArgumentError("lengths", "be >= 0", self.lengths[odd[0]], int(odd[0]))
        self._micro_steps = as_count("gradient_accumulation_steps", gradient_accumulation_steps)
        self._micro_step = None if batch_size is None else as_count("batch_size", batch_size) * self.num_replicas
        self.samples_per_step = None if self._micro_step is None else self._micro_step * self._micro_steps
        self._step_tokens = None if step_tokens is None else as_count("step_tokens", step_tokens)
        if sync not in SYNCS:
            raise ArgumentError("sync", f"be one of {', '.join(SYNCS)}", repr(sync))
        self.sync, self.window, self.seed = sync, as_count("window", window, 0), as_integer("seed", seed)
        self._within = None if step_tokens_within is None else as_share("step_tokens_within", step_tokens_within)
        if self._within is not None and self._within > 1:
            raise ArgumentError("step_tokens_within", "be a share such as '20%', at most 1", repr(step_tokens_within))
        if self._within is not None and not self.window:
            raise UsageError("{step_tokens_within} needs {window} >= 1: else steps keep the samples drawn for them")
        for name, value in ("drop_last", drop_last), ("shuffle", shuffle):
            if not isinstance(value, bool | np.bool_):
                raise ArgumentTypeError(name, "be True or False", repr(value))
        self._drop, count = as_flag("drop_last", drop_last), len(self.lengths)
        fewest = self.num_replicas * self._micro_steps
        least = self.samples_per_step or fewest
        self._order = EpochOrder(order, count, bool(shuffle), self.seed, least if drop_last else 1)
        self._costs = RowCosts(self.lengths, cost, prefix, prefix_length)
        if prefix is not None and (self.window or self._costs.given is not None or not self._costs.additive):
            raise UsageError(
                "{prefix} is for window=0 and a cost of lengths without padding: prompts stay with their samples",
                "leave one of them out",
            )
        if fewest > max(count, _FEW):
            rule = f"be <= the {count} samples, one a micro-step each"
            raise ArgumentError("num_replicas * gradient_accumulation_steps", rule, fewest)
        samples = min((self.samples_per_step or count) * (self.window + 1), max(least, count))
        self._costs.check_sums(samples)
        self._speeds = None if rank_speeds is None else self._read_speeds(rank_speeds)
        unlimited = limits is None or (isinstance(limits, Sequence) and not len(limits))
        held = None
        if self.samples_per_step is None or not unlimited:
            held = read_limits(limits, self.lengths, self.num_replicas)
        self._planner = StepPlanner(self._costs, self.num_replicas, self._micro_steps, self.sync, self._speeds, held)
        self._blocks_of = self._how_to_draw(unlimited)
        self._kept: dict[tuple[int, int, bytes], Block | None] = {}
        self._ends: dict[tuple[int, int, bytes], tuple[Place, int] | None] = {}

    def _how_to_draw(self, unlimited: bool) -> CountedSteps | FreeSteps:
        """Return what makes steps of the order: of so many samples, or of as many as fit."""
        if self.samples_per_step is not None:
            if self._step_tokens is not None:
                raise UsageError("{step_tokens} is for {batch_size=None}: else a step has so many samples",
                                 "for steps of like tokens give a {window} and {step_tokens_within}")  # fmt: skip
            return CountedSteps(self._planner, self.samples_per_step, self.window, self._within, self.seed, self._drop)
        if unlimited and self._step_tokens is None:
            raise UsageError("{batch_size=None} needs {limits} or {step_tokens}: they say how large steps are")
        if self._within is not None:
            raise UsageError("{step_tokens_within} is for a {batch_size}", "give {step_tokens}")
        return FreeSteps(self._planner, self._step_tokens, self.window, self.seed, self._drop)

    def _read_speeds(self, given: ArrayLike) -> Ints:
        speeds = as_int64("rank_speeds", given).copy()
        if len(speeds) != self.num_replicas:
            raise ArgumentError("rank_speeds", f"have a number for each of {self.num_replicas} ranks", len(speeds))
        if len(odd := np.flatnonzero(speeds < 1)):
            raise ArgumentError("rank_speeds", "be >= 1", speeds[odd[0]], int(odd[0]))
        if not self._costs.additive or self._costs.prompts is not None:
            raise UsageError(
                "{rank_speeds} are for a cost that adds up over samples, without padding and without {prefix}",
                ("give a cost for each sample, such as measured seconds", "or leave {rank_speeds} out"),
            )  # fmt: skip
        return speeds

    def __repr__(self) -> str:
        cost = "of each sample" if self._costs.given is not None else repr(str(self._costs))
        batch_size = None if self._micro_step is None else self._micro_step // self.num_replicas
        shape = f"{len(self.lengths)} samples, batch_size={batch_size}"
        ranks = f"num_replicas={self.num_replicas}, rank={self.rank!r}"
        steps = f"gradient_accumulation_steps={self._micro_steps}, sync={self.sync!r}, window={self.window}"
        return f"BalancedBatchSampler({shape}, {ranks}, cost={cost}, {steps})"

    # The order of an epoch: positions 0, 1, ... and the row at each.

    def _rows(self, positions: Ints, epoch: int) -> Ints:
        return self._order.rows(positions, epoch)

    def _begins(self, epoch: int) -> None:
        self._order.running = epoch

    def _check_ranks(self) -> None:
        at = self._at if self._resumes else self._beginning(self.epoch)  # where the next iteration begins
        agree(self.num_replicas, f"begin epoch {self.epoch}", {
            "epoch": self.epoch, **self._order_of(self.epoch), "cost": self._costs_are, "batch_size": self._micro_step,
            "settings": {**self.steps_are, "sync": self.sync, "drop_last": self._drop},
            "rank_speeds": None if self._speeds is None else self._speeds.tolist(), "limits": self._limits_are,
            "step_tokens": self._step_tokens,
            "place": [at.samples, at.steps, len(at.carried)],
        })  # fmt: skip

    # Blocks of ``window + 1`` steps. What an earlier run left of its last window comes first.

    def _drawn_order(self, epoch: int) -> DrawnOrder:
        return DrawnOrder(epoch, self._order.total(epoch), lambda positions: self._rows(positions, epoch))

    def _block(self, at: Place, number: int) -> Block | None:
        """Return the block that begins at a place; what was planned last is kept, as states ask for it again."""
        key = at.epoch, at.samples, at.carried.tobytes()
        if key not in self._kept:
            block = self._blocks_of.block(at, self._drawn_order(at.epoch), number)
            self._kept = {**dict(list(self._kept.items())[-1:]), key: block}
        return self._kept[key]

    def _blocks(self, at: Place) -> Iterator[tuple[Place, Block]]:
        number = at.batches // self._micro_steps - at.steps  # which step of the epoch comes first
        while (block := self._block(at, number)) is not None:
            yield at, block
            number += block.count
            at = block.behind

    def _places(self, at: Place) -> Iterator[tuple[Place, int]]:
        number = at.batches // self._micro_steps - at.steps
        while True:
            # Of steps of free size it is kept where they end: they have to be planned for that.
            key = at.epoch, at.samples, at.carried.tobytes()
            if key not in self._ends:
                if self.samples_per_step is not None or (self._ends and key[0] != next(iter(self._ends))[0]):
                    self._ends = {}
                block = self._block(at, number)
                self._ends[key] = None if block is None else (block.behind, block.count)
            if (found := self._ends[key]) is None:
                return
            behind, count = found
            for step in range(at.steps + 1, count + 1):
                yield (replace(at, steps=step) if step < count else behind), self._micro_steps
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
        report = SamplerReport(self.sync, self._costs.additive, self._speeds)
        for _, block in self._blocks(self._beginning(epoch)):
            for step in block.drawn:
                self._add(report.drawn, Grid.cut(self._rows(step, epoch), self._planner.shape))
            for number in range(block.count):
                self._add(report.planned, block.grid(number))
        # One mean for both: by its own, a plan with less padding would look less even.
        report.drawn.worked = report.planned.worked = min(report.drawn.worked, report.planned.worked)
        return report

    def _add(self, figures: StepFigures, grid: Grid) -> None:
        figures.add(self.lengths[grid.rows], grid.counts, self._planner.loads(grid))

    # The place: what of the order has run. Between windows that is a position; inside one, also what is left of it.

    @property
    def steps_are(self) -> dict[str, Any]:
        """What decides which rows each step has; runs in which it is alike have the same steps, on any ranks."""
        found: dict[str, Any] = {"samples_per_step": self.samples_per_step, "window": self.window}
        if self.window:
            within = None if self._within is None else str(self._within)
            found |= {"cost": self._costs_are, "step_tokens_within": within, "sync": self.sync}
            if self.sync == "micro_batch" or within:
                found["samples_per_micro_step"] = self._micro_step
        if self._planner.limits is not None and (
            self.window or self.samples_per_step is None
        ):  # what fits depends on all this
            found |= {"limits": self._limits_are, "shape": list(self._planner.shape), "sync": self.sync}
            found |= {"rank_speeds": None if self._speeds is None else self._speeds.tolist(), "cost": self._costs_are}
        if self.samples_per_step is None:
            found |= {"step_tokens": self._step_tokens, "drop_last": self._drop}
        return found

    @cached_property
    def _limits_are(self) -> str | None:
        return None if self._planner.limits is None else digest_of(self._planner.limits)

    @cached_property
    def _costs_are(self) -> str:
        return str(self._costs)

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
        total, names = self._order.total(at.epoch), ("of", "steps", "carried", "end", "left")
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
