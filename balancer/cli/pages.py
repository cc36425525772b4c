"""The page that ``balancer report`` and ``simulate`` write besides their tables."""

import os
from dataclasses import dataclass

import click

from balancer.errors import InputError
from balancer.io._atomic import target_of
from balancer.plan.step_plan import StepPlan
from balancer.report.page_data import PageData
from balancer.report.summary import RunSummary
from balancer.report.text import counted, printable


def check_page(path: str) -> None:
    """Raise InputError, before any work, if no page can be written there."""
    # Imported only where something is drawn: charts need an extra, and most commands draw nothing.
    from balancer.report.charts import require_plotting

    require_plotting("--html")
    if os.path.splitext(path)[1].lower() not in (".html", ".htm"):
        raise InputError(f"--html {path}: a page is written as .html; choose such a name")
    target_of(path, "write the page")


@dataclass(frozen=True, slots=True)
class PageFile:
    """Where a command writes its page, if anywhere, and the step that the page draws."""

    path: str | None
    step: int | None

    def __post_init__(self) -> None:
        if self.path is not None:
            check_page(self.path)
        if self.step is not None and self.path is None:
            raise InputError("--page-step needs --html, the page that draws it")
        if self.step is not None and self.step < 0:
            raise InputError(f"--page-step must be >= 0, got {self.step}")

    def missing_step(self, source: str, steps: int) -> InputError:
        """Return the error for a step that is not there."""
        return InputError(f"--page-step {self.step}: {source} has {counted(steps, 'step')}, counted from 0")

    def say(self, as_json: bool) -> None:
        """Tell a person where the page lies."""
        if self.path is not None and not as_json:
            click.echo(printable(f"page written to {self.path}"))


@dataclass(slots=True)
class PlanPage:
    """The page that ``balancer report`` writes."""

    file: PageFile
    data: PageData

    @classmethod
    def of(cls, page: str | None, step: int | None) -> "PlanPage":
        """Check the options, before the work."""
        return cls(PageFile(page, step), PageData(step))

    def add(self, plan: StepPlan, short: bool) -> None:
        """Take in the next step, if a page is written."""
        if self.file.path is not None:
            self.data.add(plan, short)

    def write(self, summary: RunSummary, source: str, log: str | None) -> None:
        """Write the page, if one was asked for, of a plan and the log that it was made from, if there is one."""
        if self.file.path is None:
            return
        from balancer.report.page import write_page
        from balancer.report.plan_page import plan_page

        if self.data.picture is None:
            raise self.file.missing_step(source, summary.steps)
        of_log = "" if log is None else f", a plan of {os.path.basename(log)}"
        write_page(self.file.path, plan_page(summary, self.data, f"{source}{of_log}", source, log or ""))
