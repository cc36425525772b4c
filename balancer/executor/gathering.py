"""What all ranks' mini-batches are like, all but their payload: gathered before a step, checked and put together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from balancer.executor.alike import attempt, raise_alike
from balancer.executor.arguments import ONLY_LENGTH
from balancer.executor.errors import FieldMismatchError, against_majority, by_text, listed
from balancer.executor.fields import Column, Field, Spec
from balancer.executor.message import Message, MiniBatch, Status, decoded, encoded
from balancer.executor.peers import Peers
from balancer.problem.phases import SINGLE_PHASE, columns_of_none
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup
from balancer.step_planner import Step, make_step
from solvers.errors import Named, UsageError, Wording

__all__ = ["Gathered", "gather", "read_if_leader"]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """What there is on all ranks; samples are numbered rank after rank."""

    statuses: tuple[Status, ...]
    home: Placement  # of all samples
    specs: Mapping[str, Spec]  # of the fields, as the ranks agree on them
    rows: Mapping[str, Column]  # of each field
    columns: Mapping[str, Column]  # further lengths, given by callers
    costs: Sequence[Mapping[str, Any]] = ()  # of each rank: measured times, and costs corrected by them

    def field(self, name: str, rank: int) -> Field:
        """Return what a field is like on one rank."""
        return Field(self.specs[name], self.rows[name][slice(*self.home.offsets[rank : rank + 2].tolist())])

    def where(self, sample: int) -> str:
        """Return what the rank that handed in a sample knows it as."""
        return f"entry {self.home.position_of_sample[sample]} of rank {self.home.rank_of_sample[sample]}"

    def step(self, setup: Setup) -> Step:
        """Return what there is to plan."""
        self._check_lengths(setup)
        columns: dict[str, ArrayLike | Ragged] = {**self.rows, **self.columns}
        if not len(self.home.samples):
            columns = columns_of_none(setup.phases) or {"": []}
        elif setup.phases[0].name == SINGLE_PHASE:  # whole samples, for which lists count with all that is in them
            columns = {name: col.sums() if isinstance(col, Ragged) else col for name, col in columns.items()}
            if setup.phases[0].length == ONLY_LENGTH:
                columns[ONLY_LENGTH] = columns[self._only_ragged_field()]
        return make_step(setup, columns, self.home, self.columns if len(self.home.samples) else columns)

    def _check_lengths(self, setup: Setup) -> None:
        """Refuse a negative number in any column but those of keys and ranks, whether or not a phase uses it."""
        others = {name for phase in setup.phases for name in phase.columns_asked}
        for name, column in self.columns.items():
            numbers = column.values if isinstance(column, Ragged) else column
            if name not in others and numbers.size and numbers.min() < 0:
                at = int(np.argmax(numbers < 0))
                sample = int(column.row_of_value[at]) if isinstance(column, Ragged) else at
                raise UsageError(
                    "{column} of {sample} must be >= 0, got {value}",
                    column=f"lengths[{name!r}]", sample=Named("sample", sample), value=numbers[at],
                )  # fmt: skip

    def _only_ragged_field(self) -> str:
        ragged = [name for name, spec in self.specs.items() if not spec.fixed and spec.form not in ("str", "bytes")]
        if len(ragged) != 1:
            raise ValueError(
                f"length must name the columns whose sum is a sample's length: there are {len(ragged)} ragged "
                f"fields ({', '.join(ragged) or 'none'})"
            )
        return ragged[0]

    def wording(self) -> Wording:
        """Return how errors name a sample here, and say what the rank that handed it in knows it as."""
        return Wording({"row": "sample"}, notes={"sample": self.where})


def read_if_leader(peers: Peers, read: Callable[[], MiniBatch]) -> tuple[MiniBatch | None, Exception | None]:
    """Return what the leader of replica peers reads, or why it cannot; of others nothing."""
    return attempt(read) if peers.leads else (None, None)


def gather(
    peers: Peers, batch: MiniBatch | None, status: Status = Status.READY, failure: Exception | None = None,
    costs: Mapping[str, Any] | None = None,
) -> Gathered:  # fmt: skip
    """Send all ranks what this rank's mini-batch is like, and put together what all of them sent.

    `batch` is None where `status` or the failure says why. Replica peers' own are not looked at. Raises the failure,
    once the others have heard of it; PeerError if another rank failed; FieldMismatchError if fields do not fit
    together.
    """
    status = status if failure is None else Status.FAILED
    messages = [decoded(words) for words in peers.gather_ragged(encoded(batch, status, failure, costs))]
    failed = {rank: message.error for rank, message in enumerate(messages) if message.status is Status.FAILED}
    raise_alike(failure, failed, "failed before the exchange")
    # A rank without samples has no fields to compare; where no rank has any, the first one's message stands for all.
    holders = {rank: message for rank, message in enumerate(messages) if message.num_samples} or {0: messages[0]}
    _check_fields(holders)
    first = next(iter(holders.values()))
    counts = [message.num_samples for message in messages]
    return Gathered(
        tuple(message.status for message in messages),
        Placement.by_sample_order(np.repeat(np.arange(len(counts), dtype=np.int32), counts), len(counts)),
        {name: _agreed(name, {rank: message.specs[name] for rank, message in holders.items()}) for name in first.specs},
        {name: _joined([message.rows[name] for message in holders.values()]) for name in first.rows},
        {name: _joined([message.columns[name] for message in holders.values()]) for name in first.columns},
        [message.costs for message in messages],
    )


def _joined(columns: Sequence[Any]) -> Column:
    return Ragged.concatenate(columns) if isinstance(columns[0], Ragged) else np.concatenate(columns)


def _check_fields(holders: Mapping[int, Message]) -> None:
    """Refuse ranks whose fields and columns are not those of the majority of the ranks that have samples."""
    usual, odd = against_majority({rank: tuple(_kinds(message).items()) for rank, message in holders.items()})
    if odd:
        differences = {rank: _difference(dict(mine), dict(usual)) for rank, mine in odd.items()}
        text = by_text(differences, lambda of, what: f"{listed(of)} {'has' if len(of) == 1 else 'have'} {what}")
        raise FieldMismatchError(text, list(odd))


def _kinds(message: Message) -> dict[str, str]:
    """Return of all that a rank has what it holds of each sample."""
    held = {f"field {name!r}": rows for name, rows in message.rows.items()}
    held |= {f"lengths[{name!r}]": column for name, column in message.columns.items()}
    return {name: "several items" if isinstance(column, Ragged) else "one entry" for name, column in held.items()}


def _difference(mine: Mapping[str, str], usual: Mapping[str, str]) -> str:
    more = [f"{name}, which the others do not have" for name in mine if name not in usual]
    less = [f"no {name}, which the others have" for name in usual if name not in mine]
    other = [
        f"{kind} of each sample in {name}, where the others have {usual[name]}"
        for name, kind in mine.items()
        if usual.get(name, kind) != kind
    ]
    return " and ".join(more + less + other)


def _agreed(name: str, specs: Mapping[int, Spec]) -> Spec:
    """Return what the ranks that have any row of a field say about it."""
    usual, odd = against_majority({rank: spec for rank, spec in specs.items() if spec.form} or specs)
    if odd:
        text = by_text({rank: str(spec) for rank, spec in odd.items()}, lambda of, spec: f"{listed(of)} as {spec}")
        padding = all(_is_width_alone(spec, usual) for spec in odd.values())
        remedy = (
            ": padding makes them of unlike widths; hand in unpadded samples, as a list of tensors, and pad after the "
            "exchange, with PrefetchDispatcher(..., collate=...)"
        ) * padding
        raise FieldMismatchError(f"field {name!r} was handed in by {text}, by the others as {usual}{remedy}", list(odd))
    return usual


def _is_width_alone(one: Spec, other: Spec) -> bool:
    """Whether two kinds of rows are alike but for the width of what is padded."""
    widths = [spec.trailing[:1] for spec in (one, other)]
    return one.form in ("dense", "numpy") and all(widths) and replace(one, trailing=other.trailing) == other
