"""How a log is planned: what the command line asks for, and a plan file's description repeats."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from balancer.problem.batch import HOMES
from balancer.problem.setup import Setup
from solvers.arguments import as_count

__all__ = ["LogSettings"]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a log is cut into global batches, and how each is planned.

    Attributes
    ----------
    setup : Setup
        Ranks, phases and how to plan them; the phases' columns are the log's.
    batch_per_rank : int
        Consecutive rows make global batches of ``num_ranks * batch_per_rank``.
    home : str
        A name in :data:`balancer.problem.batch.HOMES`.
    drop_last : bool
        Leave out the last global batch if it is short.
    """

    setup: Setup
    batch_per_rank: int
    home: str = "contiguous"
    drop_last: bool = False

    def __post_init__(self) -> None:
        as_count("batch_per_rank", self.batch_per_rank)
        as_count("global batch (ranks * batch_per_rank)", self.samples_per_step)
        if self.home not in HOMES:
            raise ValueError(f"unknown home {self.home!r}; known homes are {', '.join(HOMES)}")

    @property
    def samples_per_step(self) -> int:
        """Samples of a full global batch."""
        return self.setup.topology.num_ranks * self.batch_per_rank

    def to_json(self) -> dict[str, Any]:
        """Return the settings as the plan file's description holds them."""
        of_log = {"batch_per_rank": self.batch_per_rank, "home": self.home, "drop_last": self.drop_last}
        return self.setup.to_json() | of_log

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> "LogSettings":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        of_log = {name: description[name] for name in ("batch_per_rank", "home", "drop_last")}
        return cls(Setup.from_json(description), **of_log)
