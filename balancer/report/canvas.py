"""Drawing of charts: colours, figures without a display, inline SVG for the page, files for ``--plot``.

Needs matplotlib, which is an extra and is loaded only here, when used. Charts hold no names that users chose (phases,
files): those are text of the page.
"""

import importlib.util
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from balancer.errors import InputError
from balancer.io._atomic import target_of, write_whole
from balancer.report.style import LIGHT

__all__ = ["IN_PAGE", "NUM_PHASE_COLORS", "ON_PAPER", "Colors", "check_plot", "phase_variable", "plot_to_file",
           "require_matplotlib", "svg_of"]  # fmt: skip

NUM_PHASE_COLORS = 6
_PICTURES = (".png", ".svg")
_DOING = "write the figure"


@dataclass(frozen=True, slots=True)
class Colors:
    """What a chart is drawn in."""

    page: str
    ink: str
    faint: str
    before: str
    after: str
    phases: tuple[str, ...]


_PHASES = tuple(f"phase-{i}" for i in range(NUM_PHASE_COLORS))

ON_PAPER = Colors(
    LIGHT["page"], LIGHT["ink"], LIGHT["faint"], LIGHT["before"], LIGHT["after"], tuple(LIGHT[name] for name in _PHASES)
)

IN_PAGE = Colors(
    "#010100", "#010101", "#010102", "#010103", "#010104", tuple(f"#01011{i}" for i in range(NUM_PHASE_COLORS))
)
"""Marks that :func:`svg_of` replaces by the page's variables, so that one chart suits light, dark and print."""

_VARIABLE_OF = {
    **{getattr(IN_PAGE, name): f"--{name}" for name in ("page", "ink", "faint", "before", "after")},
    **{mark: f"--phase-{i}" for i, mark in enumerate(IN_PAGE.phases)},
}


def phase_variable(index: int) -> str:
    """Return the page's variable for the colour of a phase."""
    return f"--phase-{index % NUM_PHASE_COLORS}"


def require_matplotlib(option: str) -> None:
    """Raise InputError, with the remedy, if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            f"{option} needs matplotlib, which is not installed; install it with: pip install 'seqbalancer[plot]'"
        )


def check_plot(path: str) -> None:
    """Raise InputError, with the remedy, if no picture can be written to `path` or matplotlib is not installed."""
    if os.path.splitext(path)[1].lower() not in _PICTURES:
        raise InputError(f"{path}: a plot is written as {' or '.join(_PICTURES)}; choose such a name")
    require_matplotlib("--plot")
    target_of(path, _DOING)


@contextmanager
def _drawing(width: float, height: float, colors: Colors) -> Iterator[Any]:
    """Open a figure that needs no display."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "seqbalancer",  # the same page at every run
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "axes.edgecolor": colors.faint,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), colors.ink),
        "legend.frameon": False,
        "legend.fontsize": 9,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of characters that its font lacks
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        FigureCanvasAgg(figure)
        yield figure


def svg_of(name: str, draw: Callable[[Any], None], height: float = 2.6, width: float = 4.6) -> str:
    """Draw a chart in :data:`IN_PAGE` and return it as inline SVG that refers to nothing outside itself.

    `name`, which no user chose, keeps the ids of the page's charts apart; `draw` takes a matplotlib figure.
    """
    buffer = io.StringIO()
    with _drawing(width, height, IN_PAGE) as figure:
        draw(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    head, rest = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    svg = f'<svg {view[0] if view else ""} aria-hidden="true">{rest}'
    svg = svg.replace("xlink:href", "href").replace('id="', f'id="{name}-')
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = re.sub(r"font: (?:\w+ )*([0-9.]+)px [^;\"]*", r"font-size: \1px", svg)  # the page's own font
    svg = re.sub(r"font-family: [^;\"]*(?:; )?", "", svg)
    for mark, variable in _VARIABLE_OF.items():
        svg = svg.replace(mark, f"var({variable})")
    return svg.strip()


def plot_to_file(path: str, width: float, height: float, draw: Callable[[Any], None]) -> None:
    """Write a chart of so many inches to a PNG or SVG file; `draw` takes a matplotlib figure, in :data:`ON_PAPER`."""
    with _drawing(width, height, ON_PAPER) as figure:
        draw(figure)
        options: dict[str, Any] = {"metadata": {"Date": None}} if path.lower().endswith(".svg") else {}
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=150, facecolor="white", format=os.path.splitext(path)[1][1:].lower(), **options)
    write_whole(path, drawn.getvalue(), _DOING)
