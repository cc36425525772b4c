"""What is added up over the steps of a run, part by part, whoever works."""

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from balancer.plan.step_plan import StepPlan


class Totals(Protocol):
    """What is added up over the steps of a run; :class:`balancer.report.summary.RunSummary` is one."""

    def __init__(self, *, first_row: int = 0) -> None: ...

    @property
    def samples(self) -> int:
        """Samples of the steps so far."""

    def add_step(self, plan: StepPlan, /, short: bool = False) -> None:
        """Take in the next step, which may be short of samples."""

    def add_epoch(self, found: dict[str, Any], /) -> None:
        """Take in what was found for an epoch whose samples run early or late, for its part in no sum of steps."""

    def join(self, later: Self, /) -> None:
        """Take in all steps of another one, which come after these."""

    def stored(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""

    @classmethod
    def restored(cls, stored: Mapping[str, Any], /) -> Self:
        """Read back what :meth:`stored` gave."""


SomeTotals = TypeVar("SomeTotals", bound=Totals)
