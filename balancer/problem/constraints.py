"""What a plan must keep to on every rank, beyond holding each sample once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.errors import did_you_mean
from balancer.problem.batch import checked_prefixes
from balancer.problem.placement import Placement
from solvers.arguments import as_array, as_count, as_flag, as_int64, as_integer
from solvers.errors import ArgumentError, ArgumentTypeError, SolverError, UsageError, Wording, braced
from solvers.groups import group_loads

MAX_TOKENS = "max_tokens_per_rank"
"""The name of the cap on the sum of lengths."""

Function = TypeVar("Function", bound=Callable[..., Any])

Read = Callable[[str, Any, int, int], Any]
"""From a constraint's name, a caller's value, and the numbers of samples and ranks, to the value that is kept."""


class Cap(NamedTuple):
    """A second quantity of which no rank gets more than `limit`."""

    name: str
    amounts: NDArray[np.int64]  # of each sample
    limit: int


class Prompts(NamedTuple):
    """What samples begin with, which a rank computes once for all of one key that it has."""

    keys: NDArray[np.int64]  # int64[n]: 0, 1, ...: the prompt of each sample
    lengths: NDArray[np.int64]  # int64[n]: its length, part of the sample's, alike for all of a key

    def of_samples(self, members: NDArray[np.int64]) -> Prompts:
        """Return those of some samples."""
        return Prompts(np.unique(self.keys[members], return_inverse=True)[1].astype(np.int64), self.lengths[members])

    def check(self, lengths: NDArray[np.int64]) -> None:
        """Raise ValueError for a prompt that is longer than a sample, or of two lengths."""
        if (longer := self.lengths > lengths).any():
            i = int(np.argmax(longer))
            raise ArgumentError("prefix_length", f"be <= the length of its sample, {lengths[i]}", self.lengths[i], i)
        first = np.unique(self.keys, return_index=True)[1][self.keys]
        if (unlike := self.lengths != self.lengths[first]).any():
            j = int(np.argmax(unlike))
            i = int(first[j])
            raise UsageError(
                "samples {one} and {other} have one {prefix} key, and {prefix_length} of {a} and {b}: it must be one",
                one=i, other=j, a=int(self.lengths[i]), b=int(self.lengths[j]),
            )  # fmt: skip

    def once(self, amounts: NDArray[np.int64], bin_of_sample: NDArray[Any]) -> NDArray[np.int64]:
        """Keep what prompts have of one sample in each rank, or micro-batch, that has any: int64[n]. O(n log n)."""
        pair = bin_of_sample.astype(np.int64) * (int(self.keys.max(initial=0)) + 1) + self.keys
        first = np.unique(pair, return_index=True)[1]
        kept = np.zeros_like(amounts)
        kept[first] = amounts[first]
        return kept

    def copies(self, bin_of_sample: NDArray[Any]) -> NDArray[np.int64]:
        """Return on how many ranks, or in how many micro-batches, each prompt is computed: int64[k]."""
        held = np.unique(np.stack([self.keys, bin_of_sample]), axis=1)[0]
        return np.bincount(held).astype(np.int64)

    def side_by_side(
        self, rank_of_sample: NDArray[np.int32], num_ranks: int, slot_of_sample: NDArray[np.int32] | None = None
    ) -> Placement:
        """Place each rank's samples slot by slot, in each by the first of their prompt, then by number."""
        first, n = np.unique(self.keys, return_index=True)[1][self.keys], len(self.keys)
        slot = np.zeros(n, dtype=np.int32) if slot_of_sample is None else slot_of_sample
        # By the first sample of a prompt, and not by its number: keys say nothing of order.
        turn = np.lexsort((np.arange(n), first, slot, rank_of_sample))
        position = np.empty(n, dtype=np.int64)
        position[turn] = np.arange(n) - np.searchsorted(rank_of_sample[turn], rank_of_sample[turn])
        return Placement.checked(rank_of_sample, num_ranks, position)


class Declared(NamedTuple):
    """A constraint, as all that speak of it know it: callers, phases, solvers, the command line, docs."""

    meaning: str  # what is asked for
    value: str  # "flag"; "number"; one a "rank"; one a "sample", in phases a column; or "caps"
    read: Read
    unset: Any  # what callers give who do not ask for it
    of_solver: str  # what the solvers call it
    taken_by: frozenset[str]  # costs, cuts by name, and ways to place that can keep to it: of `TAKERS`


