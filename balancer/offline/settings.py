"""How a log is planned: what the command line asks for, and a plan file's description repeats."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from balancer.layouts.setup import setup_from_json
from balancer.offline.order import Order
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.batch import HOMES
from balancer.problem.setup import Setup
from solvers.arguments import as_count, as_integer

_SAMPLES_PER_PART = 1_000_000  # of a part of whole steps: some seconds' planning, and a few megabytes
_STEPS_IN_GAPS = 16  # where each takes tenths of a second or more
_STEPS_OF_TOKENS = 256  # where nobody says how many samples each has


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a log is cut into global batches, and how each is planned."""

    setup: Setup  # ranks, phases and how to plan them; the phases' columns are the log's
    # consecutive rows make global batches of ``num_ranks * batch_per_rank``; None where `across` cuts them by tokens
    batch_per_rank: int | None
    home: str = "contiguous"  # a name in :data:`balancer.problem.batch.HOMES`
    drop_last: bool = False  # leave out the last global batch of an epoch if it is short
    epochs: int = 1  # how many times the log is planned, one after the other
    # seed of each epoch's order, as :func:`balancer.problem.shuffle.shuffled` has it; None: the log's own
    shuffle: int | None = None
    # steps that are planned, digested, and in a folder written together; by default what has some 10**6 samples,
    # and where encoders run in gaps at most 16
    steps_per_part: int = 0
    # where the first epoch begins: which one it is of the log's orders, and behind how many of its samples
    first_epoch: int = 0
    first_sample: int = 0
    across: AcrossSteps | None = None  # samples that run early or late, or steps that are cut by tokens

    def __post_init__(self) -> None:
        if self.batch_per_rank is not None or self.across is None or self.across.step_tokens is None:
            as_count("batch_per_rank", self.batch_per_rank)
            as_count("global batch (ranks * batch_per_rank)", self.samples_per_step)
        if self.across is not None and len(self.setup.phases) > 1:  # whose makespans are added up
            object.__setattr__(self, "setup", self.setup.in_one_unit())
        as_count("epochs", self.epochs)
        as_integer("first_epoch", self.first_epoch)
        as_integer("first_sample", self.first_sample)
        if self.shuffle is not None:
            as_integer("shuffle", self.shuffle)
        default = max(1, _SAMPLES_PER_PART // self.samples_per_step) if self.samples_per_step else _STEPS_OF_TOKENS
        if self.setup.in_gaps:
            default = min(default, _STEPS_IN_GAPS)
        object.__setattr__(self, "steps_per_part", as_count("steps_per_part", self.steps_per_part or default))
        if self.home not in HOMES:
            raise ValueError(f"unknown home {self.home!r}; known homes are {', '.join(HOMES)}")

    @property
    def samples_per_step(self) -> int:
        """Samples of a full global batch; 0 where steps are cut by tokens."""
        return self.setup.topology.num_ranks * (self.batch_per_rank or 0)

    def is_short(self, samples: int) -> bool:
        """Whether a step of so many samples is short of some, as an epoch's last may be."""
        return (self.across is None or self.across.is_exact) and samples < self.samples_per_step

    def order(self, num_rows: int, step_samples: tuple[tuple[int, ...], ...] = ()) -> Order:
        """Return which rows of a log of so many form which step; `step_samples`, where samples run early or late."""
        return Order(num_rows, self.samples_per_step, self.epochs, self.shuffle, self.drop_last, self.first_epoch,
                     self.first_sample, step_samples)  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the settings as the plan file's description holds them."""
        of_log: dict[str, Any] = {"batch_per_rank": self.batch_per_rank, "home": self.home, "drop_last": self.drop_last}
        if self.epochs > 1 or self.shuffle is not None:  # a feature of plan files, which others do without
            of_log |= {"epochs": self.epochs, "shuffle": self.shuffle}
        if self.first_epoch or self.first_sample:
            of_log |= {"continues": {"epoch": self.first_epoch, "sample": self.first_sample}}
        if self.across is not None:
            of_log |= {"across_steps": self.across.to_json()}
        if self.steps_per_part != replace(self, steps_per_part=0).steps_per_part:
            of_log |= {"steps_per_part": self.steps_per_part}
        return self.setup.to_json() | of_log

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> "LogSettings":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        of_log = {name: description[name] for name in ("batch_per_rank", "home", "drop_last")}
        rare = "epochs", "shuffle", "steps_per_part"
        of_log |= {name: description[name] for name in rare if name in description}
        if "continues" in description:
            of_log["first_epoch"], of_log["first_sample"] = (description["continues"][at] for at in ("epoch", "sample"))
        if "across_steps" in description:
            of_log["across"] = AcrossSteps.from_json(description["across_steps"])
        return cls(setup_from_json(description), **of_log)
