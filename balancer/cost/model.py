"""Cost models: what a sample, or a padded mini-batch, costs in integer work units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.areas import OWN_PREFIX, Terms, as_terms, pairs
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
class CostModel:
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
        terms = dict(as_terms(self.areas))
        # One cost has one form: b and this area count the same pairs, so both go into b.
        if "bidirectional" in terms:
            object.__setattr__(self, "b", self.b + terms.pop("bidirectional"))
        object.__setattr__(self, "areas", tuple(terms.items()))
        for name, value in (*((each, getattr(self, each)) for each in ("constant", "a", "b", "c", "p")), *self.areas):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
                raise ValueError(f"cost coefficient {name} must be an integer >= 0, got {value!r}")
            if value > INT64_MAX:
                raise ValueError(f"cost coefficient {name} must fit int64, got {value}")
        for name in ("constant", "a", "b", "c", "p"):
            object.__setattr__(self, name, int(getattr(self, name)))
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
        terms = {name: getattr(self, name) * factor for name in ("a", "b", "constant")}
        return replace(self, **terms, areas=areas, flops_of_unit=self.flops_of_unit // factor)

    def exact(self, length: int, prefix: int = 0) -> int:
        """Cost of one sample, or of one padded row, whatever its size; with `c` without what a padded row costs."""
        return self.constant * (length > 0) + self.a * length + int(self.attention_work(length, prefix))

    def attention_work(self, lengths: Any, prefixes: Any = 0) -> Any:
        """What of a cost is pairs of tokens: an int, or int64[n], which the caller knows to hold it."""
        all_pairs = self.b * lengths * lengths
        return all_pairs + pairs(self.areas, lengths, prefixes) if self.areas else all_pairs

    def costs_before(self, queries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cost of the first queries alone of each sample, int64[n], of a cost that is additive and fits int64.

        It is that of a sample that ends there, so no query sees a key after its own. What pieces of a sample cost by
        this adds up to the sample's cost; the constant is of the piece that begins it.
        """
        before = self.constant * (queries > 0) + self.a * queries + self.attention_work(queries)
        return np.asarray(before, dtype=np.int64)

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
        longest = int(lengths[lengths.argmax()]) if len(lengths) else 0  # a fourth of the time of max()
        # Costs never fall with the length or the prefix, so one sample bounds all of them.
        largest = self.exact(longest, longest)
        row = self.c * longest**self.p if self.c else largest if self.padded else 0
        sample: int | None = None
        rule = "the cost"
        if max(largest, row) <= INT64_MAX:
            rule = f"{len(lengths)} padded rows of the cost"
            if row * len(lengths) <= INT64_MAX:
                costs = self._each(lengths, prefixes)
                if self.padded or (not self.c and largest * len(lengths) <= INT64_MAX):
                    return costs  # of which no sum can be too large
                where = first_overflow(costs)
                if where is None and (not self.c or int(costs.sum()) + row * len(lengths) <= INT64_MAX):
                    return np.stack((costs, self.c * lengths**self.p), axis=1) if self.c else costs
                if where is None:
                    rule = f"the sum of the batch's costs and {len(lengths)} padded rows of the cost"
                else:
                    sample, rule = where, "the sum of the batch's costs up to the cost"
        sample = int(np.argmax(lengths)) if sample is None else sample
        raise UsageError(
            f"{rule} of {{sample}} (length {lengths[sample]}) must fit int64 under cost '{self}'",
            "use smaller coefficients", sample=Named("sample", sample),
        )  # fmt: skip

    def _each(self, lengths: NDArray[np.int64], prefixes: NDArray[np.int64] | None) -> NDArray[np.int64]:
        if self.areas or self.constant:
            work = self.a * lengths + self.attention_work(lengths, 0 if prefixes is None else prefixes)
            return np.asarray(work + self.constant * (lengths > 0), dtype=np.int64)
        # Lengths are their own cost in the most common case: no copy.
        return lengths if (self.a, self.b) == (1, 0) else self.a * lengths + self.b * lengths * lengths

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
        longest = int(np.argmax(lengths)) if len(lengths) else -1
        if longest >= 0 and not self.sharing.fits(self.exact(int(lengths[longest])), int(lengths[longest])):
            raise UsageError(
                f"the cost of {{sample}} (length {lengths[longest]}) and its exchange must fit int64 under cost "
                f"'{self}'", "use smaller coefficients", sample=Named("sample", longest),
            )  # fmt: skip
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
