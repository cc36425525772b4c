"""Batches that are one rank's already, epoch by epoch: what samplers have in common that stand in a data loader."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from solvers.arguments import as_index, as_integer
from solvers.errors import UsageError, braced

__all__ = ["RankBatches"]


class RankBatches:
    """A batch sampler of one rank: it has epochs, its place in one is saved and loaded, and it is not dealt out again.

    Subclasses say in `_micro_steps` what all ranks run. With `rank` None the batches are those of all ranks in turn,
    for a trainer that deals them out. The next iteration yields those of `epoch`.
    """

    def __init__(self, num_ranks: int, rank: int | None) -> None:
        self.num_ranks, self.epoch = num_ranks, 0
        self.rank = None if rank is None else as_index("rank", rank, num_ranks)
        self._done = 0  # micro-steps of this epoch that were yielded
        self._resumes = True  # so the next iteration goes on from there

    def _micro_steps(self, epoch: int, ranks: Sequence[int], done: int) -> Iterator[tuple[int, list[list[int]]]]:
        """Yield the micro-steps of an epoch from number `done` on: number, and the batches of `ranks`."""
        raise NotImplementedError

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """What makes the batches what they are, as JSON; a state fits where all of it is alike."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[int]]:
        if not self._resumes:
            self._done, self._resumes = 0, True
        return self._yielded()

    def _yielded(self) -> Iterator[list[int]]:
        # Only here, at the first batch: loaders make iterators that they never use.
        self._resumes, done = False, self._done
        ranks = range(self.num_ranks) if self.rank is None else [self.rank]
        for number, batches in self._micro_steps(self.epoch, ranks, done):
            self._done = number + 1
            yield from batches

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; all ranks say the same. The place in it is kept where it is the same already."""
        if as_integer("epoch", epoch) != self.epoch:
            self.epoch, self._done, self._resumes = epoch, 0, True

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return where in which epoch this stands, and of what.

        Parameters
        ----------
        batches : int, optional
            How many batches of this epoch were trained on; by default as many as were yielded, which is more where
            the workers of a DataLoader fetch ahead (a StatefulDataLoader knows that, and asks in time).
        """
        done = self._done if batches is None else as_integer("batches", batches)
        return {"epoch": self.epoch, "batches": done, "of": self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says: the next iteration begins there.

        Raises
        ------
        ValueError
            A state of other batches; it names what differs.
        """
        if not isinstance(state, Mapping) or not {"epoch", "batches", "of"} <= set(state):
            raise UsageError("state must be what state_dict() returned, got {state}", state=repr(state)[:80])
        mine = self._identity
        if differing := [name for name, value in mine.items() if state["of"].get(name) != value]:
            name = differing[0]
            raise UsageError(
                "the state is of other batches: its {name} is {theirs}, here it is {mine}",
                "make the sampler as in the run that saved it, or begin a new epoch",
                name=braced(name), theirs=repr(state["of"].get(name)), mine=repr(mine[name]),
            )  # fmt: skip
        self.epoch, self._done = as_integer("epoch", state["epoch"]), as_integer("batches", state["batches"])
        self._resumes = True

    @property
    def sampler(self) -> "RankBatches":
        """Itself: Accelerate and Lightning look here for what has ``set_epoch``."""
        return self

    @property
    def drop_last(self) -> bool:
        """False: every batch is meant to run."""
        return False

    @property
    def batch_size(self) -> None:
        """None, as batches differ in size; asked for by what deals whole batches to ranks, which must not.

        Raises
        ------
        ValueError
            These are the batches of one rank: dealt out again, most of them would be lost, in silence.
        """
        if self.rank is not None:
            raise UsageError(
                "these batches are rank {rank}'s already; accelerator.prepare, and the Trainers that call it, would "
                "keep one of every {count} of them",
                ("leave this loader out of prepare", "or make the sampler with rank=None, so that each gets its own"),
                rank=self.rank, count=self.num_ranks,
            )  # fmt: skip
