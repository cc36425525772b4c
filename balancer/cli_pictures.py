"""Options that draw: the page and the figure that ``balancer report`` writes besides its table."""

import os
from dataclasses import dataclass
from typing import Any

import click

from balancer.cli_parts import add_options
from balancer.errors import InputError
from balancer.plan import DispatchPlan
from balancer.report.page_data import PageData
from balancer.report.summary import RunSummary
from balancer.step_plan import StepPlan

__all__ = ["Pictures", "picture_options"]


def picture_options(command: Any) -> Any:
    """Add what to draw, and where to."""
    options = (
        click.option("--html", "page", metavar="FILE.html", help="Write a page with charts; needs the extra 'plot'."),
        click.option("--plot", metavar="FILE.png|svg", help="Draw the load of ranks; needs the extra 'plot'."),
        click.option("--step", type=int, metavar="K", help="The step that the page draws [default: most saved]."),
    )  # fmt: skip
    return add_options(command, options)


@dataclass(slots=True)
class Pictures:
    """What a run draws besides its table: a page, a figure, or nothing."""

    page: str | None
    plot: str | None
    data: PageData

    @classmethod
    def of(cls, page: str | None, plot: str | None, step: int | None) -> "Pictures":
        """Check the options, before the work."""
        if page is not None:
            from balancer.report.canvas import require_matplotlib

            if os.path.splitext(page)[1].lower() not in (".html", ".htm"):
                raise InputError(f"--html {page}: a page is written as .html; choose such a name")
            require_matplotlib("--html")
        if plot is not None:
            from balancer.report.residual_plot import check_plot

            check_plot(plot)
        if step is not None and page is None:
            raise InputError("--step needs --html, the page that draws it")
        if step is not None and step < 0:
            raise InputError(f"--step must be >= 0, got {step}")
        return cls(page, plot, PageData(step))

    def add(self, plan: DispatchPlan | StepPlan) -> None:
        """Take in the next step, if anything is drawn."""
        if self.page is not None or self.plot is not None:
            self.data.add(plan)

    def write(self, summary: RunSummary, source: str) -> None:
        """Write what was asked for."""
        if self.page is not None:
            from balancer.report.plan_page import write_page

            if self.data.picture is None:
                raise InputError(f"--step {self.data.asked_step}: {source} has {summary.steps} steps, counted from 0")
            write_page(self.page, summary, self.data, source)
        if self.plot is not None:
            from balancer.report.figures import plot_loads

            plot_loads(self.data, self.plot)

    def say(self, as_json: bool) -> None:
        """Tell a person where it lies."""
        for what, path in (("page", self.page), ("figure", self.plot)):
            if path is not None and not as_json:
                click.echo(f"{what} written to {path}")
