"""The one kind of page: a title, a lead, cards, and sections of a heading, words, charts and a table.

A page needs nothing but itself, and has no script. Text is escaped by the template, and so is what :func:`html` puts
into a sentence of HTML. Names that users chose go through :func:`named`, and stand in no chart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from balancer._version import __version__
from balancer.io._atomic import write_whole
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.charts import svg_of
from balancer.report.table import Table
from balancer.report.text import printable, shortened

__all__ = ["Card", "Chart", "Page", "Section", "html", "named", "write_page"]

LONGEST_NAME = 120
"""Characters of a name that are shown."""


def html(words: str, *values: object) -> Markup:
    """Put values into a sentence of HTML; what is no HTML itself is escaped."""
    return Markup(words).format(*map(_shown, values))


def named(name: str, longest: int = LONGEST_NAME) -> Markup:
    """Return a name that a user chose as HTML text whose direction (left or right) does not affect its neighbours.

    Of a phase that nobody named it is "all samples".
    """
    return html("<bdi>{}</bdi>", "all samples" if name == SINGLE_PHASE else shortened(name, longest))


@dataclass(frozen=True, slots=True)
class Card:
    """A headline: one number large, and what it is."""

    title: str
    big: str
    words: str
    bad: bool = False  # in red


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, and a sentence that is read aloud in its place, which may hold names.

    `draw` draws into a matplotlib figure of a size in inches.
    """

    says: str
    draw: Callable[[Any], Any]
    caption: str = ""
    height: float = 2.6
    width: float = 5.4
    broad: bool = False  # takes the whole width of a screen

    def svg(self, number: int, heading: str) -> Markup:
        """Return it as inline SVG; the number and the heading of its section keep its ids apart from others'."""
        key = "".join(letter for letter in heading.lower() if letter.isalpha())
        return Markup(svg_of(f"{key}{number}", self.draw, self.height, self.width))


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: words, charts, a table, and what can be pasted, each with a line that says what for."""

    heading: str
    words: str = ""
    charts: Sequence[Chart] = ()
    table: Table | None = None
    pasted: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page; `lead` is the one sentence that a reader shall take away, `about` says of how much it is."""

    title: str  # in a user's words, such as a file's path
    lead: str
    about: str
    cards: Sequence[Card]
    sections: Sequence[Section]

    def __str__(self) -> str:
        """Return it as HTML."""
        return _template().render(page=self, title=shortened(self.title, LONGEST_NAME), version=__version__)


def write_page(path: str, page: Page) -> None:
    """Write a page to a file, which is there as a whole or not at all."""
    write_whole(path, str(page).encode("utf-8", errors="backslashreplace"), "write the page")  # names need not be text


@cache
def _template() -> jinja2.Template:
    # Strict: a name that the template misspells is an error, and not a blank on the page.
    made = jinja2.Environment(
        autoescape=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters["named"] = named
    return made.from_string(resources.files("balancer.report").joinpath("page.html").read_text(encoding="utf-8"))


def _shown(value: object) -> object:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
