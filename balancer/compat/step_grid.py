"""A step on ranks and micro-steps: which rows each micro-batch has, so that ranks are even where they wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.compat.row_costs import RowCosts
from balancer.problem.limits import HeldLimits
from solvers.errors import ArgumentError, InfeasibleError, SolverError, UsageError, Wording
from solvers.packing import fill_sorted, schedule_micro_batches
from solvers.partitioning import partition

__all__ = ["EVEN", "Grid", "StepPlanner", "numbered", "pieces"]

Ints = NDArray[np.int64]

_WORDS = {"num_slots": "gradient_accumulation_steps", "slots": "micro-steps", "item": "sample", "items": "samples"}
"""What schedules call things, in the sampler's words."""

BUDGET, STOP_AT = 0.01, "0.1%"  # seconds' worth of work, and a gap that is small enough: times of steps vary by more
_CLOSE = 1.002  # unlike ranks that are no more over even are not planned in another way
EVEN = 1.001  # what is no more over even is not planned anew


class Grid(NamedTuple):
    """The micro-batches of a step, none empty.

    Attributes
    ----------
    rows : int64[n]
        Micro-step after micro-step, and in each rank after rank.
    counts : int64[micro-steps, ranks]
    """

    rows: Ints
    counts: Ints

    @classmethod
    def of(cls, rows: Ints, batch: NDArray[np.integer], shape: tuple[int, int]) -> Grid:
        """Return rows by their micro-batches, ``micro_step * ranks + rank``; within one in the order given."""
        counts = np.bincount(batch, minlength=shape[0] * shape[1]).reshape(shape)
        return cls(rows[np.argsort(batch, kind="stable")], counts)

    @classmethod
    def cut(cls, rows: Ints, shape: tuple[int, int]) -> Grid:
        """Return rows cut where they lie, as many in each micro-batch, within one."""
        return cls.of(rows, pieces(len(rows), shape[0] * shape[1]), shape)

    @property
    def batch(self) -> Ints:
        """The micro-batch of each row, int64[n]."""
        return np.repeat(np.arange(self.counts.size), self.counts.ravel())

    def batches(self, ranks: Sequence[int]) -> list[list[list[int]]]:
        """Return ``[micro-step][of ranks] -> rows``."""
        ends = np.cumsum(self.counts).reshape(self.counts.shape)
        begins = ends - self.counts
        return [
            [self.rows[slot[rank][0] : slot[rank][1]].tolist() for rank in ranks]
            for slot in np.stack([begins, ends], axis=2).tolist()
        ]


