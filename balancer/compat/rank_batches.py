"""Batches of one rank, epoch by epoch: what samplers of lengths and of plan files have in common.

A sampler's place counts what of an epoch's order has run, and says nothing of ranks. So a run goes on from it on any
number of ranks, in steps of any size.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.compat.epoch_order import OF_THE_EPOCH
from solvers.arguments import as_index, as_integer
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError, WordedError, braced

__all__ = ["Place", "RankBatches", "check_same"]

_NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a run stands in an epoch's order."""

    epoch: int = 0
    samples: int = 0  # the order up to here belongs to steps that are planned, or that have run
    carried: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)  # positions before it that are not
    steps: int = 0  # that have run of the window which begins here
    begun: int = 0  # micro-steps that have run of the next step
    batches: int = 0  # that each rank has had in this epoch, as a trainer counts them


class RankBatches:
    """A batch sampler of one rank: it has epochs, its place in one is saved and loaded, and it is not dealt out again.

    Subclasses say what steps there are. `rank` is a number, or ``"all"`` for the batches of all ranks in turn.
    """

    counts_samples = True
    """Its state is of any number of ranks, and says so to what knows no samplers of this package."""

    def __init__(self, num_replicas: int, rank: int | str) -> None:
        self.num_replicas = num_replicas
        try:
            self.rank = rank if rank == "all" else as_index("rank", rank, num_replicas)  # type: ignore[arg-type]
        except WordedError:
            raise ArgumentError("rank", f'be within 0..{num_replicas - 1}, or "all"', repr(rank)) from None
        self._begin = self._at = Place()  # where the iteration began, and where it is
        self._iteration: object = None  # that whose place it is: of several iterators, the last that began
        self._resumes = True  # so the next iteration goes on from there
        self._told: int | None = None  # the length of the epoch, if somebody asked for it since it began

    # What subclasses say.

    def _steps(self, at: Place, ranks: Sequence[int]) -> Iterator[tuple[Place, Sequence[Sequence[list[int]]]]]:
        """Yield the steps behind a place: the place behind each, and its batches, [micro-step][of `ranks`]."""
        raise NotImplementedError

    def _places(self, at: Place) -> Iterator[tuple[Place, int]]:
        """Yield of the same steps the place behind each, and how many micro-steps it has; nothing is planned."""
        raise NotImplementedError

    def _order_of(self, epoch: int) -> dict[str, Any]:
        """Return what makes data and order of an epoch what they are, as JSON: a state fits where it is alike."""
        raise NotImplementedError

    def _beginning(self, epoch: int) -> Place:
        return Place(epoch)

    def _window(self, at: Place) -> dict[str, Any] | None:
        """Return what a state has to say of the window in which a place lies, as JSON; None between windows."""
        return None

    def _loaded(self, at: Place, window: Any) -> Place:
        """Return a place with what :meth:`_window` said of it."""
        return at

    def _check_ranks(self) -> None:
        """Raise on all ranks alike, if ranks would begin this epoch with unlike orders."""

    def _begins(self, epoch: int) -> None:
        """Know that an iteration of this epoch begins."""

    # An epoch.

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration yields."""
        return self._at.epoch

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, on all ranks: they compare what they will run. A place in this epoch is kept."""
        if as_integer("epoch", epoch) != self.epoch:
            self._begin_at(self._beginning(int(epoch)))
        self._check_ranks()

    def _begin_at(self, place: Place) -> None:
        self._begin = self._at = place
        self._resumes, self._told, self._iteration = True, None, None

    def __iter__(self) -> Iterator[list[int]]:
        # All of this at the first batch: loaders make iterators that they never use.
        if not self._resumes:  # a second iteration before the end is the epoch anew, as of any sampler
            self._begin_at(self._beginning(self.epoch))
        at = self._begin = self._at
        self._resumes, self._told = False, None
        self._iteration = mine = object()
        self._begins(at.epoch)
        ranks = range(self.num_replicas) if self.rank == "all" else [int(self.rank)]
        for after, grid in self._steps(at, ranks):
            before = at
            for number, batches in enumerate(grid, 1):
                at = after if number == len(grid) else replace(before, begun=number)
                at = replace(at, batches=before.batches + number)
                # Before the batches are handed out: who saves a place has asked for them, and is to train on them.
                if self._iteration is mine:
                    self._at = at
                yield from batches
        # The next epoch comes by itself. What was yielded stays this epoch's for those who count their batches.
        if self._iteration is mine:
            self._at, self._resumes = Place(at.epoch + 1), True

    def __len__(self) -> int:
        """Batches of the epoch, those included that were had before a state was loaded: of the rank, or of all."""
        self._told = self._batches(self._at if self._resumes else self._begin)
        return self._told * (self.num_replicas if self.rank == "all" else 1)

    def _batches(self, begin: Place) -> int:
        return begin.batches + sum(count for _, count in self._places(begin))

    # Its place, saved and loaded.

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return where in which epoch this stands, as JSON: on all ranks the same.

        Parameters
        ----------
        batches : int, optional
            How many batches of this epoch a rank has trained on, those before a state was loaded included. Without it,
            those that were yielded, which are more where a loader fetches ahead.
        """
        at = self._at if batches is None else self._place(as_integer("batches", batches))
        return {
            "epoch": at.epoch, "samples": at.samples, "batches": at.batches, "begun": at.begun,
            "window": self._window(at), "of": self._order_of(at.epoch),
        }  # fmt: skip

    def _place(self, batches: int) -> Place:
        """Return where a rank is behind so many batches of the epoch."""
        at = self._begin
        if batches < at.batches:
            raise UsageError(
                "batches must be >= {least}, which were had before the state was loaded, got {batches}",
                least=at.batches, batches=batches,
            )  # fmt: skip
        for after, count in self._places(at):
            if at.batches == batches:
                break
            if at.batches + count > batches:
                return replace(at, begun=batches - at.batches, batches=batches)
            at = replace(after, batches=at.batches + count)
        if at.batches < batches:
            raise UsageError("batches must be <= {most}, as many as the epoch has, got {batches}", most=at.batches,
                             batches=batches)  # fmt: skip
        return at

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says, on as many ranks and in as large steps as this has: any rank's state will do.

        A step of which some micro-steps had run is begun anew, with a warning, as no state has its gradients. Its
        first batch comes next, however many `batches` were counted.

        Raises
        ------
        TypeError, ValueError
            What is no state, or one of other data or of another order; it names what differs.
        """
        names = ("epoch", "samples", "batches", "begun", "window", "of")
        found = set(state) if isinstance(state, Mapping) else set()
        if missing := [name for name in names if name not in found]:
            raise UsageError(
                "state must be what state_dict() returned, got {state}; it has no {missing}",
                state=repr(state)[:80], missing=", ".join(missing),
            )  # fmt: skip
        epoch, samples, batches, begun = (as_integer(f"state.{name}", state[name]) for name in names[:4])
        check_same(state["of"], self._order_of(epoch))
        place = self._loaded(Place(epoch, samples, batches=batches), state["window"])
        if begun:
            warnings.warn(
                f"the state was saved within an optimizer step of epoch {epoch}, after {begun} of its micro-steps; the "
                "step is begun anew, so that their samples run again: the next batch is its first, so count "
                "micro-steps from there, not from the epoch's begin",
                stacklevel=2,
            )
        told = self._told
        self._begin_at(place)
        if told not in (None, now := self._batches(self._at)):
            warnings.warn(
                f"from this state on the epoch has {now} batches a rank, of which {batches} are done, and "
                f"{told} were told before: a trainer that goes by those leaves samples out. Load the state before the "
                "length is asked for",
                stacklevel=2,
            )

    # What trainers look for.

    @property
    def sampler(self) -> "RankBatches":
        """Itself: Accelerate and Lightning look here for what has ``set_epoch``."""
        return self

    @property
    def drop_last(self) -> bool:
        """False: every batch is meant to run."""
        return False

    @property
    def batch_size(self) -> int:
        """There is none; asked for by what deals batches, or their parts, to ranks.

        Raises
        ------
        AttributeError
            Of the batches of all ranks: Accelerate deals these out whole, and refuses to split them.
        ValueError
            These are the batches of one rank: dealt out again, most of them would be lost, in silence.
        """
        if self.rank == "all":
            raise AttributeError("batches are dealt out whole: leave split_batches at False")
        raise UsageError(
            "these batches are rank {rank}'s already; a trainer that deals batches out to ranks would keep one of "
            "every {count} of them",
            (
                "Lightning: Trainer(use_distributed_sampler=False)",
                "Accelerate: make the sampler with rank='all', or leave this loader out of accelerator.prepare",
                "transformers: BalancedTrainerMixin of balancer.compat.huggingface",
            ),
            rank=self.rank, count=self.num_replicas,
        )  # fmt: skip


def check_same(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Refuse a state that is of other data or of another order; name what differs."""
    if not isinstance(theirs, Mapping):
        raise ArgumentTypeError("state.of", "be what state_dict() returned", repr(theirs)[:60])
    for name in dict.fromkeys((*mine, *theirs)):
        if theirs.get(name) != mine.get(name):
            raise UsageError(
                "the state is of other batches: its {name} is {theirs}, here it is {mine}",
                ("make the sampler of the same data in the same order", "or begin a new epoch",
                 *(("an order that draws anew from a stream, as RandomSampler does, cannot be resumed", OF_THE_EPOCH)
                   if name == "order" else ())),
                name=braced(name), theirs=repr(theirs.get(name)), mine=repr(mine.get(name)),
            )  # fmt: skip
