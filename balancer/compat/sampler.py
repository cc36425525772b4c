"""Balanced batches for any data loader: lengths in, the batches of a rank out, and nothing is exchanged."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.compat._partitions import fill_empty
from balancer.cost import CostModel, parse_cost
from balancer.deferral.across_steps import AcrossSteps
from balancer.deferral.order import cut_from, deferred_order
from balancer.errors import InputError
from balancer.plan.balance_report import BalanceReport
from balancer.planning.epoch_position import Position
from balancer.planning.planned_ahead import planned_ahead
from balancer.planning.planner import balance
from balancer.planning.rank_batches import RankBatches
from balancer.problem.batch import GlobalBatch, checked_prefixes
from balancer.problem.constraints import Constraints
from balancer.problem.settings import STOP_AT
from balancer.problem.shuffle import shuffled
from balancer.problem.step_file import read_step
from balancer.problem.topology import MAX_RANKS
from solvers.arguments import as_count, as_int64, as_integer, as_share
from solvers.errors import ArgumentError, UsageError, WordedError, Wording

__all__ = ["BalancedBatchSampler"]

_NAMES = {"sample": "row", "samples": "rows", "rank": "micro-batch", "ranks": "micro-batches",
          "max_tokens_per_rank": "micro_batch_tokens"}  # fmt: skip


_BLOCK = 1 << 14  # positions whose rows are found together: a hundred take 1 ms by themselves, all of these 5


@lru_cache(maxsize=4)  # of a step that begins in one block and ends in the next, and of the last one's first rows
def _shuffled(block: int, total: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the rows at the positions of a block of an epoch's order."""
    return shuffled(np.arange(block * _BLOCK, min((block + 1) * _BLOCK, total)), total, seed, epoch)


