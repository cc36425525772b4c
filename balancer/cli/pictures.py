"""Options for the page and the figure that ``balancer report`` and ``simulate`` write besides their tables."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from balancer.cli.options import add_options
from balancer.errors import InputError
from balancer.io._atomic import target_of
from balancer.plan.step_plan import StepPlan
from balancer.report.page_data import PageData
from balancer.report.summary import RunSummary
from balancer.report.text import counted, printable


def picture_options(figure: str, step: str) -> Callable[[Any], Any]:
    """Make the options that say what to draw, and where to; `figure` is what ``--plot`` draws, `step` the default."""
    options = (
        click.option("--html", "page", metavar="FILE.html", help="Write a page with charts; needs the extra 'plot'."),
        click.option("--plot", metavar="FILE.png|svg", help=f"Draw {figure}; needs the extra 'plot'."),
        click.option(
            "--page-step", "step", type=int, metavar="K", help=f"The step that the page draws [default: {step}]."
        ),
    )
    return lambda command: add_options(command, options)


def check_page(path: str) -> None:
    """Raise InputError, before any work, if no page can be written there."""
    # Imported only where something is drawn: charts need an extra, and most commands draw nothing.
    from balancer.report.charts import require_plotting

    require_plotting("--html")
    if os.path.splitext(path)[1].lower() not in (".html", ".htm"):
        raise InputError(f"--html {path}: a page is written as .html; choose such a name")
    target_of(path, "write the page")


@dataclass(frozen=True, slots=True)
class PictureFiles:
    """Where a command draws to, besides its table: a page, a figure, or nowhere."""

    page: str | None
    plot: str | None
    step: int | None

    def __post_init__(self) -> None:
        if self.page is not None:
            check_page(self.page)
        if self.plot is not None:
            from balancer.report.charts import check_plot

            check_plot(self.plot)
        if self.step is not None and self.page is None:
            raise InputError("--page-step needs --html, the page that draws it")
        if self.step is not None and self.step < 0:
            raise InputError(f"--page-step must be >= 0, got {self.step}")

    def __bool__(self) -> bool:
        """Whether anything is drawn."""
        return self.page is not None or self.plot is not None

    def missing_step(self, source: str, steps: int) -> InputError:
        """Return the error for a step that is not there."""
        return InputError(f"--page-step {self.step}: {source} has {counted(steps, 'step')}, counted from 0")

    def say(self, as_json: bool) -> None:
        """Tell a person where the files lie."""
        for what, path in (("page", self.page), ("figure", self.plot)):
            if path is not None and not as_json:
                click.echo(printable(f"{what} written to {path}"))


@dataclass(slots=True)
class Pictures:
    """What ``balancer report`` draws."""

    files: PictureFiles
    data: PageData

    @classmethod
    def of(cls, page: str | None, plot: str | None, step: int | None) -> "Pictures":
        """Check the options, before the work."""
        return cls(PictureFiles(page, plot, step), PageData(step))

    def add(self, plan: StepPlan, short: bool) -> None:
        """Take in the next step, if anything is drawn."""
        if self.files:
            self.data.add(plan, short)

    def write(self, summary: RunSummary, source: str, log: str | None) -> None:
        """Write what was asked for, of a plan and the log that it was made from, if there is one."""
        if self.files.page is not None:
            from balancer.report.page import write_page
            from balancer.report.plan_page import plan_page

            if self.data.picture is None:
                raise self.files.missing_step(source, summary.steps)
            of_log = "" if log is None else f", a plan of {os.path.basename(log)}"
            write_page(self.files.page, plan_page(summary, self.data, f"{source}{of_log}", source, log or ""))
        if self.files.plot is not None:
            from balancer.report.plan_page import plot_loads

            plot_loads(self.data, self.files.plot)
