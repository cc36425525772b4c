"""Batches of one rank, epoch by epoch: what all samplers that stand in a data loader have in common."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from balancer.planning.epoch_position import Position, begun_anew, check_same
from solvers.arguments import as_index, as_integer
from solvers.errors import UsageError


class RankBatches:
    """A batch sampler of one rank: it has epochs, its place in one is saved and loaded, and it is not dealt out again.

    Subclasses say what all ranks run. With `rank` None the batches are those of all ranks in turn, for a trainer that
    deals them out. The next iteration yields those of `epoch`.
    """

    def __init__(self, num_ranks: int, rank: int | None) -> None:
        self.num_ranks = num_ranks
        self.rank = None if rank is None else as_index("rank", rank, num_ranks)
        self._begin = self._at = Position()  # where the iteration began, and where it is
        self._resumes = True  # so the next iteration goes on from there
        self._told: int | None = None  # the length of the epoch, if it was asked for since it began

    def _steps(self, begin: Position, ranks: Sequence[int]) -> Iterator[tuple[int, list[list[list[int]]]]]:
        """Yield the steps behind a position: how many samples they end, and their batches, [micro-step][of `ranks`]."""
        raise NotImplementedError

    def _sizes(self, begin: Position) -> Iterator[tuple[int, int]]:
        """Yield of the same steps how many samples they end, and how many micro-steps they have."""
        raise NotImplementedError

    def _order(self, epoch: int) -> dict[str, Any]:
        """Return what makes data and order of an epoch what they are, as JSON; a state fits where it is alike."""
        raise NotImplementedError

    @property
    def samples_per_step(self) -> int:
        """Samples of a full global batch; 0 where steps have no common number."""
        return 0

    def _beginning(self, epoch: int) -> Position:
        """Return where an epoch begins."""
        return Position(epoch)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration yields."""
        return self._at.epoch or 0

    def __len__(self) -> int:
        """Batches of the epoch, those included that were had before a state was loaded: of the rank, or of all."""
        self._told = self._batches()
        return self._told * (self.num_ranks if self.rank is None else 1)

    def _batches(self) -> int:
        return self._begin.batches + sum(count for _, count in self._sizes(self._begin))

    def __iter__(self) -> Iterator[list[int]]:
        # A second iteration without a word in between is the epoch anew, as of any sampler.
        if not self._resumes:
            self._begin_at(self._beginning(self.epoch))
        return self._yielded()

    def _begin_at(self, position: Position) -> None:
        self._begin = self._at = position
        self._resumes = True

    def _yielded(self) -> Iterator[list[int]]:
        # Only here, at the first batch: loaders make iterators that they never use.
        self._resumes, self._told = False, None
        ranks = range(self.num_ranks) if self.rank is None else [self.rank]
        for samples, grid in self._steps(self._at, ranks):
            for number, batches in enumerate(grid, 1):
                # Before the batches are handed out: a trainer that saves its place has asked for them, and is to
                # train on them.
                self._at = _after(self._at, samples, number, len(grid))
                yield from batches

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; all ranks say the same. The place in it is kept where it is the same already."""
        if as_integer("epoch", epoch) != self.epoch:
            self._begin_at(self._beginning(int(epoch)))

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return where in which epoch this stands, and of what: on all ranks the same.

        Parameters
        ----------
        batches : int, optional
            How many batches of this epoch a rank has trained on, those before a state was loaded included; by default
            as many as were yielded, which is more where the workers of a DataLoader fetch ahead (a StatefulDataLoader
            knows that, and asks in time).
        """
        at = self._at if batches is None else self._place(as_integer("batches", batches))
        return at.saved(self._order(at.epoch or 0))

    def _place(self, batches: int) -> Position:
        """Return where a rank is after so many batches."""
        at = self._begin
        if batches < at.batches:
            raise UsageError(
                "batches must be >= {least}, which were had before the state was loaded, got {batches}",
                least=at.batches, batches=batches,
            )  # fmt: skip
        for samples, count in self._sizes(at):
            if at.batches == batches:
                break
            run = min(count, batches - at.batches)
            at = replace(_after(at, samples, run, count), batches=at.batches + run)
        if at.batches < batches:
            raise UsageError("batches must be <= {most}, as many as the epoch has, got {batches}", most=at.batches,
                             batches=batches)  # fmt: skip
        return at

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says, on as many ranks and in as large steps as this has: any rank's state will do.

        The next iteration begins with the first sample that no step has had; a step of which some micro-steps were run
        is begun anew, with a warning.

        Raises
        ------
        ValueError
            What is no state, one of another release, or of other data or another order; it names what differs.
        """
        at = Position.loaded(state)
        check_same(state, self._order(at.epoch or 0))
        at = begun_anew(self._checked(at))
        self._begin_at(at)
        if self._told not in (None, batches := self._batches()):
            warnings.warn(
                f"from this state on the epoch has {batches} batches a rank, of which {at.batches} are done, and "
                f"{self._told} were told before: a trainer that goes by those leaves samples out. Load the state "
                "before the length is asked for",
                stacklevel=2,
            )

    def _checked(self, at: Position) -> Position:
        """Return a position that was loaded, if these batches can go on from there."""
        return at

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
        """There is none, as batches differ in size; asked for by what deals batches, or their parts, to ranks.

        Raises
        ------
        AttributeError
            Of the batches of all ranks: Accelerate deals these out whole, and refuses to split them.
        ValueError
            These are the batches of one rank: dealt out again, most of them would be lost, in silence.
        """
        if self.rank is None:
            raise AttributeError("batches differ in size: leave split_batches at False")
        raise UsageError(
            "these batches are rank {rank}'s already; a trainer that deals batches out to ranks would keep one of "
            "every {count} of them",
            (
                "Lightning: Trainer(use_distributed_sampler=False)",
                "Accelerate: leave this loader out of accelerator.prepare, or make the sampler with rank=None",
                "transformers: BalancedTrainerMixin of balancer.compat.huggingface",
            ),
            rank=self.rank, count=self.num_ranks,
        )  # fmt: skip


def _after(at: Position, samples: int, number: int, of: int) -> Position:
    """Return where a rank is after micro-step `number` of the `of` that a step has, which ends so many samples."""
    if number == of:
        return Position(at.epoch, at.samples + samples, 0, at.batches + 1)
    return Position(at.epoch, at.samples, number, at.batches + 1)