def _as_keys(name: str, keys: ArrayLike, num_samples: int, _: int) -> NDArray[Any]:
    array = as_array(name, keys)
    if array.shape != (num_samples,):
        raise ArgumentError(name, f"have a key for each of {num_samples} samples", f"shape {array.shape}")
    try:
        # Keys of any kind become numbers from 0: solvers compare integers only.
        codes = np.unique(array, return_inverse=True)[1]
    except TypeError:
        raise ArgumentTypeError(name, "hold keys of one kind", "integers and strings") from None
    return codes.astype(np.int64)


def _as_prompts(name: str, given: Any, num_samples: int, num_ranks: int) -> Prompts:
    keys, lengths = given
    if keys is None or lengths is None:
        missing = "prefix" if keys is None else "prefix_length"
        raise UsageError(f"{{prefix}} and {{prefix_length}} need each other: give {{{missing}}} as well")
    return Prompts(_as_keys(name, keys, num_samples, num_ranks), checked_prefixes(lengths, num_samples))


def _as_caps(name: str, caps: Any, num_samples: int, _: int) -> tuple[Cap, ...]:
    if not isinstance(caps, Mapping):
        raise ArgumentTypeError(name, "map names to pairs of amounts and a limit", repr(caps))
    return tuple(_as_cap(quantity, of, num_samples) for quantity, of in caps.items())


def _as_cap(name: str, of: tuple[ArrayLike, int], num_samples: int) -> Cap:
    try:
        amounts, limit = of
    except (TypeError, ValueError):
        raise TypeError(f"caps[{name!r}] must be a pair of amounts and a limit, got {of!r}") from None
    array = as_int64(f"caps[{name!r}]", amounts)
    if array.shape != (num_samples,):
        raise ValueError(f"caps[{name!r}] must have an amount for each of {num_samples} samples, got {len(array)}")
    if array.size and array.min() < 0:
        index = int(np.argmax(array < 0))
        raise ValueError(f"caps[{name!r}][{index}] must be >= 0, got {array[index]}")
    return Cap(name, array, as_integer(f"the limit of caps[{name!r}]", limit, 1))


def _as_mask(name: str, allowed: ArrayLike, num_samples: int, num_ranks: int) -> NDArray[np.bool_]:
    """Read a matrix, or of each sample the ranks on which it may run; None: on all."""
    # A matrix of plain Python lists looks like lists of ranks; only its values, all bool, tell.
    if isinstance(allowed, Sequence) and not isinstance(allowed, str) and not all(map(_is_row, allowed)):
        return _mask_of_lists(name, allowed, num_samples, num_ranks)
    array = as_array(name, allowed)
    if array.dtype != np.bool_ or array.shape != (num_samples, num_ranks):
        shape = f"({num_samples}, {num_ranks})"
        raise ArgumentError(name, f"be bool of shape {shape}", f"{array.dtype} of {array.shape}")
    return array


def _is_row(row: Any) -> bool:
    """Whether this is a row of a matrix, and no list of ranks."""
    if isinstance(row, np.ndarray):
        return bool(row.dtype == np.bool_)
    return isinstance(row, Sequence) and all(type(value) is bool for value in row)


def _mask_of_lists(name: str, allowed: Sequence[Any], num_samples: int, num_ranks: int) -> NDArray[np.bool_]:
    if len(allowed) != num_samples:
        raise ArgumentError(name, f"have a list of ranks, or None, for each of {num_samples} samples", len(allowed))
    mask = np.zeros((num_samples, num_ranks), dtype=np.bool_)
    for sample, ranks in enumerate(allowed):
        if ranks is None:
            mask[sample] = True
            continue
        if isinstance(ranks, str) or not isinstance(ranks, Sequence | np.ndarray):
            raise ArgumentTypeError(name, "be a list of ranks, or None for all", repr(ranks), sample)
        array = as_int64(f"{name}[{sample}]", ranks)
        if (outside := (array < 0) | (array >= num_ranks)).any():
            raise ArgumentError(f"{name}[{sample}]", f"be ranks within 0..{num_ranks - 1}", array[outside][0])
        mask[sample, array] = True
    return mask


def _per_rank(least: int) -> Read:
    """Return what reads one number >= `least` a rank."""

    def read(name: str, values: Any, num_samples: int, num_ranks: int) -> NDArray[np.int64]:
        array = as_int64(name, values)
        if array.shape != (num_ranks,):
            raise ArgumentError(name, f"have a number for each of {num_ranks} ranks", len(array))
        if array.size and array.min() < least:
            index = int(np.argmax(array < least))
            raise ArgumentError(name, f"be >= {least}", array[index], index)
        return array

    return read


