"""Which rows of a log form which step: epochs of consecutive or shuffled rows, cut into steps; where a plan goes on."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from balancer.problem.shuffle import shuffled

Ints = NDArray[np.int64]

ROWS_AT_ONCE = 2**16
"""Of steps whose columns are cut out together: what is found in them takes memory too."""


@dataclass(frozen=True, slots=True)
class Order:
    """The epochs of a plan: each is all rows of a log in one order, cut into steps.

    Examples
    --------
    >>> order = Order(num_rows=10, samples_per_step=4, epochs=2, first_sample=4)
    >>> order.num_steps, order.place(2), order.bounds(0), order.bounds(1)
    (5, (1, 0), [4, 8, 10], [0, 4, 8, 10])
    >>> [(step, rows.tolist()) for step, rows in order.rows(0, 3)]
    [(0, [4, 5, 6, 7, 8, 9]), (2, [0, 1, 2, 3])]
    """

    num_rows: int
    samples_per_step: int  # 0 where steps are cut by tokens
    epochs: int = 1
    shuffle: int | None = None  # seed of each epoch's order; None: the log's own
    drop_last: bool = False  # whether an epoch's last step is left out if it is short
    # Where the plan begins: epoch, and samples of its order that were trained by another plan
    first_epoch: int = 0
    first_sample: int = 0
    step_samples: tuple[tuple[int, ...], ...] = ()  # of each epoch, where samples run early or late

    @property
    def num_steps(self) -> int:
        """Steps of all epochs."""
        return self.first_step(self.epochs)

    @property
    def continues(self) -> bool:
        """Whether another plan was trained before."""
        return self.first_epoch + self.first_sample > 0

    def steps_in(self, number: int) -> int:
        """Return how many steps an epoch of the plan, counted from 0, has."""
        if self.step_samples:
            return len(self.step_samples[number])
        rows = max(0, self.num_rows - (self.first_sample if number == 0 else 0))
        return rows // self.samples_per_step if self.drop_last else -(-rows // self.samples_per_step)

    def first_step(self, number: int) -> int:
        """Return the first step of an epoch of the plan; of the one after the last, how many steps there are."""
        if self.step_samples:
            return sum(map(len, self.step_samples[:number]))
        return 0 if number == 0 else self.steps_in(0) + (number - 1) * self.steps_in(1)

    def bounds(self, number: int) -> list[int]:
        """Return between which samples the steps of an epoch of the plan lie: one more than there are steps."""
        if self.step_samples:
            return [0, *accumulate(self.step_samples[number])]
        first, size = self.first_sample if number == 0 else 0, self.samples_per_step
        return [min(first + step * size, self.num_rows) for step in range(self.steps_in(number) + 1)]

    def place(self, step: int) -> tuple[int, int]:
        """Return in which epoch a step is, and after how many of its samples."""
        number = 0
        while number < self.epochs - 1 and step >= self.first_step(number + 1):
            number += 1
        return self.first_epoch + number, self.bounds(number)[step - self.first_step(number)]

    def number(self, epoch: int) -> int:
        """Return which epoch of the plan this is, from 0; a plan begins again after its last."""
        return (epoch - self.first_epoch) % self.epochs

    def rows(self, first: int, last: int) -> Iterator[tuple[int, Ints]]:
        """Yield the rows of steps first..last - 1 in their order, with the number of the first step that they are of.

        Some steps of one epoch come at a time; all steps are of as many samples.
        """
        size, number = self.samples_per_step, 0
        at_once = max(1, ROWS_AT_ONCE // size)
        while first < last:
            while number < self.epochs - 1 and first >= self.first_step(number + 1):
                number += 1
            begin = self.first_step(number)
            stop = min(last, first + at_once, begin + self.steps_in(number))
            offset = (self.first_sample if number == 0 else 0) - begin * size
            positions = np.arange(first * size + offset, min(stop * size + offset, self.num_rows))
            if self.shuffle is not None:
                positions = shuffled(positions, self.num_rows, self.shuffle, self.first_epoch + number)
            yield first, positions
            first = stop