class BalancedBatchSampler(RankBatches):
    """Batches of row numbers for one rank, of like cost in every micro-step; the `batch_sampler` of a DataLoader.

    Every epoch is shuffled, cut into global batches of ``batch_size * num_replicas * gradient_accumulation_steps``
    samples, and each of these is balanced. All ranks compute the same plan from the same arguments.

    Parameters
    ----------
    lengths : int64[n]
        Tokens, frames or patches of every sample of the dataset: a list, an array, or a torch CPU tensor.
    batch_size : int
        Samples of a rank in a micro-step, on average.
    num_replicas : int
        Data-parallel ranks.
    rank : int or None
        This rank. None: the batches of all ranks in turn, for ``accelerator.prepare`` to deal out.
    gradient_accumulation_steps : int
        Micro-steps in an optimizer step.
    shuffle : bool
        Every epoch in another order; if False, in the order of the dataset.
    seed : int
        Of the order: that of :func:`balancer.problem.shuffle.shuffled`.
    cost : str or CostModel
        The cost to balance, as in :func:`balancer.balance`: ``"padded"`` if batches are padded to their longest.
    drop_last : bool
        Leave out the samples after the last full global batch. If False, they are balanced too. A few samples from the
        beginning of the epoch are taken again, so that each rank has equally many (`equal_counts`), or at least one,
        in each micro-step.
    equal_counts : bool
        Every rank gets `batch_size` samples in every micro-step. Without it long samples come in small batches; this
        suits only losses that are normalised over the global batch.
    micro_batch_tokens : int, optional
        A cap, never exceeded, on the sum of lengths of a micro-batch; with padded costs, padding counts.
    prefix, prefix_lengths : array[n], int64[n], optional
        The key and the length of the prompt of each sample: see :func:`balancer.balance`.
    caps : mapping of str to (int64[n], int), optional
        Further quantities by name: the amount of each sample, and the cap on a micro-batch's sum.
    time_budget : float
        Seconds' worth of work for the solver in a global batch, counted and not timed.
    dataset : sized, optional
        The dataset of these lengths: if its number of samples differs, it is an error, so that no row stays untrained.
    stop_at : float, str or Fraction
        The proven gap at which the search ends sooner, ``0.001`` or ``"0.1%"``, or where it gains nothing for some
        turns; 0: only at the optimum.
    defer : int or (int, int)
        Steps that a sample may run early and late, so that long ones share steps: see :func:`balancer.defer`, whose
        counts are exact here. Before an epoch begins that takes a second or two for 100,000 samples.

    Raises
    ------
    TypeError, ValueError
        An argument that cannot be used.
    InfeasibleError, SolverError
        While iterating: a global batch that cannot keep to the caps; samples are called by their rows.

    Notes
    -----
    `set_epoch` before every epoch makes its order. `state_dict` counts samples of the epoch, not ranks: a sampler with
    other `num_replicas`, `batch_size`, accumulation or costs that loads it goes on with exactly the samples that were
    not trained. No rank's batch is ever empty. A thread plans the next two steps.

    Examples
    --------
    >>> lengths = [900, 100, 400, 600, 500, 500, 200, 800]
    >>> ranks = [BalancedBatchSampler(lengths, 2, num_replicas=2, rank=rank) for rank in range(2)]
    >>> [[sum(lengths[row] for row in batch) for batch in sampler] for sampler in ranks]
    [[900, 1300], [800, 1000]]
    """

    def __init__(
        self,
        lengths: ArrayLike,
        batch_size: int,
        num_replicas: int,
        rank: int | None,
        *,
        gradient_accumulation_steps: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        cost: str | CostModel = "linear",
        drop_last: bool = False,
        equal_counts: bool = True,
        micro_batch_tokens: int | None = None,
        prefix: ArrayLike | None = None,
        prefix_lengths: ArrayLike | None = None,
        caps: Mapping[str, tuple[ArrayLike, int]] | None = None,
        time_budget: float = 0.01,
        dataset: Sized | None = None,
        stop_at: float | str | Fraction = STOP_AT,
        defer: int | tuple[int, int] = 0,
    ) -> None:
        if as_count("num_replicas", num_replicas) > MAX_RANKS:
            raise ArgumentError("num_replicas", f"be <= {MAX_RANKS}", num_replicas)
        super().__init__(as_count("num_replicas", num_replicas), rank)
        self.lengths = GlobalBatch.from_lengths(lengths, 1).lengths
        self.gradient_accumulation_steps = as_count("gradient_accumulation_steps", gradient_accumulation_steps)
        self._groups = self.num_ranks * self.gradient_accumulation_steps
        self._samples_per_step = as_count("batch_size", batch_size) * self._groups
        self.shuffle, self.seed, self._drop = bool(shuffle), as_integer("seed", seed), bool(drop_last)
        self.equal_counts = bool(equal_counts)
        self._report = BalanceReport()
        self.cost = parse_cost(cost)
        self._options: dict[str, Any] = {
            "cost": self.cost, "equal_counts": self.equal_counts, "max_tokens_per_rank": micro_batch_tokens,
            "time_budget": time_budget, "stop_at": as_share("stop_at", stop_at),
        }  # fmt: skip
        self._read_prefixes(prefix, prefix_lengths)
        self._caps = {name: (as_int64(name, values), cap) for name, (values, cap) in (caps or {}).items()}
        for name, (values, _) in self._caps.items():
            if len(values) != len(self.lengths):
                raise ArgumentError(
                    "caps", f"have one value for each of {len(self.lengths)} samples", len(values), name
                )
        self._delays = self._checked_delays(defer)
        self._cuts: list[dict[str, Any]] = [self._cut(0)] if any(self._delays) else []
        self._deferred: tuple[str, NDArray[np.int64]] | None = None  # the order of an epoch, and of which
        self.check_dataset(dataset)
        if len(self.lengths) == 0:
            raise ArgumentError("lengths", "hold at least one sample", "none")
        if drop_last and len(self.lengths) < self.samples_per_step:
            raise ArgumentError(
                "lengths", f"fill a global batch of {self.samples_per_step} with drop_last", len(self.lengths)
            )

    def _read_prefixes(self, prefix: ArrayLike | None, prefix_lengths: ArrayLike | None) -> None:
        """Check prompts that samples share, and the prefix of each sample where the cost's mask has one."""
        count, self._prefixes = len(self.lengths), None
        if self.cost.needs_prefixes and prefix_lengths is not None:
            self._prefixes = checked_prefixes(prefix_lengths, count)
        no_prompts = prefix is None and (prefix_lengths is None or self._prefixes is not None)
        given = None if no_prompts else (prefix, prefix_lengths)
        self._prompts = Constraints.from_given(count, 1, prefix=given).prefix
        if self._prompts is not None:
            self._prompts.check(self.lengths)

    def _checked_delays(self, defer: int | tuple[int, int]) -> tuple[int, int]:
        """Return how many steps early and late, or raise for what deferral cannot keep."""
        pair = defer if isinstance(defer, tuple) else (defer, defer)
        early, late = (as_count("defer", delay, 0) for delay in pair)
        if (early or late) and self._caps:
            raise UsageError("{defer} knows no {caps}: a step of deferred samples could be over them")
        if (early or late) and (self._prompts is not None or self._prefixes is not None):
            raise UsageError("{defer} cannot be combined with {prefix_lengths}", "leave one of them out")
        # An empty epoch is deferred here, only so that costs and delays are refused now and not in training.
        if (early or late) and len(self.lengths):
            deferred_order(self.lengths[:0], [self._cut_with(early, late, 0)])
        return early, late

    def _cut_with(self, early: int, late: int, samples: int) -> dict[str, Any]:
        cap = self._options["max_tokens_per_rank"]
        # What a rank may hold in a whole step: deferral chooses steps, and knows no micro-batches.
        cap = None if cap is None else cap * self.gradient_accumulation_steps
        return cut_from(samples, early, late, self._samples_per_step, self.num_ranks, self.cost, cap)

    def _cut(self, samples: int) -> dict[str, Any]:
        """Return how the epoch is cut and deferred behind so many samples."""
        return self._cut_with(*self._delays, samples)

    def _running_order(self, epoch: int) -> NDArray[np.int64]:
        """Return all rows in the order in which they run, samples deferred."""
        # The order of one epoch is kept: it takes seconds to find, and every step asks for it.
        key = json.dumps([epoch, self._cuts])
        if self._deferred is None or self._deferred[0] != key:
            total = len(self.lengths)
            rows = shuffled(np.arange(total), total, self.seed, epoch) if self.shuffle else np.arange(total)
            self._deferred = key, rows[deferred_order(self.lengths[rows], self._cuts, self._drop)]
        return self._deferred[1]

    @classmethod
    def from_step(
        cls, step: str | os.PathLike[str], lengths: ArrayLike, rank: int | None, **beside: Any
    ) -> "BalancedBatchSampler":
        """Make a sampler of a step file (``step.toml``): its ranks, batch, cost and caps of the last phase.

        Parameters
        ----------
        step : path
            As ``balancer plan --step`` takes it; what needs exchanges or other columns is refused by name.
        lengths, rank, **beside
            As the class takes them; keywords given here win.
        """
        file = read_step(step)
        ranks, each = file.need("ranks", "batch_per_rank")
        delays = ("steps", "early", "late", "counts")
        file.check_known_to("a batch sampler", phase=("cost", "equal_counts"), cut=("tokens",),
                            plan=("time_budget", "stop_at"), deferral=delays)  # fmt: skip
        phase = dict(file.phases[-1]) if file.phases else {}
        given = {"batch_size": each, "num_replicas": ranks, "drop_last": file.top.get("drop_last", False)}
        given |= {name: phase[name] for name in ("cost", "equal_counts") if name in phase}
        if "tokens" in file.of("micro_batches"):
            given["micro_batch_tokens"] = file.of("micro_batches")["tokens"]
        if (counts := file.of("deferral").get("counts", "exact")) != "exact":
            raise InputError(f"{file.path}: [deferral] counts must be exact for a batch sampler, got {counts}")
        if across := AcrossSteps.from_options(**file.across()):
            given["defer"] = across.early, across.late
        if "time_budget" in file.of("plan"):
            given["time_budget"] = float(file.of("plan")["time_budget"])
        if "stop_at" in file.of("plan"):
            given["stop_at"] = str(file.of("plan")["stop_at"])
        return cls(lengths, rank=rank, **given | beside)

    def check_dataset(self, dataset: Sized | None) -> None:
        """Raise ValueError if a dataset does not have as many samples as there are lengths."""
        if dataset is not None and len(dataset) != len(self.lengths):
            raise ArgumentError(
                "lengths", f"have one for each of the {len(dataset)} samples of the dataset", len(self.lengths)
            )

    @property
    def samples_per_step(self) -> int:
        """Samples of a full global batch."""
        return self._samples_per_step

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return len(self._firsts(0))

    def plan_step(self, step: int, epoch: int = 0) -> list[list[list[int]]]:
        """Return the rows of a step as [micro-step][rank] -> ids; steps are counted from the epoch's beginning."""
        return self._plan(step * self.samples_per_step, epoch)

    def _plan(self, first: int, epoch: int) -> list[list[list[int]]]:
        """Return the same of the step that begins with the sample at position `first` of the epoch's order."""
        rows = self._rows(first, epoch)
        caps = {name: (values[rows], cap) for name, (values, cap) in self._caps.items()} or None
        words = Wording(_NAMES, {"row": lambda sample: int(rows[sample])})
        try:
            plan = balance(self.lengths[rows], self._groups, caps=caps, **self._shared(rows), **self._options)
        except WordedError as error:
            step, into = divmod(first, self.samples_per_step)
            where = f"the step from sample {first} on" if into else f"step {step}"
            raise error.in_words(words).within(f"epoch {epoch}, {where}") from None
        groups = [plan.samples_on_rank(group).tolist() for group in range(self._groups)]
        fill_empty(groups)
        heaviest_first = np.argsort(-plan.loads, kind="stable").tolist()
        grid = []
        for slot in range(self.gradient_accumulation_steps):  # ranks that wait in every slot have like loads in each
            slots = heaviest_first[slot * self.num_ranks : (slot + 1) * self.num_ranks]
            # A rank's samples stand in the order of the log, but those of one prompt side by side, as they are planned
            # There and back: a rank with the heaviest batch of one slot gets the lightest of the next.
            turn = slots[:: -1 if slot % 2 else 1]
            ordered = (groups[g] if self._prompts is not None else sorted(groups[g]) for g in turn)
            grid.append([rows[samples].tolist() for samples in ordered])
        return grid

    def _shared(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return the prompts of some rows as :func:`balancer.balance` takes them; nothing where there are none."""
        if self._prompts is not None:
            return {"prefix": self._prompts.keys[rows], "prefix_lengths": self._prompts.lengths[rows]}
        return {} if self._prefixes is None else {"prefix_lengths": self._prefixes[rows]}

    def report(self) -> BalanceReport:
        """Return what balancing did over the steps that this iterated over so far, those fetched ahead included.

        It is compared with rows as they are drawn, so many to each rank in turn; ranks wait in every micro-step.
        """
        return self._report

    def _planned(self, first: int, epoch: int) -> tuple[list[list[list[int]]], BalanceReport]:
        """Plan a step, and report on it."""
        began = time.perf_counter()
        grid = self._plan(first, epoch)
        plan_s = time.perf_counter() - began
        drawn = self._rows(first, epoch)
        home = GlobalBatch.from_lengths(self.lengths[drawn], self._groups).home.rank_of_sample
        batches = [batch for slot in grid for batch in slot]
        given = np.array(list(chain.from_iterable(batches)), dtype=np.int64)
        placed = np.repeat(np.arange(self._groups, dtype=np.int32), [len(batch) for batch in batches])
        before, after = (
            self._loads(rows, group).reshape(-1, self.num_ranks) for rows, group in ((drawn, home), (given, placed))
        )
        return grid, BalanceReport.of_loads(before, after, plan_s)

    def _loads(self, rows: NDArray[np.int64], group: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the load of each group of rows, prompts once a group."""
        costs = self.cost.sample_costs(self.lengths[rows], None if self._prefixes is None else self._prefixes[rows])
        if self._prompts is None:
            return self.cost.loads(costs, group, self._groups)
        # Each sample's cost without its prompt, and each prompt once for every group that holds it.
        shared = self._prompts.of_samples(rows)
        once = self.cost.sample_costs(shared.lengths, None if self._prefixes is None else shared.lengths)
        return self.cost.loads(costs - once + shared.once(once, group), group, self._groups)

    def _rows(self, first: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows of a global batch, with those that the last one takes again from the beginning."""
        total, count = len(self.lengths), self._count(first)
        short = -count % self._groups if self.equal_counts else max(0, self._groups - count)
        # Past the end the epoch's first samples come again, to fill the last step.
        positions = np.arange(first, first + count + short) % total
        if self._cuts:
            return self._running_order(epoch)[positions]
        if not self.shuffle:
            return positions
        blocks = positions // _BLOCK
        rows = np.empty_like(positions)
        for block in np.unique(blocks).tolist():
            inside = blocks == block
            rows[inside] = _shuffled(block, total, self.seed, epoch)[positions[inside] % _BLOCK]
        return rows

    def _count(self, first: int) -> int:
        """Return how many samples a step has that begins there, without those that it takes again."""
        return min(self.samples_per_step, len(self.lengths) - first)

    def _firsts(self, first: int) -> range:
        """Return where steps begin, from there on."""
        size = self.samples_per_step
        return range(first, len(self.lengths) - (size - 1 if self._drop else 0), size)

    def _steps(self, begin: Position, ranks: Sequence[int]) -> Iterator[tuple[int, list[list[list[int]]]]]:
        firsts = self._firsts(begin.samples)
        plans = planned_ahead(partial(self._planned, epoch=begin.epoch or 0), firsts)
        for first, (grid, report) in zip(firsts, plans, strict=True):
            self._report += report
            yield self._count(first), [[batches[rank] for rank in ranks] for batches in grid]

    def _sizes(self, begin: Position) -> Iterator[tuple[int, int]]:
        return ((self._count(first), self.gradient_accumulation_steps) for first in self._firsts(begin.samples))

    @cached_property  # loaders ask for the state at every batch
    def _data(self) -> dict[str, Any]:
        return {
            # A digest tells another data set apart, and keeps checkpoints small.
            "lengths": hashlib.sha256(self.lengths.tobytes()).hexdigest(),
            "seed": self.seed if self.shuffle else None,
        }

    def _order(self, epoch: int) -> dict[str, Any]:
        return self._data | ({"deferred": self._cuts} if self._cuts else {})

    def _begin_at(self, position: Position) -> None:
        # A new epoch is cut by today's settings alone; those of the run before it count no more.
        if self._cuts and position.samples == 0:
            self._cuts = [self._cut(0)]
        super()._begin_at(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says, as of any sampler; with deferral, what was taken early is not taken again.

        With another global batch, or other delays, the samples that have not run are cut into nominal steps anew.
        """
        # The state's cuts must be in place before the base class compares orders: they are part of the order.
        cuts = self._cuts
        if cuts and isinstance(state, Mapping) and isinstance(state.get("of"), Mapping):
            self._cuts = state["of"].get("deferred", cuts)
        try:
            super().load_state_dict(state)
        except Exception:
            self._cuts = cuts
            raise
        if self._cuts and self._cuts[-1] | {"from": 0} != self._cut(0):
            self._cuts = [*self._cuts, self._cut(self._begin.samples)]
