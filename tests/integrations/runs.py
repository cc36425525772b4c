"""How long the trainers' runs are, in optimisation steps; apart from their scripts, which import the trainers."""

from typing import NamedTuple


class Run(NamedTuple):
    """One trainer's run."""

    epochs: int
    batches: int  # of a rank in an epoch
    steps: int  # in all
    saved_at: int
    dies_at: int


ACCELERATE = Run(epochs=4, batches=5, steps=10, saved_at=4, dies_at=7)  # two batches a step, over the end of an epoch
LIGHTNING = Run(epochs=3, batches=5, steps=15, saved_at=7, dies_at=11)  # saved at the second epoch's end, 10, too
