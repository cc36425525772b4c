"""What ranks hold where they share items, and caps on it: a rank holds its share of an item, or all of a whole one."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.problem.constraints import MAX_TOKENS, Cap, Constraints
from balancer.problem.cuts.sequence_groups import LongShort
from balancer.problem.problem import Problem
from solvers.errors import InfeasibilityCertificate, InfeasibleError, Named, SolverError, UsageError, braced

Ints = NDArray[np.int64]
_COUNTS = "max_samples_per_rank"
# Sixteenths of what a group's ranks hold: what is less full is easier to share out.
_PARTS = (12, 15, 16)
# Of a quantity, of all items: a sum over ranks still fits int64.
_MOST = 2**61
# Seconds' worth of looking for a cap that does: the default of `solvers.partition`.
_BUDGET = 0.01


class Held(NamedTuple):
    """What a group of ranks may hold of each capped quantity: int64[q, units] of each unit, and int64[q] at most."""

    names: tuple[str, ...]
    amounts: Ints
    limits: Ints

    def on_samples(self, problem: Problem, first: Ints) -> tuple[Ints, Constraints]:
        """Return lengths and constraints as if groups of ranks were ranks; a unit's amount is on its `first` sample."""
        found: dict[str, Any] = {"keep_together": problem.constraints.keep_together}
        lengths, caps = problem.batch.lengths, []
        for name, amounts, limit in zip(self.names, self.amounts, self.limits.tolist(), strict=True):
            each = np.zeros(len(problem.batch.lengths), dtype=np.int64)
            each[first] = amounts
            if name == MAX_TOKENS:
                found[MAX_TOKENS], lengths = limit, each
            else:
                caps.append(Cap(name, each, limit))
        return lengths, Constraints(caps=tuple(caps), **found)


class Room(NamedTuple):
    """What one rank holds of each capped quantity."""

    names: tuple[str, ...]  # of the quantities: those of constraints, or of `Cap`
    shares: Ints  # int64[q, D, units]: of a unit that is computed at each degree of the cut
    caps: Ints  # int64[q]

    @classmethod
    def from_problem(cls, problem: Problem, cut: LongShort, unit: Ints) -> "Room":
        """Add up what ranks hold of the samples of each unit."""
        kept, lengths, degrees = problem.constraints, problem.batch.lengths, np.array(cut.degrees)
        whole = [(MAX_TOKENS, kept.max_tokens_per_rank), (_COUNTS, kept.max_samples_per_rank)]
        asked = [(name, limit) for name, limit in whole if limit is not None]
        asked += [(cap.name, cap.limit) for cap in kept.caps]
        count = int(unit.max(initial=-1)) + 1
        shares = np.zeros((len(asked), len(degrees), count), dtype=np.int64)
        amounts = {cap.name: cap.amounts for cap in kept.caps}
        for name, _ in asked:
            total = sum({MAX_TOKENS: lengths, **amounts}.get(name, degrees[:0]).tolist())
            if total >= _MOST:
                what = "tokens" if name == MAX_TOKENS else braced(repr(name))
                raise UsageError(f"all {what} together must be below 2**61 where ranks share items, got {total}")
        for q, (name, _) in enumerate(asked):
            for d, degree in enumerate(cut.degrees):
                np.add.at(shares[q, d], unit, _share(name, lengths, amounts, cut, degree))
        return cls(tuple(name for name, _ in asked), shares, np.array([cap for _, cap in asked], dtype=np.int64))

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Whether a rank can hold its share of each unit at each degree: bool[D, units]."""
        return np.asarray((self.shares <= self.caps[:, None, None]).all(axis=0))

    def solver_keywords(self) -> dict[str, Any]:
        """Return these as :func:`solvers.long_short_groups` takes them."""
        return {"shares": self.shares[:, ::-1], "caps": self.caps} if self.names else {}

    def of_groups(self, cut: LongShort) -> Iterator[Held]:
        """Yield what groups may hold: first so that all fits if all ranks share all, then up to what they can hold."""
        yield Held(self.names, self.shares[:, 0], self.caps)
        if self.names:
            least = self._least(cut)
            enough = least.sum(axis=1) // cut.size + 1  # for all there is, so that what a group may hold fits int64
            most = np.minimum(self.caps, enough) * cut.size
            for part in _PARTS:
                yield Held(self.names, least, most // _PARTS[-1] * part + most % _PARTS[-1] * part // _PARTS[-1])

    def _least(self, cut: LongShort) -> Ints:
        """Return what all ranks together hold of each unit at least: int64[q, units]."""
        return np.asarray((self.shares * np.array(cut.degrees)[:, None]).min(axis=1))

    def check(self, problem: Problem, cut: LongShort, unit: Ints) -> None:
        """Raise InfeasibleError if a unit exceeds a cap however it is shared, or all together the caps of all ranks."""
        num_ranks, least = problem.topology.num_ranks, self._least(cut)
        for q, (name, cap) in enumerate(zip(self.names, self.caps.tolist(), strict=True)):
            share, what = self.shares[q, 0], {MAX_TOKENS: "tokens", _COUNTS: "items"}.get(name, braced(repr(name)))
            if len(share) and share.max() > cap:
                at = int(np.argmax(share))
                members = np.flatnonzero(unit == at)
                raise InfeasibleError(
                    f"{{sample}}{' and what stays with it' * (len(members) > 1)}, shared by {cut.size} ranks, is "
                    f"{share[at]} {what} on each, {share[at] - cap} more than {_told(name)} = {cap}",
                    InfeasibilityCertificate(name, members.tolist(), [], int(share[at]), cap),
                    f"{_told(name)} must be at least {share[at]}",
                    sample=Named("sample", int(members[0])),
                )  # fmt: skip
            total = sum(least[q].tolist())
            if total > cap * num_ranks:
                raise InfeasibleError(
                    f"the batch has {total} {what}, shared or not, {total - cap * num_ranks} more than {num_ranks} "
                    f"ranks hold with {_told(name)} = {cap}",
                    InfeasibilityCertificate(name, range(len(unit)), range(num_ranks), total, cap * num_ranks),
                    f"{_told(name)} must be at least {-(-total // num_ranks)}",
                )  # fmt: skip

    def none_found(self, cut: LongShort, num_ranks: int) -> SolverError:
        """Return the error that no plan was found, with the caps that surely do, each by itself."""
        found = []
        for name, share, cap in zip(self.names, self.shares[:, 0], self.caps.tolist(), strict=True):
            enough = solvers.partition(share, num_ranks // cut.size, time_budget=_BUDGET, stop_at=0).makespan
            found += [f"{_told(name)} = {max(1, enough)} alone is enough"] if enough > cap else []
        named = " and ".join(f"{_told(name)} = {cap}" for name, cap in zip(self.names, self.caps.tolist(), strict=True))
        return SolverError(f"no way to share items was found that keeps {named}, though none was ruled out", found)


def _share(name: str, lengths: Ints, amounts: dict[str, Ints], cut: LongShort, degree: int) -> Ints:
    """Return each rank's part of a quantity of each sample, where `degree` ranks share the sample."""
    if name == MAX_TOKENS:
        return np.asarray(cut.padded(lengths, degree) // degree)
    return np.ones_like(lengths) if name == _COUNTS else np.asarray(-(-amounts[name] // degree))


def _told(name: str) -> str:
    return f"{{{name}}}" if name in (MAX_TOKENS, _COUNTS) else f"the cap on {braced(repr(name))}"
