"""Tables, which a screen prints and a page shows, and how numbers are written in them and in sentences."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

NARROWEST = 76
"""Columns that tables need; on a narrower terminal lines wrap, but no number is cut."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown; the first column is text.

    A row of one cell is a heading of those below it. Without columns rows are facts: a name, and what it is.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def print_table(console: Console, table: Table) -> None:
    """Print a table; where a terminal is narrow, names are broken, and numbers are not."""
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(table.columns):
        style = "bold green" if name == "after" else ""
        if number:
            shown.add_column(Text(name), justify="right", no_wrap=True, style=style)
        else:
            shown.add_column(Text(name), overflow="fold", min_width=6)
    for number, row in enumerate(table.rows):
        heading = len(row) == 1
        if heading and number:
            shown.add_section()
        shown.add_row(*(Text(str(cell), style="bold" if heading else "") for cell in row))
    console.print(shown)


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are: of any length, and nothing in them is taken for markup."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


# Numbers -----------------------------------------------------------------------------------------------------------


def as_alike(values: Sequence[float], digits: int = 3, least: bool = False) -> list[str]:
    """Show numbers with equally many decimals: so many digits of the largest, or of the `least`."""
    there = [value for value in values if value > 0]
    if not there:
        return ["0"] * len(values)
    shown = min(there) if least else max(there)
    power = int(f"{shown:.{digits - 1}e}".partition("e")[2])  # of ten, once rounded
    decimals = min(9, max(0, digits - 1 - power))
    return [f"{value:,.{decimals}f}" for value in values]


def as_bytes(count: float) -> str:
    """Show a number of bytes in three digits and a unit."""
    # From here on three digits would round up to 1,000 of the unit.
    if count < 999.5:
        return f"{count:.3g} B"
    for unit in ("KB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5 or unit == "TB":
            break
    return f"{as_alike([count])[0]} {unit}"


def as_seconds(value: float) -> str:
    """Show a time in three digits."""
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * least:
            number = value / least
            return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.1e} s"


def as_range(fewest: int, most: int) -> str:
    """Show a range, or one number where both ends are equal."""
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def as_ratios(values: Iterable[float]) -> list[str]:
    """Show ratios with equally many decimals, enough that none looks perfect that is not."""
    values = list(values)
    closest = min((value - 1 for value in values if value > 1 + 1e-9), default=1.0)
    decimals = next((digits for digits in (3, 4, 5) if closest >= 0.5 * 10.0**-digits), 6)
    return [f"{value:.{decimals}f}" for value in values]


def as_percent(value: float | None) -> str:
    """Show a fraction as per cent, a small one in one digit; None is infinite.

    Under a thousandth of a part per million is what rounding to whole units leaves: none.

    Examples
    --------
    >>> as_percent(0.05), as_percent(0.0005), as_percent(2e-6), as_percent(6e-12)
    ('5.0 %', '0.05 %', 'under 0.001 %', '0 %')
    """
    if value is None:
        return "unbounded"
    if value < 1e-9:
        return "0 %"
    if value < 1e-5:
        return "under 0.001 %"
    return f"{100 * value:.1f} %" if value >= 0.00095 else f"{float(f'{100 * value:.1g}')} %"
