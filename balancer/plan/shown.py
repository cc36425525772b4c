"""A plan, or a run of plans, as a notebook shows it: a small table of HTML; nothing is drawn, no library is loaded."""

import html
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from balancer.errors import on_a_line


class Ratios(NamedTuple):
    """Imbalance ratios of a phase."""

    before: float
    after: float
    best: float | None  # at the proven lower bound; None where a phase has no makespan of its own

    @classmethod
    def from_plan(cls, plan: Any) -> "Ratios":
        """Return those of a dispatch plan."""
        total, share = plan.perfect()
        best = plan.lower_bound * share / total if total else 1.0
        return cls(plan.home_imbalance_ratio, plan.imbalance_ratio, best)


def as_html(title: str, what: str, phases: Mapping[str, Ratios], notes: Iterable[str] = ()) -> str:
    """Return the imbalance ratios of every phase, before, after and at best, under a title that says what they are of.

    Names and notes may be from outside: they are escaped.
    """
    rows = "".join(
        f"<tr><th>{_escaped(name)}</th><td>{ratios.before:.3f}</td><td>{ratios.after:.3f}</td>"
        f"<td>{'' if ratios.best is None else f'{ratios.best:.3f}'}</td></tr>"
        for name, ratios in phases.items()
    )
    beside = "".join(f"<p>{_escaped(line)}</p>" for line in notes)
    head = "<tr><th>imbalance ratio</th><th>before</th><th>after</th><th>best possible</th></tr>"
    return f"<div><p><b>{_escaped(title)}</b>: {_escaped(what)}</p><table>{head}{rows}</table>{beside}</div>"


def _escaped(text: str) -> str:
    return html.escape(on_a_line(text))