TAKERS = ("padded", "convolution", "micro_batches", "sequence_groups", "sequence_parallel", "relocation", "slot")
"""Who may be unable to keep to a constraint: costs that do not add up, cuts by name, relocation, encoders in slots."""


def _number(least: int) -> Read:
    """Return what reads a count >= `least`."""
    return lambda name, value, num_samples, num_ranks: as_count(name, value, least)


CONSTRAINTS = {
    "equal_counts": Declared(
        "equally many samples a rank, within one", "flag", lambda name, value, *_: as_flag(name, value), False,
        "equal_counts", frozenset({"padded", "convolution", "micro_batches", "relocation"}),
    ),
    MAX_TOKENS: Declared(
        "a cap on a rank's tokens", "number", lambda name, value, *_: as_integer(name, value, 1), None,
        "caps", frozenset({"padded", "convolution", "micro_batches", "sequence_parallel", "relocation"}),
    ),
    "min_samples_per_rank": Declared(
        "a least number of samples a rank", "number", _number(0), 0, "min_items", frozenset({"padded", "micro_batches"})
    ),
    "max_samples_per_rank": Declared(
        "a largest number of samples a rank", "number", _number(1), None, "max_items",
        frozenset({"micro_batches", "sequence_parallel"}),
    ),
    "keep_together": Declared(
        "samples with equal keys on one rank", "sample", _as_keys, None, "keep_together",
        frozenset({"micro_batches", "sequence_groups", "sequence_parallel", "relocation"}),
    ),
    "prefix": Declared(
        "samples of one key share a prompt, which a rank computes once", "sample", _as_prompts, None, "prefix",
        frozenset({"micro_batches"}),
    ),
    "caps": Declared(
        "caps on other quantities of a rank", "caps", _as_caps, None, "caps",
        frozenset({"micro_batches", "sequence_parallel"}),
    ),
    "allowed_ranks": Declared(
        "only some ranks for a sample", "sample", _as_mask, None, "allowed", frozenset({"micro_batches", "slot"})
    ),
    "initial_loads": Declared(
        "load that ranks have already", "rank", _per_rank(0), None, "initial_loads", frozenset()
    ),
    "rank_speeds": Declared("ranks that are faster than others", "rank", _per_rank(1), None, "speeds", frozenset()),
}  # fmt: skip
"""All constraints by name: the fields of :class:`Constraints`, and each of them an argument of `balance`."""

PER_SAMPLE = tuple(name for name, given in CONSTRAINTS.items() if given.value in ("sample", "caps"))
"""Constraints with a value for each sample."""

COLUMNS = tuple(name for name, given in CONSTRAINTS.items() if given.value == "sample")
"""Those for which phases name a column."""

_PER_RANK = tuple(name for name, given in CONSTRAINTS.items() if given.value == "rank")


class KeptArguments(TypedDict, total=False):
    """What `balance` takes by name for what every rank's share keeps to; :class:`balancer.Phase` has the same keys."""

    equal_counts: bool
    max_tokens_per_rank: int | None
    min_samples_per_rank: int
    max_samples_per_rank: int | None
    keep_together: ArrayLike | None
    prefix: ArrayLike | None
    prefix_length: ArrayLike | None
    caps: Mapping[str, tuple[ArrayLike, int]] | None
    allowed_ranks: ArrayLike | Sequence[Sequence[int] | None] | None
    initial_loads: ArrayLike | None
    rank_speeds: ArrayLike | None


