"""Layouts as tables and sentences, on a screen and on a page: what each takes and holds, and what was assumed."""

from collections.abc import Iterable, Iterator

from rich.console import Console

from balancer.layout_choice.bounds import room_of
from balancer.layout_choice.choose import Configuration
from balancer.layout_choice.given import Given
from balancer.layout_choice.price import Priced
from balancer.layouts.layout import ModuleLayout
from balancer.report.table import Table, as_percent, print_lines, print_table
from balancer.report.text import counted

_MOST_ROWS = 12
_MARKS = {"bound": "slower", "memory": "do not fit", "estimate": "slower by their estimates", "scheduled": "scheduled"}


def print_layouts(console: Console, rows: Iterable[tuple[str, Priced]], title: str) -> None:
    """Print a row a layout, each with a name, and below what the layouts are."""
    found = list(rows)
    print_table(console, table_of(title, ((f"{i}  {name}", each) for i, (name, each) in enumerate(found, 1))))
    print_lines(console, *(f"{i}  {in_words(each)}" for i, (_, each) in enumerate(found, 1)))


def print_configuration(console: Console, found: Configuration, runtime_s: float) -> None:
    """Print the fastest layouts by memory, the best of each mode, how many there were, and what was assumed."""
    print_layouts(console, [(each.layout.mode, each) for each in found.table[:_MOST_ROWS]], "fastest by memory")
    if others := list(beside(found)):
        print_layouts(console, others, "for comparison")
    print_lines(console, *excluded(found), *assumptions(found.case.given), f"{runtime_s:.1f} s")


def table_of(title: str, rows: Iterable[tuple[str, Priced]]) -> Table:
    """Return a row a layout, by a name: what it takes, how far that is over its bound, what is idle, MFU, and GiB."""
    cells = [
        (name, f"{each.seconds:.4g}", as_percent(each.seconds / each.lower_bound_s - 1 if each.lower_bound_s else 0.0),
         as_percent(each.idle), as_percent(each.mfu), f"{each.bytes / 2**30:.1f}")
        for name, each in rows
    ]  # fmt: skip
    return Table((title, "s a step", "over its bound", "idle", "MFU", "GiB"), cells)


def beside(found: Configuration) -> Iterator[tuple[str, Priced]]:
    """Yield what is compared with the fastest: the best of each mode, and what DFLOP's formula chooses."""
    for mode, each in found.best.items():
        if each not in found.table:
            yield mode, each
    if found.formula is not None:
        yield "DFLOP's formula", found.formula


def in_words(each: Priced) -> str:
    """Return what a layout is, those of encoders that are alike together."""
    alike: dict[ModuleLayout, list[str]] = {}
    for name, one in each.layout.modules.items():
        alike.setdefault(one, []).append(name)
    told = "; ".join(f"{'+'.join(names)}: {one.in_words()}" for one, names in alike.items())
    return f"{told}; {counted(each.layout.micro_batches or 1, 'micro-batch')}"


def excluded(found: Configuration) -> Iterator[str]:
    """Say what became of all layouts, and what the formula said."""
    for mode, counts in found.counts.items():
        total = sum(counts.values())
        told = ", ".join(f"{counts[reason]:,} {_MARKS[reason]}" for reason in _MARKS if counts[reason])
        yield f"{mode}: {counted(total, 'layout')}; {told}."
    if left := sum(counts["estimate"] for counts in found.counts.values()):
        yield f"{counted(left, 'layout')} may be faster than estimated: --layouts schedules more of them."
    behind = as_percent(found.winner.seconds / found.lower_bound_s - 1 if found.lower_bound_s else 0.0)
    yield f"None of these takes less than {found.lower_bound_s:.4g} s, proven: the first is within {behind} of it."
    if found.formula is not None:
        over = "" if found.formula.bytes <= room_of(found.case.given) else ", and does not fit"
        slower = found.formula.seconds / found.winner.seconds
        yield (
            f"DFLOP's formula, (micro-batches + stages - 1) x the largest stage's, says {found.formula_s:.4g} s of "
            f"its choice, which takes {found.formula.seconds:.4g} s: {slower:.3f} of the first's{over}."
        )


def assumptions(given: Given) -> Iterator[str]:
    """Say what was assumed."""
    steps = f"{counted(len(given.steps), 'step')} of {counted(given.steps[0].num_samples, 'sample')}"
    gpus = counted(given.num_gpus, "GPU")
    yield (
        f"Assumed: {gpus}, {steps}; {given.overlap:.0%} of exchanges hidden; whole layers; encoders "
        "that share stages are cut alike, and their items spread evenly over the ranks of a stage or device; a GPU "
        "computes at the same rate whatever the shards; the optimizer takes no time; a tenth of the memory stays free."
    )
    if given.generators:
        yield (
            f"Generators ({', '.join(given.generators)}) are last stages, where a micro-batch turns; so encoders are "
            "stages too."
        )