class StepPlanner:
    """Puts the rows of a step into micro-batches, `micro_steps` on each rank.

    Parameters
    ----------
    costs : RowCosts
    num_ranks, micro_steps : int
    sync : str
        Where ranks wait: in every ``"micro_batch"``, or once a ``"step"``.
    speeds : int64[ranks], optional
        Of unlike ranks, which then hold unlike numbers of rows. Without speeds and limits all hold as many.
    limits : HeldLimits, optional
        On the micro-batches of all rows.

    Raises
    ------
    ArgumentError, UsageError
        Not a speed for each rank; limits or speeds that are not planned with such ranks or such a cost.
    """

    def __init__(
        self, costs: RowCosts, num_ranks: int, micro_steps: int, sync: str, speeds: Ints | None = None,
        limits: HeldLimits | None = None,
    ) -> None:  # fmt: skip
        self.costs, self.num_ranks, self.micro_steps, self.sync, self.limits = (
            costs, num_ranks, micro_steps, sync, limits,
        )  # fmt: skip
        if speeds is not None:
            if len(speeds) != num_ranks:
                raise ArgumentError("rank_speeds", f"have a number for each of {num_ranks} ranks", len(speeds))
            if not costs.additive or costs.prompts is not None:
                raise UsageError(
                    "{rank_speeds} are for a cost that adds up over samples, without padding and without {prefix}",
                    ("give a cost for each sample, such as measured seconds", "or leave {rank_speeds} out"),
                )  # fmt: skip
            speeds = speeds // np.gcd.reduce(speeds)
        self.speeds = speeds
        self.unlike_ranks = speeds is not None or (limits is not None and limits.by_rank)
        if limits is not None and costs.prompts is not None:
            raise UsageError("{limits}, {step_tokens} and {batch_size=None} cannot be combined with {prefix}",
                             "leave it out")  # fmt: skip
        if limits is not None and self.unlike_ranks and not (limits.only_add_up and costs.additive):
            raise UsageError(
                "{rank_speeds} and limits with a number for each rank go with Limit and CountLimit alone, and with a "
                "cost that adds up over samples", "leave one of them out",
            )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int]:
        """Micro-steps and ranks."""
        return self.micro_steps, self.num_ranks

    @property
    def batches(self) -> int:
        """How many micro-batches a step has."""
        return self.micro_steps * self.num_ranks

    def plan(self, rows: Ints) -> Grid:
        """Return the micro-batches of rows, as :meth:`assign` has them; those that share a prompt lie side by side."""
        batch = self.assign(rows)
        if self.costs.prompts is not None:
            order = np.argsort(self.costs.of_prompts(rows)[0].keys, kind="stable")
            rows, batch = rows[order], batch[order]
        return Grid.of(rows, batch, self.shape)

    def assign(self, rows: Ints) -> Ints:
        """Return the micro-batch of each row, ``micro_step * ranks + rank``; none is empty.

        Rows come from the one that costs most. Without speeds and limits there are as many in each.

        Raises
        ------
        SolverError
            They do not fit into so many micro-batches, or no way to put them there was found.
        """
        if self.limits is None:
            return self._by_count(rows)
        if self.unlike_ranks:
            return self._unlike(rows)
        held = self.limits.of_samples(rows)
        if not self.costs.additive:
            return self._filled(rows, held)
        batch = self._scheduled(rows, held)
        if self.costs.of(rows).ndim > 1 and held.padded is None:
            return self._with_phases(rows, batch)
        return batch

    def _by_count(self, rows: Ints) -> Ints:
        if self.costs.prompts is not None:
            return self.even_ranks(rows, self._sharing_prompts(rows))
        if not self.costs.additive:  # cut where they lie: rows of like length are padded least
            return self.even_ranks(rows, pieces(len(rows), self.batches))
        if self.sync == "step":
            return self._even_once(rows)
        if self.unlike_ranks:
            return self._unlike(rows)
        # Like sits with like, as the rows lie.
        return self.even_ranks(rows, self._slot_by_slot(rows, pieces(len(rows), self.micro_steps)))

    def _even_once(self, rows: Ints) -> Ints:
        """Make ranks even over the whole step; a rank's costliest rows come first, to meet those of other ranks."""
        rank = self._on_ranks(rows, BUDGET, self.micro_steps)
        order, counts = np.argsort(rank, kind="stable"), np.bincount(rank, minlength=self.num_ranks)
        slot = np.concatenate([pieces(count, self.micro_steps) for count in counts.tolist()])
        batch = np.empty(len(rows), dtype=np.int64)
        batch[order] = slot * self.num_ranks + rank[order]
        return batch

    def _slot_by_slot(self, rows: Ints, slot_of: Ints, stays: Ints | None = None) -> Ints:
        """Plan one micro-step after the other; where ranks wait once a step, each evens out those before it.

        With `stays`, the rank of each row, what limits say of kinds and of rows on all ranks stays as it is; and all of
        a micro-step for which no other ranks are found.
        """
        batch, costs = np.empty(len(rows), dtype=np.int64), self.costs.of(rows)
        before = np.zeros((self.num_ranks, *costs.shape[1:]), dtype=np.int64) if self.sync == "step" else None
        for slot in range(self.micro_steps):
            mine = np.flatnonzero(slot_of == slot)
            allowed = None if stays is None else self._places(rows[mine], stays[mine])
            try:
                ranks = self._on_ranks(rows[mine], BUDGET / self.micro_steps, 1, before, allowed)
            except SolverError:
                if stays is None:
                    raise
                ranks = stays[mine]
            batch[mine] = slot * self.num_ranks + ranks
            if before is not None:
                np.add.at(before, ranks, costs[mine])
        return batch

    def _unlike(self, rows: Ints) -> Ints:
        """Plan for unlike ranks, the better of two ways where they wait in every micro-step.

        Some of all costs in each, as few samples that are alike cannot be shared out by speed; or like with like, which
        is best for long ones.
        """
        turn = np.arange(len(rows)) % (2 * self.micro_steps)
        ways = [np.minimum(turn, 2 * self.micro_steps - 1 - turn)]  # to and fro
        if self.sync == "micro_batch":
            ways.append(pieces(len(rows), self.micro_steps))
        found, failed = [], SolverError("")
        for slot_of in ways:
            try:
                batch = self._slot_by_slot(rows, slot_of)
            except SolverError as error:
                failed = error
                continue
            found.append((self.over_even(rows, batch), batch))
            if found[-1][0] <= _CLOSE:
                break
        if not found:
            raise failed
        return min(found, key=lambda each: each[0])[1]

    def _on_ranks(
        self, rows: Ints, seconds: float, least: int, before: Ints | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Ints:  # fmt: skip
        """Return the rank of each row, so that ranks are done together with these and what they have to do `before`.

        Like ranks have as many rows each if there are no limits; else every rank has `least` of them.
        """
        costs = self.costs.of(rows)
        rules: dict[str, Any] = {"equal_counts": True}
        if self.speeds is not None or self.limits is not None:
            finer = self._finer(int(costs.sum()) + (0 if before is None else int(before.sum())))
            costs, before = costs * finer, None if before is None else before * finer
            rules = {"speeds": self.speeds, "min_items": least, "initial_loads": before, "allowed": allowed}
        if self.limits is not None:
            held = self.limits.of_samples(rows)
            rules["max_items"] = held.most_items
            if held.names:
                caps = np.broadcast_to(held.most, (len(held.names), self.num_ranks)).T
                rules |= {"sizes": held.sizes, "caps": np.ascontiguousarray(caps)}
        found = partition(costs, self.num_ranks, time_budget=seconds, stop_at=STOP_AT, **rules)
        return found.group_of_item.astype(np.int64)

    def _sharing_prompts(self, rows: Ints) -> Ints:
        """Plan all micro-batches of a step at once, each with its prompts; those of like load meet in a micro-step."""
        costs, (shared, once) = self.costs.of(rows), self.costs.of_prompts(rows)
        found = partition(costs - once, self.batches, prefix=shared.keys, prefix_costs=once, equal_counts=True,
                          time_budget=BUDGET)  # fmt: skip
        return numbered(-found.loads)[found.group_of_item]

    # Under limits.

    def _scheduled(self, rows: Ints, held: HeldLimits) -> Ints:
        """Plan all micro-batches of like ranks at once."""
        costs, tokens, given = self.costs.summed(rows), self.costs.lengths[rows], held.for_solver()
        cap = max(1, int(tokens.sum()))
        if len(given.caps) and given.padded is None:  # the first sum is the cap that schedules have anyway
            tokens, cap = np.ascontiguousarray(given.sizes[:, 0]), int(given.caps[0])
            given = given._replace(sizes=given.sizes[:, 1:], caps=given.caps[1:])
        alone = not len(given.caps) and all(each is None for each in given[2:])
        try:
            found = schedule_micro_batches(
                costs, tokens, self.num_ranks, cap, sync=self.sync, num_slots=self.micro_steps, time_budget=BUDGET,
                limits=None if alone else given,
            )  # fmt: skip
        except SolverError as error:
            raise error.in_words(Wording(_WORDS | {"cap": next(iter(held.names), "limits")})) from None
        return found.slot_of_item.astype(np.int64) * self.num_ranks + found.rank_of_item

    def _filled(self, rows: Ints, held: HeldLimits) -> Ints:
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

    def _with_phases(self, rows: Ints, batch: Ints) -> Ints:
        """Make ranks even in each phase, if a micro-step at a time does; they are planned by the sum of phases."""
        found = self._slot_by_slot(rows, *np.divmod(batch, self.num_ranks))
        return min(batch, found, key=lambda each: self.over_even(rows, each))

    def _places(self, rows: Ints, ranks: Ints) -> NDArray[np.bool_] | None:
        """Return on which ranks each row of a micro-step may be, if kinds and samples on all ranks stay there."""
        held = self.limits.of_samples(rows)  # type: ignore[union-attr]
        if held.kinds is not None:
            kind = np.empty(self.num_ranks, dtype=np.int64)
            kind[ranks] = held.kinds
            return held.kinds[:, None] == kind  # type: ignore[no-any-return]
        if held.everywhere is None or not held.everywhere.any():
            return None
        flagged = np.flatnonzero(held.everywhere)
        stays = flagged[np.unique(ranks[flagged], return_index=True)[1]]  # one of them on each rank
        allowed = np.ones((len(rows), self.num_ranks), dtype=np.bool_)
        allowed[stays] = ranks[stays, None] == np.arange(self.num_ranks)
        return allowed

    # What micro-batches cost.

    def loads(self, rows: Ints, batch: Ints) -> Ints:
        """Return the load of each micro-batch: int64[micro-steps, ranks], or int64[micro-steps, ranks, phases]."""
        found = self.costs.loads(rows, batch.astype(np.int32), self.batches)
        return found.reshape(*self.shape, *found.shape[1:])

    def over_even(self, rows: Ints, batch: Ints) -> float:
        """Return what ranks wait for, once or in every micro-step, in each phase, over that of even ranks."""
        times = self.loads(rows, batch).reshape(*self.shape, -1)
        total, speeds = int(times.sum()), self.num_ranks
        if self.speeds is not None:
            finer, speeds = self._finer(total), int(self.speeds.sum())
            times, total = times * finer // self.speeds[:, None], total * finer
        waits = times.sum(axis=0).max(axis=0) if self.sync == "step" else times.max(axis=1)
        return int(waits.sum()) * speeds / max(1, total)

    def _finer(self, total: int) -> int:
        """Return a factor of costs that sum to `total`: times are whole numbers, and in a finer unit rounded less."""
        return 1 if self.speeds is None else max(1, min(int(self.speeds.max()), 2**60 // max(1, total)))

    def even_ranks(self, rows: Ints, batch: Ints) -> Ints:
        """Choose which rank has which micro-batch of a micro-step: the heaviest goes to the rank with least so far."""
        if self.micro_steps == 1 or self.unlike_ranks:  # what is planned for a fast rank stays on it
            return batch
        loads = self.loads(rows, batch).reshape(*self.shape, -1).sum(axis=2)
        rank_of, totals = np.empty(self.shape, dtype=np.int64), np.zeros(self.num_ranks, dtype=np.int64)
        for slot in np.argsort(-loads.max(axis=1), kind="stable"):
            heaviest, least = np.argsort(-loads[slot], kind="stable"), np.argsort(totals, kind="stable")
            rank_of[slot, heaviest] = least
            totals[least] += loads[slot, heaviest]
        return (rank_of + self.num_ranks * np.arange(self.micro_steps)[:, None]).ravel()[batch]


def pieces(count: int, number: int) -> Ints:
    """Return which of `number` pieces each of `count` things is in, cut where they lie; their sizes differ by one."""
    return ((np.arange(count) + 1) * number - 1) // max(1, count)


def numbered(keys: NDArray[Any]) -> Ints:
    """Return the place of each key when they are sorted."""
    found = np.empty(len(keys), dtype=np.int64)
    found[np.argsort(keys, kind="stable")] = np.arange(len(keys))
    return found
