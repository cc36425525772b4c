"""``balancer fit``: measured steps in, a cost model out, in the words that ``balancer plan --cost`` takes."""

import json
import os
from dataclasses import asdict
from typing import Any

import click

from balancer.cost.fit import CostFit, fit_cost
from balancer.cost.fit_terms import TermsFit, fit_terms
from balancer.cost.integer import IntegerCost
from balancer.errors import FitError, InputError
from balancer.io.measurements import read_measurements
from balancer.report.text import printable


def run(
    measurements: str, skip: int, weights: str, areas: str | None, only: tuple[str, ...], max_error: float, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Fit, and say what was found."""
    if not max_error > 0:
        raise InputError(f"--max-error must be > 0, got {max_error}")
    lengths, seconds, degrees = read_measurements(measurements, dict(map(_condition, only)))
    fit: CostFit | TermsFit
    try:
        if areas is None:
            fit = fit_cost(
                # Rows are cut here, not while reading: --skip counts the steps that --where has left.
                lengths[skip:], seconds[skip:], degrees=None if degrees is None else degrees[skip:], weights=weights,
                max_error=max_error, force=force,
            )  # fmt: skip
        elif degrees is not None and (degrees > 1).any():
            raise InputError("--areas takes no steps of several ranks (column 'degree'): fit those without it")
        else:
            fit = fit_terms(
                lengths[skip:], seconds[skip:], areas.split(","), weights=weights, max_error=max_error, force=force
            )
        cost = fit.integer_cost()
    except FitError as error:
        # A fit without any growth makes no cost: there --force changes nothing.
        hint = "" if "a = b = 0" in str(error) else "\nuse --force to have it all the same"
        raise FitError(f"{measurements}: {error}{hint}") from error
    except ValueError as error:
        raise InputError(f"{measurements}: {error}") from error
    if as_json:
        click.echo(json.dumps(_document(fit, cost, skip), indent=2))
        return
    name = os.path.basename(measurements)
    for line in _lines(fit, cost, name) if isinstance(fit, CostFit) else _term_lines(fit, cost, name):
        click.echo(printable(line))


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not column or not equals:
        raise InputError(f"--where must be COLUMN=VALUE, got {text!r}")
    return column, value


def _document(fit: CostFit | TermsFit, cost: IntegerCost, skipped: int) -> dict[str, Any]:
    more: dict[str, Any] = {"condition": fit.condition, "uncertain": list(fit.uncertain)} if isinstance(
        fit, CostFit) else {
        "alike": list(fit.alike), "left_out": list(fit.left_out), "by_length": [asdict(each) for each in fit.by_length],
    }  # fmt: skip
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


def _lines(fit: CostFit, cost: IntegerCost, name: str) -> list[str]:
    """Say what a person wants to know, the number to copy last."""
    shared = bool(fit.exchange)
    units = {"c0": "s a step", "b": "s a unit squared"}
    lines = [
        f"{name}: {fit.steps:,} steps ({fit.distinct_steps:,} different), lengths {fit.shortest:,} to {fit.longest:,}",
        "seconds = c0 + " + ("((a + dN)*sum(l) + b*sum(l^2)) / N, N the degree" if shared else "a*sum(l) + b*sum(l^2)"),
        *(
            f"  {symbol:<3} {value:>10.4g} +- {spread:<9.2g} {units.get(symbol, 's a unit of length')}"
            for symbol, value, spread in fit.terms
        ),
        f"held-out error {fit.held_out_error:.2%} (worst step {fit.held_out_worst:.1%}); "
        f"without lengths {fit.mean_error:.1%}",
    ]
    if fit.uncertain:
        which = " and ".join(fit.uncertain)
        lines.append(
            f"uncertain: {which}, by more than a quarter over resampled steps; measure more steps, of other lengths too"
        )
    if fit.refusal is not None:
        lines.append(f"forced: {fit.refusal}")
    off = f", off by at most {cost.rounding:.2g}" if cost.rounding else ""
    c0 = "overhead is c0" if shared else "c0 changes no plan"
    lines.append(f"--cost {cost.model}   (in units of {cost.work_unit}{off}; {c0})")
    return lines


def _term_lines(fit: TermsFit, cost: IntegerCost, name: str) -> list[str]:
    """Say which terms were taken, which are not told apart, and how far off they are by length."""
    units = {"c0": "s a step", "constant": "s a sample", "a": "s a unit of length"}
    off = f", off by at most {cost.rounding:.2g}" if cost.rounding else ""
    lines = [
        f"{name}: {fit.steps:,} steps ({fit.distinct_steps:,} different), lengths {fit.shortest:,} to {fit.longest:,}",
        f"seconds = {' + '.join(each for each, _, _ in fit.terms)}",
        *(
            f"  {symbol:<14} {value:>10.4g} +- {spread:<9.2g} {units.get(symbol, 's a pair of tokens')}"
            for symbol, value, spread in fit.terms
        ),
        f"held-out error {fit.held_out_error:.2%} (worst step {fit.held_out_worst:.1%}); "
        f"without lengths {fit.mean_error:.1%}",
        *(
            f"  lengths {each.shortest:>9,} to {each.longest:>9,}: {each.error:6.1%} over {each.steps:,} steps"
            for each in fit.by_length
        ),
        *fit.alike,
    ]
    if fit.left_out:
        lines.append(f"left out, as they make it no better: {', '.join(fit.left_out)}")
    if fit.refusal is not None:
        lines.append(f"forced: {fit.refusal}")
    if "constant" not in (*fit.left_out, *(symbol for symbol, _, _ in fit.terms)):
        lines.append("c0 is of a step or of each sample: steps with other numbers of samples would tell")
    lines.append(f"--cost {cost.model}   (in units of {cost.work_unit}{off}; c0 changes no plan)")
    return lines
