"""A step whose micro-batches keep to limits: tokens, images, counts, padding, kinds, samples on all ranks or none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.compat import step_grid
from balancer.compat.row_costs import RowCosts
from balancer.compat.step_grid import Grid, StepPlanner, pieces
from balancer.described import described, key
from balancer.problem.limits import HeldLimits, Limits, held_limits
from solvers.errors import InfeasibleError, SolverError, UsageError
from solvers.packing import schedule_micro_batches
from solvers.packing.fill_sorted import fill_sorted
from solvers.partitioning import partition

__all__ = ["LimitedStepPlanner", "digest_of", "exchanged", "read_limits"]

Ints = NDArray[np.int64]


@described
class _Asked:
    """Limits as a caller gives them."""

    limits: Limits = key("What a micro-batch may hold.")


def read_limits(limits: Any, lengths: Ints, num_ranks: int) -> HeldLimits:
    """Check limits on the micro-batches of rows; no row is over one by itself."""
    count = len(lengths)
    nothing = HeldLimits((), np.zeros((count, 0), dtype=np.int64), np.zeros((0, 1), dtype=np.int64))
    held = held_limits(_Asked(limits).limits, count, num_ranks) or nothing
    held.check_alone(lengths)
    return held


def digest_of(held: HeldLimits) -> str:
    """Return what tells limits apart."""
    found = hashlib.sha256(repr((held.most.tolist(), held.most_items, held.padded)).encode())
    for values in held.sizes, held.kinds, held.everywhere:
        found.update(b"none" if values is None else np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


class LimitedStepPlanner(StepPlanner):
    """Puts the rows of a step into micro-batches within limits; how many rows each has is free.

    Raises
    ------
    UsageError
        Limits that are not planned with such ranks or such a cost.
    """

    def __init__(
        self, costs: RowCosts, num_ranks: int, micro_steps: int, sync: str, speeds: Ints | None, limits: HeldLimits
    ) -> None:
        super().__init__(costs, num_ranks, micro_steps, sync, speeds)
        self.limits = limits
        if costs.prompts is not None:
            raise UsageError("{limits}, {step_tokens} and {batch_size=None} cannot be combined with {prefix}",
                             "leave it out")  # fmt: skip
        self.unlike_ranks = speeds is not None or limits.by_rank
        if self.unlike_ranks and not (limits.only_add_up and costs.additive):
            raise UsageError(
                "{rank_speeds} and limits with a number for each rank go with Limit and CountLimit alone, and with a "
                "cost that adds up over samples", "leave one of them out",
            )  # fmt: skip

    def with_micro_steps(self, micro_steps: int) -> LimitedStepPlanner:
        """Return the planner of steps with so many micro-steps."""
        return LimitedStepPlanner(self.costs, self.num_ranks, micro_steps, self.sync, self.speeds, self.limits)

    def plan(self, rows: Ints) -> Grid:
        """Return the micro-batches of rows, none empty; raises as :meth:`assign` does."""
        return Grid.of(rows, self.assign(rows), self.shape)

    def assign(self, rows: Ints) -> Ints:
        """Return the micro-batch of each row, ``micro_step * ranks + rank``, none empty.

        Raises
        ------
        SolverError
            They do not fit into so many micro-batches, or no way to put them there was found.
        """
        held = self.limits.of_samples(rows)
        if self.unlike_ranks:
            return self._slot_by_slot(rows, held)
        if not self.costs.additive:
            return self._padded(rows, held)
        batch = self._scheduled(rows, held)
        if self.costs.of(rows).ndim > 1 and held.padded is None:
            batch = self._with_phases(rows, held, batch)
        return batch

    def gathered(self, steps: list[Ints], rows_at: Callable[[Ints], Ints], size: int) -> list[Ints]:
        """Exchange positions between steps, until each has enough of those that all ranks are to have, or none."""
        flags = self.limits.everywhere
        if flags is None:
            return steps
        # With a row in each micro-batch, a micro-step is either of these alone or has none.
        parts = self.micro_steps if size == self.num_ranks * self.micro_steps else 1
        units = [each for step in steps for each in (np.split(step, parts) if len(step) == size else [step])]
        rows = [rows_at(each) for each in units]
        found = exchanged(units, [flags[each] for each in rows], [self.costs.summed(each) for each in rows],
                          self.num_ranks)  # fmt: skip
        ends = np.cumsum([len(step) for step in steps])[:-1]
        return np.split(np.concatenate(found), ends)

    def unfit(self, number: int, epoch: int, rows: Ints, why: SolverError) -> UsageError:
        """Return an error that names the step, the limit and what can be done."""
        return UsageError(
            "step {number} of epoch {epoch}: its {count} samples do not fit {batches} micro-batches: {why}",
            ("give a higher limit, more {gradient_accumulation_steps} or a wider {window}",
             "or {batch_size=None}, for steps of as many samples as fit"),
            number=number, epoch=epoch, count=len(rows), batches=self.num_ranks * self.micro_steps,
            why=self._why(rows) or why,
        )  # fmt: skip

    def _why(self, rows: Ints) -> str | None:
        """Say which limit rows are over, if sums tell."""
        held, ranks = self.limits.of_samples(rows), self.num_ranks
        if held.everywhere is not None and 0 < (found := int(held.everywhere.sum())) < ranks:
            return f"{found} of them are to be on all {ranks} ranks of a micro-step or on none (Everywhere)"
        for name, amounts, most in zip(held.names, held.sizes.T, held.most, strict=True):
            room = int(np.broadcast_to(most, ranks).sum()) * self.micro_steps
            if (total := int(amounts.sum())) > room:
                return f"{name} adds up to {total}, and they hold {room}, short by {total - room}"
        if held.most_items is not None and len(rows) > (room := held.most_items * ranks * self.micro_steps):
            return f"CountLimit lets them hold {room}"
        if held.kinds is not None and (kinds := len(np.unique(held.kinds))) > ranks * self.micro_steps:
            return f"they are of {kinds} kinds, and a micro-batch holds one (Kinds)"
        return None

    def _scheduled(self, rows: Ints, held: HeldLimits) -> Ints:
        """Plan all micro-batches of like ranks at once."""
        costs, tokens, given = self.costs.summed(rows), self.costs.lengths[rows], held.for_solver()
        cap = max(1, int(tokens.sum()))
        if len(given.caps) and given.padded is None:  # the first sum is the cap that schedules have anyway
            tokens, cap = np.ascontiguousarray(given.sizes[:, 0]), int(given.caps[0])
            given = given._replace(sizes=given.sizes[:, 1:], caps=given.caps[1:])
        alone = not len(given.caps) and all(each is None for each in given[2:])
        found = schedule_micro_batches(
            costs, tokens, self.num_ranks, cap, sync=self.sync, num_slots=self.micro_steps,
            time_budget=step_grid.BUDGET, limits=None if alone else given,
        )  # fmt: skip
        return found.slot_of_item.astype(np.int64) * self.num_ranks + found.rank_of_item

    def _padded(self, rows: Ints, held: HeldLimits) -> Ints:
        """Fill micro-batches with rows of like length: they are padded least."""
        lengths = self.costs.lengths[rows]
        layout = fill_sorted(
            self.costs.summed(rows), lengths, self.num_ranks, self.micro_steps, max(1, int(lengths.sum())),
            held.for_solver().checked(len(rows), lengths), sync=self.sync, pays_padding=True,
        )  # fmt: skip
        if layout is None:
            raise InfeasibleError("{limits}: sorted by length, the samples need more micro-batches")
        rank, slot = np.divmod(layout.astype(np.int64), self.micro_steps)
        return slot * self.num_ranks + rank

    def _with_phases(self, rows: Ints, held: HeldLimits, batch: Ints) -> Ints:
        """Make ranks even in each phase, if a micro-step at a time does; who may be where stays as it is."""
        costs, found, initial = self.costs.of(rows), batch.copy(), None
        for slot in range(self.micro_steps):
            mine = np.flatnonzero(batch // self.num_ranks == slot)
            ranks = batch[mine] - slot * self.num_ranks
            try:
                better = self._on_limited_ranks(rows[mine], held.of_samples(mine), initial, _places(
                    held.of_samples(mine), ranks, self.num_ranks))  # fmt: skip
            except SolverError:
                better = ranks
            found[mine] = slot * self.num_ranks + better
            initial = self._so_far(initial, costs[mine], better)
        before, after = (self._takes(Grid.of(rows, each, self.shape)) for each in (batch, found))
        return found if after < before else batch

    def _takes(self, grid: Grid) -> int:
        """Return what ranks wait for: in each phase, once or in every micro-step, the slowest."""
        loads = self.loads(grid)
        return int((loads.sum(axis=0).max(axis=0) if self.sync == "step" else loads.max(axis=1)).sum())

    def over_even(self, grid: Grid) -> float:
        """Return what a step takes over what it would if ranks, which are alike, were even."""
        return self._takes(grid) * self.num_ranks / max(1, int(self.loads(grid).sum()))

    def _so_far(self, initial: Ints | None, costs: Ints, ranks: Ints) -> Ints | None:
        """Return what ranks have to do when a micro-step is done; nothing, where they wait for each other there."""
        if self.sync != "step":
            return None
        loads = np.zeros((self.num_ranks, *costs.shape[1:]), dtype=np.int64)
        np.add.at(loads, ranks, costs)
        return loads if initial is None else initial + loads

    # Unlike ranks: rows are cut into micro-steps, and each of these is dealt to ranks by their speeds and limits.

    def _slot_by_slot(self, rows: Ints, held: HeldLimits) -> Ints:
        """Plan one micro-step after the other; where ranks wait once a step, each evens out those before it."""
        failed: SolverError | None = None
        for slot_of in self._ways(len(rows)):
            batch, initial = np.empty(len(rows), dtype=np.int64), None
            try:
                for slot in range(self.micro_steps):
                    mine = np.flatnonzero(slot_of == slot)
                    ranks = self._on_limited_ranks(rows[mine], held.of_samples(mine), initial, None)
                    batch[mine] = slot * self.num_ranks + ranks
                    initial = self._so_far(initial, self.costs.of(rows[mine]), ranks)
                return batch
            except SolverError as error:
                failed = error
        raise failed if failed is not None else InfeasibleError("{limits}: no way was found")

    def _ways(self, count: int) -> list[Ints]:
        """Return the micro-step of each row: like with like, as they lie; and evenly, to and fro."""
        to_and_fro = np.arange(count) % (2 * self.micro_steps)
        evenly = np.minimum(to_and_fro, 2 * self.micro_steps - 1 - to_and_fro)
        return [evenly] if self.sync == "step" else [pieces(count, self.micro_steps), evenly]

    def _on_limited_ranks(
        self, rows: Ints, held: HeldLimits, initial: Ints | None, allowed: NDArray[np.bool_] | None
    ) -> Ints:
        """Return the rank of each row of a micro-step, so that ranks are done together within sums and counts."""
        costs = self.costs.of(rows)
        finer = self.finer(costs, initial)
        caps = np.ascontiguousarray(np.broadcast_to(held.most, (len(held.names), self.num_ranks)).T)
        found = partition(
            costs * finer, self.num_ranks, min_items=1, max_items=held.most_items, speeds=self.speeds, allowed=allowed,
            initial_loads=None if initial is None else initial * finer, time_budget=step_grid.BUDGET / self.micro_steps,
            stop_at=step_grid.STOP_AT, sizes=held.sizes if held.names else None, caps=caps if held.names else None,
        )  # fmt: skip
        return found.group_of_item.astype(np.int64)


def _places(held: HeldLimits, ranks: Ints, num_ranks: int) -> NDArray[np.bool_] | None:
    """Return on which ranks each row of a micro-step may be, where kinds and samples on all ranks stay as planned."""
    if held.kinds is not None:
        kind = np.empty(num_ranks, dtype=np.int64)
        kind[ranks] = held.kinds
        return held.kinds[:, None] == kind  # type: ignore[no-any-return]
    if held.everywhere is not None and held.everywhere.any():
        flagged = np.flatnonzero(held.everywhere)
        stays = flagged[np.unique(ranks[flagged], return_index=True)[1]]  # one of them on each rank
        allowed = np.ones((len(ranks), num_ranks), dtype=np.bool_)
        allowed[stays] = ranks[stays, None] == np.arange(num_ranks)
        return allowed
    return None


def exchanged(
    steps: Sequence[Ints], flagged: Sequence[NDArray[np.bool_]], costs: Sequence[Ints], least: int
) -> list[Ints]:
    """Exchange things between steps until each has `least` that are flagged, or none, if that can be.

    Each step keeps its size, and gets things of like cost for those it gives.
    """
    steps, flagged = [each.copy() for each in steps], [each.copy() for each in flagged]
    costs = [each.copy() for each in costs]
    counts = np.array([int(each.sum()) for each in flagged])
    few = [step for step in np.argsort(-counts, kind="stable").tolist() if 0 < counts[step] < least]
    enough = np.flatnonzero(counts >= least).tolist()
    while few:
        # The one with fewest gives all it has: to fill up others, and what is left to those with enough.
        giver = few.pop()
        for taker in [*few, *few, *enough]:
            full = counts[taker] >= least
            while counts[giver] and (full or counts[taker] < least) and not flagged[taker].all():
                gives = int(np.flatnonzero(flagged[giver])[0])
                others = np.flatnonzero(~flagged[taker])
                takes = int(others[np.argmin(np.abs(costs[taker][others] - costs[giver][gives]))])
                for held in steps, flagged, costs:
                    held[giver][gives], held[taker][takes] = held[taker][takes], held[giver][gives]
                counts[giver] -= 1
                counts[taker] += 1
        enough += [step for step in few if counts[step] >= least]
        few = [step for step in few if counts[step] < least]
    return steps