def with_kept(function: Function) -> Function:
    """Let help and completion show the names that ``**kept`` of a function takes."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    unset = {name: declared.unset for name, declared in CONSTRAINTS.items()}
    named = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=unset.get(name), annotation=hint.__forward_arg__
        )
        for name, hint in KeptArguments.__annotations__.items()  # as they are written
    ]
    function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    return function


def not_taken(taker: str, names: Iterable[str]) -> list[str]:
    """Return which of the constraints one of :data:`TAKERS` cannot keep to."""
    return [name for name in names if name not in CONSTRAINTS or taker not in CONSTRAINTS[name].taken_by]


@dataclass(frozen=True, slots=True, eq=False)
class Constraints:
    """Constraints on what each rank gets, in any combination; :meth:`from_given` checks them.

    Attributes
    ----------
    equal_counts : bool
        Every rank gets n/ranks samples, within one where that does not divide.
    max_tokens_per_rank : int or None
        No rank gets a larger sum of lengths (padded costs: rows times the longest).
    min_samples_per_rank : int
        Every rank gets at least this number of samples.
    max_samples_per_rank : int or None
        No rank gets more samples.
    keep_together : array[n] or None
        Samples with equal keys run on one rank, wherever in the batch they stand.
    prefix : Prompts or None
        Samples of one key share a prompt, which counts once on each rank that has any of them.
    caps : tuple of Cap
        Further quantities, each with its cap.
    allowed_ranks : bool[n, ranks] or None
        Where each sample may run; lists of ranks are taken too.
    initial_loads : int64[ranks] or None
        Load in cost units that a rank has before it gets anything.
    rank_speeds : int64[ranks] or None
        Work units that a rank does in a unit of time.
    """

    equal_counts: bool = False
    max_tokens_per_rank: int | None = None
    min_samples_per_rank: int = 0
    max_samples_per_rank: int | None = None
    keep_together: NDArray[Any] | None = None
    prefix: Prompts | None = None
    caps: tuple[Cap, ...] = ()
    allowed_ranks: NDArray[np.bool_] | None = None
    initial_loads: NDArray[np.int64] | None = None
    rank_speeds: NDArray[np.int64] | None = None

    @classmethod
    def from_given(cls, num_samples: int, num_ranks: int, **given: Any) -> Constraints:
        """Check constraints that come from a caller, each by its name in :data:`CONSTRAINTS`.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, the value and the rule.
        """
        if odd := next((name for name in given if name not in CONSTRAINTS), None):
            raise TypeError(f"there is no argument {odd!r}{did_you_mean(odd, tuple(KeptArguments.__annotations__))}")
        # Compared by identity: arrays have no single truth value.
        asked = {name: value for name, value in given.items() if value is not CONSTRAINTS[name].unset}
        if not asked:
            return NONE
        read = {name: CONSTRAINTS[name].read(name, value, num_samples, num_ranks) for name, value in asked.items()}
        return cls(**read)

    def names(self) -> tuple[str, ...]:
        """Names of the constraints that are set."""
        if self is NONE:
            return ()
        return tuple(
            name for name in self.__slots__ if (value := getattr(self, name)) is not None
            and not (isinstance(value, bool | int | tuple) and value == getattr(NONE, name))
        )  # fmt: skip

    def of_samples(self, members: NDArray[np.int64], ranks: slice = slice(None)) -> Constraints:
        """Return the constraints on some of the samples, and on consecutive ranks."""
        together, allowed = self.keep_together, self.allowed_ranks
        loads, speeds = self.initial_loads, self.rank_speeds
        return replace(
            self,
            keep_together=None if together is None else np.unique(together[members], return_inverse=True)[1],
            prefix=None if self.prefix is None else self.prefix.of_samples(members),
            caps=tuple(cap._replace(amounts=cap.amounts[members]) for cap in self.caps),
            allowed_ranks=None if allowed is None else allowed[members, ranks],
            initial_loads=None if loads is None else loads[ranks],
            rank_speeds=None if speeds is None else speeds[ranks],
        )

    def on_shares(self, sample: NDArray[np.int64], degree: NDArray[np.integer]) -> Constraints:
        """Return those on shares, given of each its sample and how many ranks have one: each has its part of a cap."""
        # Rounded up: ranks' parts together are no less than the whole.
        caps = tuple(cap._replace(amounts=-(-cap.amounts[sample] // degree)) for cap in self.caps)
        return replace(self, keep_together=None, caps=caps)

    def to_json(self) -> dict[str, Any]:
        """Return what a plan file keeps: numbers, and lists of one number per rank; nothing per sample."""
        found = {name: getattr(self, name) for name in CONSTRAINTS if name not in PER_SAMPLE}
        return found | {name: found[name].tolist() for name in _PER_RANK if found[name] is not None}

    @property
    def per_sample(self) -> tuple[str, ...]:
        """Names of the constraints with a value for each sample, which :meth:`to_json` leaves out."""
        return tuple(name for name in self.names() if name in PER_SAMPLE)

    def all_caps(self, lengths: NDArray[np.int64]) -> tuple[Cap, ...]:
        """Return every capped quantity, tokens among them, in the order that solvers see."""
        if self.max_tokens_per_rank is None:
            return self.caps
        return (Cap(MAX_TOKENS, lengths, self.max_tokens_per_rank), *self.caps)

    def solver_keywords(self, lengths: NDArray[np.int64]) -> dict[str, Any]:
        """Return the constraints as :func:`solvers.partition` takes them."""
        if self is NONE:
            return {}
        caps = self.all_caps(lengths)
        given = {CONSTRAINTS[name].of_solver: getattr(self, name) for name in self.names()}
        if self.prefix is not None:
            given["prefix"] = self.prefix.keys
        if caps:
            given["sizes"] = np.stack([cap.amounts for cap in caps], axis=1)
            given["caps"] = np.array([cap.limit for cap in caps], dtype=np.int64)
        return given

    def wording(self, error: SolverError) -> Wording:
        """Return the words for samples, ranks and constraints in an error of the solvers."""
        caps = self.all_caps(np.empty(0, dtype=np.int64))
        certificate = getattr(error, "certificate", None)
        if certificate is not None and certificate.quantity is not None:
            caps = caps[certificate.quantity : certificate.quantity + 1]
        tokens = [cap.name for cap in caps] == [MAX_TOKENS]
        names = [f"{{{cap.name}}}" if cap.name == MAX_TOKENS else braced(cap.name) for cap in caps]
        named = " and ".join(f"{name} = {cap.limit}" for name, cap in zip(names, caps, strict=True))
        return Wording(
            {given.of_solver: name for name, given in CONSTRAINTS.items() if given.of_solver != name} | {
                "caps": named or "caps", "sizes": "lengths" if tokens else "amounts",
                "size": "length" if tokens else "amount", "column": "",
                "group": "rank", "groups": "ranks", "item": "sample", "items": "samples",
            },
        )  # fmt: skip

    def makespan(self, loads: NDArray[np.int64]) -> int:
        """Return the time until the last rank is done: the largest load, over the rank's speed, rounded up."""
        if self.rank_speeds is None:
            return int(loads[loads.argmax()])  # a fourth of the time of max()
        return int((-(-loads // self.rank_speeds)).max())

    def with_initial(self, loads: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the loads with what each rank had before."""
        return loads if self.initial_loads is None else loads + self.initial_loads

    def violation(
        self, rank_of_sample: NDArray[np.int32], tokens: NDArray[np.int64], samples: NDArray[np.int64] | None = None
    ) -> str | None:
        """Say which constraint a placement breaks first, given the tokens on each rank; None if it keeps all.

        Where ranks share samples, `samples` says which sample each share is of, int64[n].
        """
        num_ranks = len(tokens)
        counts = np.bincount(rank_of_sample, minlength=num_ranks)
        if self.equal_counts and counts.max() - counts.min() > 1:
            return f"counts are not equal: ranks hold {counts.min()} to {counts.max()} samples"
        held = [("tokens", tokens, self.max_tokens_per_rank), ("samples", counts, self.max_samples_per_rank)]
        held += [(cap.name, group_loads(cap.amounts, rank_of_sample, num_ranks), cap.limit) for cap in self.caps]
        for name, amounts, limit in held:
            if limit is not None and (largest := int(amounts.max())) > limit:
                return f"rank {int(np.argmax(amounts))} holds {largest} {name}, cap {limit}"
        if (fewest := int(counts.min())) < self.min_samples_per_rank:
            return f"rank {int(np.argmin(counts))} holds {fewest} samples, least {self.min_samples_per_rank}"
        if self.keep_together is not None and (apart := _first_apart(self.keep_together, rank_of_sample)) is not None:
            one, other = apart if samples is None else samples[list(apart)]
            return f"samples {one} and {other} have one keep_together key, but run on two ranks"
        if self.allowed_ranks is not None:
            allowed = self.allowed_ranks[np.arange(len(rank_of_sample)), rank_of_sample]
            if not allowed.all():
                share = int(np.argmin(allowed))
                sample = share if samples is None else samples[share]
                return f"sample {sample} runs on rank {rank_of_sample[share]}, which allowed_ranks forbids"
        return None


NONE = Constraints()
"""No constraint: what most steps have, and it is one object for all of them."""


def _first_apart(keys: NDArray[Any], rank_of_sample: NDArray[np.int32]) -> tuple[int, int] | None:
    order = np.argsort(keys, kind="stable")
    apart = (keys[order[1:]] == keys[order[:-1]]) & (rank_of_sample[order[1:]] != rank_of_sample[order[:-1]])
    if not apart.any():
        return None
    first = int(np.argmax(apart))
    return int(order[first]), int(order[first + 1])
