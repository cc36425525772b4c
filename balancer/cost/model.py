"""Cost models: what a sample, or a padded mini-batch, costs in integer work units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import OWN_PREFIX, Terms
from balancer.cost.by_length import ByLength
from balancer.cost.parts import Attention
from balancer.cost.sequence_parallel import DegreeTimes, Sharing
from solvers.arguments import INT64_MAX, first_overflow
from solvers.bounds import Bound, makespan_bound
from solvers.errors import Named, UsageError
from solvers.groups import group_loads, mixed_loads, padded_loads
from solvers.partitioning import padded
from solvers.partitioning.mixed import mixed_bound

_LARGEST_POWER = 62  # 2 to a larger one does not fit int64


@dataclass(frozen=True, slots=True)
class CostModel(ByLength):
    """``a * l + b * l^2`` for a sample of length l; a mini-batch costs the sum, or, padded, rows times the longest row.

    Attention that does not see every pair of tokens has `areas`: a sample costs ``constant + a * l + b * l^2`` and, of
    each area, its number times the pairs that the mask keeps. A sample of length 0 costs 0.

    With `c`, as for audio encoders with a convolution over padded rows, a mini-batch costs the sum plus ``c * rows *
    longest^p``.

    Attributes
    ----------
    a, b : int
        Non-negative, not both 0 (unless `c` is given). Work units a token, and a token squared. Integers, so that all
        ranks agree.
    padded : bool
        Whether every row of a mini-batch is padded to its longest.
    c, p : int
        Work units of a padded row: ``c * longest^p``; p is at least 1. Not together with `padded`.
    sharing : Sharing
        What several ranks that share a sample take; by default 5 % of their speed is lost with each doubling.
    attention : Attention or None
        That of the model, where the cost is a named model's: ranks that exchange heads must divide them.
    model : str
        The model whose FLOPs it is, as reports name it; empty where nobody has said.
    flops_of_unit : int
        FLOPs of one work unit, where the cost is a named model's; 0 where nobody has said.
    constant : int
        Work units of a sample, or of a padded row, whatever its length, but for length 0.
    areas : mapping of str to int, or tuple of (str, int)
        Work units a pair of tokens, by the names of :data:`balancer.cost.areas.AREAS`; kept as a tuple in one order.
        ``bidirectional`` is added to `b`, which it is another word for.

    Examples
    --------
    >>> CostModel(a=24576, b=1).sample_costs(np.array([1, 1000]))
    array([   24577, 25576000])
    >>> CostModel(a=10, areas={"full": 8, "window2": 40}).sample_costs(np.array([1, 2, 3]))
    array([ 58, 164, 278])
    """

    a: int = 1
    b: int = 0
    padded: bool = False
    c: int = 0
    p: int = 1
    sharing: Sharing = field(default=Sharing(), repr=False)
    attention: Attention | None = field(default=None, repr=False, compare=False)
    constant: int = 0
    areas: Terms = ()
    model: str = field(default="", repr=False, compare=False)
    flops_of_unit: int = field(default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_terms("c", "p")
        for name, value in {**self.terms, "c": self.c}.items():
            if value > INT64_MAX:
                raise ValueError(f"cost coefficient {name} must fit int64, got {value}")
        if self.a == self.b == self.c == 0 and not self.areas:
            if self.constant:
                raise ValueError(f"a cost needs a, b or an area above 0, got constant={self.constant} alone")
            raise ValueError("cost coefficients a and b must not both be 0")
        if self.c and (self.areas or self.constant):
            raise ValueError("costs with a convolution take no areas and no constant: plan them by a, b, c and p")
        if not 1 <= self.p <= _LARGEST_POWER:
            raise ValueError(f"cost coefficient p, a power, must be 1 to {_LARGEST_POWER}, got {self.p}")
        if self.padded and self.c:
            raise ValueError(f"padded costs take no coefficient c, got {self.c}: a and b are per padded row already")
        if not self.c and self.p != 1:
            raise ValueError(f"cost coefficient p = {self.p} needs a coefficient c >= 1")
        if not self.additive and self.sharing != Sharing():
            raise ValueError(f"cost '{self}' is of rows padded together, which no ranks share: it takes no sharing")

    @property
    def needs_prefixes(self) -> bool:
        """Whether a mask is over the prefix of each sample, which :meth:`sample_costs` must then be given."""
        return any(name == OWN_PREFIX for name, _ in self.areas)

    @property
    def additive(self) -> bool:
        """Whether a mini-batch costs the sum of what its samples cost: neither padded nor with a convolution."""
        return not self.padded and not self.c

    def __str__(self) -> str:
        """Return the form that :func:`balancer.cost.parse_cost` reads."""
        if self.c:
            return f"convolution:a={self.a},b={self.b},c={self.c},p={self.p}"
        beyond = bool(self.areas or self.constant)
        terms = {"constant": self.constant} if self.constant else {}
        terms |= {"a": self.a, "bidirectional" if beyond and not self.padded else "b": self.b, **dict(self.areas)}
        if self.padded:
            return "padded" if terms == {"a": 1, "b": 0} else "padded:" + _words(terms)
        if beyond:
            return "attention:" + _words({name: value for name, value in terms.items() if value} | self.sharing.words())
        words = terms if self.b else {} if self.a == 1 else {"a": self.a}
        words |= self.sharing.words()
        return ("quadratic" if self.b else "linear") + (":" if words else "") + _words(words)

    @property
    def in_words(self) -> str:
        """Its text form, and the model that it is of, as reports say it."""
        return f"{self} of {self.model}" if self.model else str(self)

    def times(self, factor: int) -> CostModel:
        """Return the same cost in a unit of which one of this cost's has `factor`; ValueError past int64."""
        if not self.additive or self.sharing != Sharing():
            raise UsageError(f"cost '{self}' is not one of plain terms, which can be told in another unit")
        areas = tuple((name, value * factor) for name, value in self.areas)
        return replace(self, a=self.a * factor, b=self.b * factor, constant=self.constant * factor, areas=areas,
                       flops_of_unit=self.flops_of_unit // factor)  # fmt: skip

    def sample_costs(self, lengths: NDArray[np.int64], prefixes: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Cost of each sample: int64[n].

        `prefixes`, int64[n], are asked for by :attr:`needs_prefixes`, and of no other cost. With `c`, int64[n, 2]: the
        additive cost of the sample, and the cost of each row that is padded to it.

        Raises
        ------
        ValueError
            Where a cost, or the sum (padded: n times the largest; with `c`, both), does not fit int64; it names the
            sample.
        """
        if (prefixes is None) == self.needs_prefixes:
            if prefixes is None:
                raise UsageError(f"cost '{self}' needs {{prefix_length}}: its mask 'prefix' is of each sample's own")
            raise UsageError(f"cost '{self}' has no mask 'prefix' without a number: leave {{prefix_length}} out")
        count, at = len(lengths), int(lengths.argmax()) if len(lengths) else 0  # a fourth of the time of max()
        longest = int(lengths[at]) if count else 0
        # Costs never fall with the length or the prefix, so one sample bounds all of them.
        largest = int(self.exact(longest, longest))
        row = self.c * longest**self.p if self.c else largest if self.padded else 0
        if max(largest, row) > INT64_MAX:
            raise self._too_large("the cost", lengths, at)
        if row * count > INT64_MAX:
            raise self._too_large(f"{count} padded rows of the cost", lengths, at)
        # Lengths are their own cost in the most common case: no copy.
        is_length = (self.a, self.b, self.constant) == (1, 0, 0) and not self.areas
        costs = lengths if is_length else self.exact(lengths, 0 if prefixes is None else prefixes)
        costs = np.asarray(costs, dtype=np.int64)
        if self.padded or (not self.c and largest * count <= INT64_MAX):
            return costs  # of which no sum can be too large
        if (over := first_overflow(costs)) is not None:
            raise self._too_large("the sum of the batch's costs up to the cost", lengths, over)
        if not self.c:
            return costs
        if int(costs.sum()) + row * count > INT64_MAX:
            raise self._too_large(f"the sum of the batch's costs and {count} padded rows of the cost", lengths, at)
        return np.stack((costs, self.c * lengths**self.p), axis=1)

    def _too_large(self, rule: str, lengths: NDArray[np.int64], sample: int) -> UsageError:
        return UsageError(
            f"{rule} of {{sample}} (length {lengths[sample]}) must fit int64 under cost '{self}'",
            "use smaller coefficients", sample=Named("sample", sample),
        )  # fmt: skip

    def degree_times(self, lengths: NDArray[np.int64], degrees: ArrayLike, num_ranks: int) -> DegreeTimes:
        """Time of each sample in a sequence group of each degree, and the overhead of a slot.

        Parameters
        ----------
        lengths : int64[n]
        degrees : int[D]
            Distinct, at least 1; with 1, times are those of :meth:`sample_costs`.
        num_ranks : int
            On so many ranks the sums that a solver forms have to fit; see ``unit`` of what is returned.

        Raises
        ------
        ValueError
            If the cost is padded or has a convolution, a time does not fit int64 (it names the sample), or a degree is
            less than 1 or there twice.

        Examples
        --------
        >>> CostModel().degree_times(np.array([1000, 95]), [1, 2, 4], 8).times.tolist()
        [[1000, 95], [527, 50], [278, 27]]
        """
        if not self.additive:
            raise UsageError(
                f"cost '{self}' is of rows padded together: {{sequence_groups}} need one that adds up over samples",
                "use linear, quadratic or flops",
            )
        if self.needs_prefixes:
            raise UsageError(f"cost '{self}' is of a prefix of each sample, which {{sequence_groups}} do not know")
        at = int(np.argmax(lengths)) if len(lengths) else -1
        if at >= 0 and not self.sharing.fits(self.exact(int(lengths[at])), int(lengths[at])):
            raise self._too_large("with its exchange the cost", lengths, at)
        # Empty samples are never launched, so they cost nothing.
        constant = self.constant * (lengths > 0)
        return self.sharing.by_degree(
            self.a * lengths, self.attention_work(lengths), lengths, degrees, num_ranks, constant
        )

    def loads(self, costs: NDArray[np.int64], rank_of_sample: NDArray[np.int32], num_ranks: int) -> NDArray[np.int64]:
        """Load of each rank, int64[num_ranks], from the costs that :meth:`sample_costs` returned."""
        if self.c:
            each, row = np.ascontiguousarray(costs.T)
            return mixed_loads(each, row, rank_of_sample, num_ranks)
        return (padded_loads if self.padded else group_loads)(costs, rank_of_sample, num_ranks)

    def slot_loads(
        self, costs: NDArray[np.int64], rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, num_slots: int
    ) -> NDArray[np.int64]:
        """Load of each micro-batch, int64[num_ranks, num_slots], from costs, ranks and slots of samples."""
        bins = rank * np.int32(num_slots) + slot
        return self.loads(costs, bins, num_ranks * num_slots).reshape(num_ranks, num_slots)

    def tokens(
        self, lengths: NDArray[np.int64], rank_of_sample: NDArray[np.int32], num_ranks: int
    ) -> NDArray[np.int64]:
        """Elements that each rank holds, padding included where rows are padded (not before a convolution alone)."""
        return (padded_loads if self.padded else group_loads)(lengths, rank_of_sample, num_ranks)

    def lower_bound(
        self, costs: NDArray[np.int64], num_ranks: int, equal_counts: bool = False, min_samples: int = 0
    ) -> Bound:
        """Best closed-form lower bound on the makespan, from the costs that :meth:`sample_costs` returned."""
        if self.c:
            return mixed_bound(costs[:, 0], costs[:, 1], num_ranks, equal_counts)
        if self.padded:
            found = padded(costs, num_ranks, equal_counts=equal_counts, min_items=min_samples)
            return Bound(found.makespan, "padded")
        return makespan_bound(costs, num_ranks, equal_counts)


def _words(words: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in words.items())
