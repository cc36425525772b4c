"""Which samples of which epoch the steps of a plan file have, as its description says; nothing of its rows is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

from solvers.arguments import as_count, as_integer


@dataclass(frozen=True, slots=True)
class PlanEpochs:
    """The epochs of a plan; each is the log in one order, cut into steps of as many samples."""

    count: int
    steps: int  # of all epochs
    samples_per_step: int
    shuffle: int | None  # seed of each epoch's order
    # where the plan begins: epoch, and samples of its order that were trained by another plan
    first_epoch: int = 0
    first_sample: int = 0
    end: int | None = None  # samples of an epoch, where the description tells
    step_samples: tuple[tuple[int, ...], ...] = ()  # of each epoch, where samples run early or late

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """Read a description; KeyError, TypeError or ValueError if it has none of it."""
        steps, count = as_integer("steps", description["steps"]), as_count("epochs", description.get("epochs", 1))
        if "batch_per_rank" not in description:  # a plan that was saved by itself
            return cls(1, steps, max(1, as_integer("samples", description["samples"])), None)
        begins = description.get("continues", {"epoch": 0, "sample": 0})
        if "across_steps" in description:
            return cls._across(description, steps, count)
        size = sum(description["topology"]["node_sizes"]) * as_count("batch_per_rank", description["batch_per_rank"])
        first = as_integer("sample", begins["sample"])
        # Where a short last step is left out, the number of samples planned does not tell how long an epoch is.
        end = None if description["drop_last"] else (description["samples"] + first) // count
        return cls(count, steps, size, description.get("shuffle"), as_integer("epoch", begins["epoch"]), first, end)

    @classmethod
    def _across(cls, description: Mapping[str, Any], steps: int, count: int) -> Self:
        sizes = tuple(tuple(as_integer("step_samples", size) for size in each) for each in description["step_samples"])
        if len(sizes) != count or sum(map(len, sizes)) != steps:
            raise ValueError(f"step_samples must be of {count} epochs and {steps} steps in all")
        per_rank = description["batch_per_rank"]
        size = (
            0 if per_rank is None else sum(description["topology"]["node_sizes"]) * as_count("batch_per_rank", per_rank)
        )
        return cls(count, steps, size, description.get("shuffle"), step_samples=sizes)

    @property
    def steps_in_first(self) -> int:
        """Steps of the first epoch, of which some may have been trained by another plan."""
        if self.step_samples:
            return len(self.step_samples[0])
        return self.steps - (self.count - 1) * self.steps_in_others

    @property
    def steps_in_others(self) -> int:
        """Steps of every other epoch, a whole one."""
        # The first epoch lacks as many steps as fit what was trained, or one more: one of both sums is divisible.
        return 0 if self.count == 1 else (self.steps + self.first_sample // self.samples_per_step + 1) // self.count

    @property
    def continues(self) -> bool:
        """Whether another plan was trained before."""
        return self.first_epoch + self.first_sample > 0

    def place(self, step: int) -> tuple[int, int]:
        """Return in which epoch a step is, and before which of its samples."""
        if step < self.steps_in_first or self.count == 1:
            return self.first_epoch, self.first_sample + step * self.samples_per_step
        later, step = divmod(step - self.steps_in_first, self.steps_in_others)
        return self.first_epoch + 1 + later, step * self.samples_per_step

    def number(self, epoch: int) -> int:
        """Return which epoch of the plan this is, from 0; a plan begins again behind its last."""
        return (epoch - self.first_epoch) % self.count

    def first_step(self, number: int) -> int:
        """Return the first step of an epoch of the plan."""
        if self.step_samples:
            return sum(map(len, self.step_samples[:number]))
        return 0 if number == 0 else self.steps_in_first + (number - 1) * self.steps_in_others

    def bounds(self, number: int) -> list[int]:
        """Return between which samples the steps of an epoch of the plan lie: one more than there are steps."""
        if self.step_samples:
            return [0, *accumulate(self.step_samples[number])]
        first, steps = (self.first_sample, self.steps_in_first) if number == 0 else (0, self.steps_in_others)
        bounds = [first + step * self.samples_per_step for step in range(steps + 1)]
        if steps and self.end is not None:
            bounds[-1] = min(bounds[-1], self.end)
        return bounds
