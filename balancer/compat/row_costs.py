"""What rows of a dataset cost: each by itself, and in micro-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.compat.epoch_order import digest
from balancer.cost.given import given_costs
from balancer.cost.model import CostModel
from balancer.cost.parse import parse_cost
from solvers.arguments import INT64_MAX
from solvers.errors import ArgumentError, UsageError

__all__ = ["RowCosts"]

Ints = NDArray[np.int64]


class RowCosts:
    """The cost of each row: by a model of its length, or as the caller gives it, one number a row or one a phase.

    Attributes
    ----------
    lengths : int64[n]
    model : CostModel
        Linear where costs are given.
    given : int64[n] or int64[n, c] or None
    prompts : Prefixes or None
        The prompts that rows share, which a micro-batch computes once.
    """

    def __init__(
        self, lengths: Ints, cost: str | CostModel | ArrayLike, prefix: ArrayLike | None,
        prefix_length: ArrayLike | None,
    ) -> None:  # fmt: skip
        by_model = isinstance(cost, str | CostModel)
        self.lengths = lengths
        self.given = None if by_model else given_costs("cost", cost, len(lengths))  # type: ignore[arg-type]
        self.model = parse_cost(cost if by_model else "linear")  # type: ignore[arg-type]
        self._read_prompts(prefix, prefix_length)

    def _read_prompts(self, keys: ArrayLike | None, lengths: ArrayLike | None) -> None:
        """Check the prompts that samples share, and the prefix of each sample where the cost's mask has one."""
        self.prompts, self._prefixes, count = None, None, len(self.lengths)
        if self.model.needs_prefixes and lengths is None:
            raise UsageError("cost '{cost}' needs {prefix_length}, as its mask has each sample's", cost=self.model)
        if keys is None and lengths is None:
            return
        from balancer.problem.batch import checked_prefixes
        from balancer.problem.constraints import Constraints

        if self.model.needs_prefixes and lengths is not None:
            self._prefixes = checked_prefixes(lengths, count)
            if len(odd := np.flatnonzero(self._prefixes > self.lengths)):
                row = int(odd[0])
                raise ArgumentError("prefix_length", "be <= the length of its sample", self._prefixes[row], row)
        if keys is not None or self._prefixes is None:
            self.prompts = Constraints.from_given(count, 1, prefix=(keys, lengths)).prefix
            self.prompts.check(self.lengths)  # type: ignore[union-attr]

    def check_sums(self, samples: int) -> None:
        """Check that the costs and the lengths of so many samples fit int64, whichever they are."""
        if not len(self.lengths):
            return
        longest = int(self.lengths.max())
        if self.given is None:
            each = self.model.exact(longest, longest) + self.model.c * longest**self.model.p
        else:
            each = int(_summed(self.given).max())
        if max(longest, each) * samples > INT64_MAX:
            row = int((self.lengths if self.given is None or longest > each else _summed(self.given)).argmax())
            rule = f"fit int64 when {samples} samples are summed, with lengths[{row}] = {self.lengths[row]}"
            raise ArgumentError("cost" if each >= longest else "lengths", rule, max(each, longest), row)

    @property
    def additive(self) -> bool:
        """Whether a micro-batch costs what its rows cost by themselves."""
        return self.model.additive

    def __str__(self) -> str:
        return str(self.model) if self.given is None else digest(self.given)

    def of(self, rows: Ints) -> Ints:
        """Return what rows cost: int64[n]; int64[n, c] of c phases, or of a convolution what `model.loads` takes."""
        if self.given is not None:
            return self.given[rows]
        return self.model.sample_costs(self.lengths[rows], None if self._prefixes is None else self._prefixes[rows])

    def summed(self, rows: Ints) -> Ints:
        """Return one number a row: the sum over phases, int64[n]."""
        return _summed(self.of(rows))

    def heaviest_first(self, rows: Ints) -> NDArray[np.intp]:
        """Return the order of rows from the one that costs most."""
        return np.argsort(-self.summed(rows), kind="stable")

    def of_prompts(self, rows: Ints) -> tuple[Any, Ints]:
        """Return the prompts of rows, and what each costs."""
        shared = self.prompts.of_samples(rows)  # type: ignore[union-attr]
        return shared, self.model.sample_costs(shared.lengths, shared.lengths if self.model.needs_prefixes else None)

    def loads(self, rows: Ints, batch: NDArray[np.int32], count: int) -> Ints:
        """Return the load of each of `count` micro-batches, int64[count] or int64[count, c]; `batch` is each row's."""
        costs = self.of(rows)
        if self.given is not None and costs.ndim > 1:
            return np.stack([self.model.loads(np.ascontiguousarray(each), batch, count) for each in costs.T], axis=1)
        if self.prompts is not None:
            shared, once = self.of_prompts(rows)
            costs = costs - once + shared.once(once, batch)
        return self.model.loads(costs, batch, count)


def _summed(costs: Ints) -> Ints:
    """Return one number a row."""
    return costs if costs.ndim == 1 else costs.sum(axis=1)
