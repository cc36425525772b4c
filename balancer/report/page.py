"""A page that needs nothing but itself: charts, each with its numbers and a sentence, filled into ``page.html``.

Text is escaped by the template, and so is what :func:`html` puts into a sentence of HTML. Names that users chose go
through :func:`named`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from balancer._version import __version__
from balancer.io._atomic import write_whole
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.charts import DARK, LIGHT, svg_of
from balancer.report.text import printable, shortened

__all__ = ["Card", "Chart", "Page", "Section", "Table", "as_cell", "html", "named",
           "numbers_of", "write_page"]  # fmt: skip

LONGEST_NAME = 120
"""Characters of a name that are shown."""

Draw = Callable[[Any], Any]


def html(words: str, *values: object) -> Markup:
    """Put values into a sentence of HTML; what is no HTML itself is escaped."""
    return Markup(words).format(*map(_shown, values))


def named(name: str, longest: int = LONGEST_NAME) -> Markup:
    """Return a name that a user chose as HTML text whose direction (left or right) does not affect its neighbours.

    Of a phase that nobody named it is "all samples".
    """
    return html("<bdi>{}</bdi>", "all samples" if name == SINGLE_PHASE else shortened(name, longest))


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in groups, each under a heading; in the columns that `texts` names is text, in others are numbers.

    Of a group without rows `empty` is said. Without columns rows are facts: a name, and what it is.
    """

    columns: Sequence[str]
    groups: Sequence[tuple[str, Sequence[Sequence[object]]]]
    texts: Sequence[str] = ()
    empty: str = ""


def numbers_of(columns: Mapping[str, Iterable[object]], texts: Sequence[str] = ()) -> Table:
    """Return the arrays that a chart draws as a table, a column each; shorter ones end early."""
    cells = [[as_cell(value) for value in values] for values in columns.values()]
    most = max(map(len, cells), default=0)
    rows = [[column[i] if i < len(column) else "" for column in cells] for i in range(most)]
    return Table(list(columns), [("", rows)], texts)


def as_cell(value: object) -> str:
    """Show a number in four digits at least; text as it is."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return value if isinstance(value, str) else f"{value:,}"


@dataclass(frozen=True, slots=True)
class Card:
    """A headline: one number large, what it is, and others by name."""

    title: str
    big: str
    words: str
    rows: Iterable[tuple[str, object]] = ()
    bad: bool = False  # in red


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, the numbers that it draws, and a sentence that is read aloud, which may hold names.

    Each of `draw` draws a panel, in a matplotlib figure of a size in inches; panels stand side by side, or one below
    the other where there is no room. Of `keys`, names and their colours, it has a legend.
    """

    key: str
    says: str
    draw: Draw | Sequence[Draw]
    numbers: Table
    caption: str = ""
    keys: Sequence[tuple[str, str]] = ()
    note: str = ""
    height: float = 2.6
    width: float = 4.6
    broad: bool = False

    def panels(self) -> list[Markup]:
        """Return each as inline SVG."""
        draws = [self.draw] if callable(self.draw) else self.draw
        keys = [self.key] if len(draws) == 1 else [f"{self.key}-{i}" for i in range(len(draws))]
        return [Markup(svg_of(key, draw, self.height, self.width)) for key, draw in zip(keys, draws, strict=True)]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: a sentence, charts, and below them a table, lines, or what can be pasted.

    With several charts, or a broad one, it takes the whole width of a screen; others stand two and two, and two beside
    a tall one.
    """

    title: str
    words: str
    charts: Sequence[Chart] = ()
    table: Table | None = None
    lines: Sequence[str] = ()
    pasted: Sequence[tuple[str, str]] = ()
    tall: bool = False
    hero: bool = False  # above the cards

    @property
    def is_half(self) -> bool:
        """Whether half of a screen is enough."""
        return len(self.charts) < 2 and all(callable(chart.draw) and not chart.broad for chart in self.charts)


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page.

    `source` is in a user's words, such as a file's path; `what` stands behind it in the title, `lead` is the one
    sentence that a reader shall take away, and `about` a line below it.
    """

    source: str
    what: str
    lead: str
    about: str
    cards: Sequence[Card]
    sections: Sequence[Section]
    footer: str

    def __str__(self) -> str:
        """Return it as HTML."""
        return _template().render(
            page=self, title=f"{shortened(self.source, LONGEST_NAME)}: {self.what}", version=__version__
        )


def write_page(path: str, page: Page) -> None:
    """Write a page to a file, which is there as a whole or not at all."""
    write_whole(path, str(page).encode("utf-8", errors="backslashreplace"), "write the page")  # names need not be text


@cache
def _template() -> jinja2.Template:
    # Strict: a name that the template misspells is an error, and not a blank on the page.
    made = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    made.filters["named"] = named
    on_paper = LIGHT | {"card": LIGHT["page"], "ink": "#000000"}
    text = resources.files("balancer.report").joinpath("page.html").read_text(encoding="utf-8")
    return made.from_string(text, {"light": LIGHT, "dark": DARK, "on_paper": on_paper})


def _shown(value: object) -> object:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
