"""``balancer fit``: measured steps in, a cost model out, in the words that ``balancer plan --cost`` takes."""

import os
from collections.abc import Iterator
from typing import Any

from balancer.cli.run import check_page, say, say_json, say_page
from balancer.cost.fit import CostFit, fit_cost
from balancer.cost.integer import IntegerCost
from balancer.errors import FitError, InputError
from balancer.io.measurements import read_measurements


def run(
    measurements: str, skip: int, areas: str | None, only: tuple[str, ...], force: bool, page: str | None, as_json: bool
) -> None:
    """Fit, say what was found, and write the page if one is wanted."""
    check_page(page)
    lengths, seconds, degrees = read_measurements(measurements, dict(map(_condition, only)))
    # Rows are cut here, not while reading: --skip counts the steps that --where has left.
    lengths, seconds, degrees = lengths[skip:], seconds[skip:], None if degrees is None else degrees[skip:]
    try:
        named = None if areas is None else areas.split(",")
        fit = fit_cost(lengths, seconds, areas=named, degrees=degrees, force=force)
        cost = fit.integer_cost()
    except FitError as error:
        # A fit without any growth makes no cost: there --force changes nothing.
        hint = "" if "a = b = 0" in str(error) else "\nuse --force to have it all the same"
        raise FitError(f"{measurements}: {error}{hint}") from error
    except ValueError as error:
        raise InputError(f"{measurements}: {error}") from error
    if page is not None:
        from balancer.report.fit_page import fit_page
        from balancer.report.page import write_page

        write_page(page, fit_page(fit, str(cost.model), measurements))
    if as_json:
        say_json(_document(fit, cost, skip, by_areas=areas is not None))
    else:
        say(*_lines(fit, cost, os.path.basename(measurements), by_areas=areas is not None))
        say_page(page)


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not column or not equals:
        raise InputError(f"--where must be COLUMN=VALUE, got {text!r}")
    return column, value


def _document(fit: CostFit, cost: IntegerCost, skipped: int, by_areas: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"uncertain": list(fit.uncertain)}
    if by_areas:
        more = {"alike": list(fit.alike), "left_out": list(fit.left_out)}
    return {
        "cost": str(cost.model),
        "work_unit": cost.work_unit,
        "rounding": cost.rounding,
        **{f"{name}_s": value for name, value, _ in fit.terms},
        **{f"spread_{name}_s": spread for name, _, spread in fit.terms},
        "held_out_error": fit.held_out_error,
        "held_out_worst": fit.held_out_worst,
        "mean_error": fit.mean_error,
        "steps": fit.steps,
        "skipped": skipped,
        "distinct_steps": fit.distinct_steps,
        "shortest": fit.shortest,
        "longest": fit.longest,
        **more,
        "forced": fit.refusal,
    }


def _lines(fit: CostFit, cost: IntegerCost, name: str, by_areas: bool) -> Iterator[str]:
    """Say what a person wants to know, the number to copy last."""
    shared = bool(fit.exchange)
    law = "((a + dN)*sum(l) + b*sum(l^2)) / N, N the degree" if shared else "a*sum(l) + b*sum(l^2)"
    units, rest = {"c0": "s a step", "b": "s a unit squared"}, "s a unit of length"
    if by_areas:
        law = " + ".join(symbol for symbol, _, _ in fit.terms if symbol != "c0")
        units, rest = {"c0": "s a step", "constant": "s a sample", "a": "s a unit of length"}, "s a pair of tokens"
    constant = "c0 + " * any(symbol == "c0" for symbol, _, _ in fit.terms)
    yield f"{name}: {fit.steps:,} steps ({fit.distinct_steps:,} different), lengths {fit.shortest:,} to {fit.longest:,}"
    yield f"seconds = {constant}{law}"
    width = max(3, *(len(symbol) for symbol, _, _ in fit.terms))
    for symbol, value, spread in fit.terms:
        yield f"  {symbol:<{width}} {value:>10.4g} +- {spread:<9.2g} {units.get(symbol, rest)}"
    yield (
        f"held-out error {fit.held_out_error:.2%} (worst step {fit.held_out_worst:.1%}); "
        f"without lengths {fit.mean_error:.1%}"
    )
    yield from _doubts(fit, by_areas)
    if fit.refusal is not None:
        yield f"forced: {fit.refusal}"
    off = f", off by at most {cost.rounding:.2g}" if cost.rounding else ""
    c0 = "overhead is c0" if shared else "c0 changes no plan"
    yield f"--cost {cost.model}   (in units of {cost.work_unit}{off}; {c0})"


def _doubts(fit: CostFit, by_areas: bool) -> Iterator[str]:
    """Say what the steps do not tell, or not well."""
    if not by_areas:
        if fit.uncertain:
            yield (
                f"uncertain: {' and '.join(fit.uncertain)}, by more than a quarter over resampled steps; measure more "
                "steps, of other lengths too"
            )
        return
    yield from fit.alike
    if fit.left_out:
        yield f"left out, as they make it no better: {', '.join(fit.left_out)}"
    if "constant" not in (*fit.left_out, *(symbol for symbol, _, _ in fit.terms)):
        yield "c0 is of a step or of each sample: steps with other numbers of samples would tell"
