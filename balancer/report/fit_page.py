"""The page of a fitted cost: how far measured steps are from what it predicts."""

from functools import partial

from balancer.cost.fit import CostFit
from balancer.report import charts
from balancer.report.page import Card, Chart, Page, Section
from balancer.report.table import Table, as_percent

__all__ = ["fit_page"]


def fit_page(fit: CostFit, cost: str, title: str) -> Page:
    """Return the page of a fit; `cost` is what ``balancer plan --cost`` takes, `title` says of what it is."""
    lead = f"A step that the fit has not seen is {as_percent(fit.held_out_error)} off on the mean, as {cost}."
    about = f"{fit.steps:,} steps ({fit.distinct_steps:,} different), lengths {fit.shortest:,} to {fit.longest:,}."
    beside = f"the worst {as_percent(fit.held_out_worst)}; {as_percent(fit.mean_error)} without lengths"
    card = Card(
        "held-out error", as_percent(fit.held_out_error), f"of steps that are predicted by the others; {beside}"
    )
    draw = partial(charts.residuals, predicted=fit.predicted, measured=fit.measured)
    words = (
        "Measured seconds of each step over those that the fit predicts. A fit that lacks nothing leaves no shape: "
        "points lie around the line alike on the left and on the right."
    )
    chart = Chart("how far measured steps are from the prediction, in per cent", draw, width=6.4, height=3.0)
    terms = Table(("term", "seconds", "±"), [(name, f"{of:.4g}", f"{spread:.2g}") for name, of, spread in fit.terms])
    sections = [
        Section("Measured beside predicted", words, [chart]),
        Section("Terms", "Their spread is over resampled steps.", table=terms),
    ]
    return Page(title, lead, about, [card], sections)
