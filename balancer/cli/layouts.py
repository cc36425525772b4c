"""What ``configure`` and ``simulate --layout`` share: options that say what a step is, and tables of layouts."""

import json
import time
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from balancer.cli.run import table_console
from balancer.cli.typed import by_phase
from balancer.cli.wording import GIVEN_IN, of_layout
from balancer.cost import CostModel, module
from balancer.cost.throughput import ThroughputCurve
from balancer.errors import InputError
from balancer.io.log_files import LogPath, files_of
from balancer.io.logs import open_log
from balancer.problem.cluster import Cluster
from balancer.problem.layout import read_layout
from balancer.problem.phases import Phase
from balancer.problem.step_tables import StepTables
from balancer.report.summary import JSON_VERSION
from balancer.simulate.configure import price_layouts
from balancer.simulate.given import given_of
from balancer.simulate.layout_price import Priced


def layout_arguments(step: StepTables, options: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of a step as :func:`balancer.configure` takes it."""
    if step.is_single:
        raise InputError("layouts are of phases: name them with --phase NAME=COL[+COL...], the language model last")
    columns = step.of_phases("length")
    curves = by_phase("--throughput", options["curves"], step.names)
    return {
        "phases": tuple(Phase(name, columns[name]) for name in step.names),
        "models": step.of_phases("model"),
        "pieces": step.of_phases("pieces"),
        "throughput": {name: ThroughputCurve.by_shards(path) for name, path in curves.items()},
        "frozen": tuple(name for name, still in step.of_phases("frozen").items() if still),
        "efficiency": options["efficiency"],
        "overlap": options["overlap"],
    }


def about_layouts(log: LogPath, asked: Mapping[str, Any], **sizes: int) -> dict[str, Any]:
    """Return what layouts were priced of, as documents have it; costs are FLOPs, or elements where items are cut."""
    models, pieces = asked["models"], asked["pieces"]
    costs = {
        name: CostModel() if name in pieces else module(model).flops().cost_model() for name, model in models.items()
    }
    return {
        "version": JSON_VERSION, "log": [str(file) for file in files_of(log)], **sizes,
        "cost": {name: str(cost) for name, cost in costs.items()}, "models": models,
    }  # fmt: skip


_PRICED_BY = {
    "log", "layouts", "ranks", "ranks_per_node", "batch_per_rank", "phases", "outputs", "own",
    "byte_sizes", "cluster", "models", "pieces", "curves", "efficiency", "overlap", "frozen", "steps", "as_json",
}  # fmt: skip
"""The options that say which steps there are, and what runs in them. All others say how a plan is made, and no plan
is made to price a layout."""


def _refuse_others() -> None:
    """Refuse options that would change nothing where layouts are compared."""
    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name not in _PRICED_BY
        # Only what was typed. A step file describes a step for all commands, so its other keys are not refused.
        and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be combined with --layout, unless with --strategies: no plan is made"
        )


def compare_layouts(
    log: LogPath, step: StepTables, options: dict[str, Any], cluster: Cluster, num_steps: int, as_json: bool
) -> None:
    """Print what steps of the same samples take by each of some layouts."""
    _refuse_others()
    started = time.perf_counter()
    layouts = {path: read_layout(path) for path in options["layouts"]}
    if options["batch_per_rank"] is None:
        raise InputError("--batch-per-rank is missing: samples that a rank draws for each step")
    asked = layout_arguments(step, options)
    meta = click.get_current_context().meta
    for path, layout in layouts.items():
        meta[GIVEN_IN] = of_layout(path)
        # Each layout by itself, with its file in the context: an error must name this file and no other.
        layout.check_phases([phase.name for phase in asked["phases"]])
    first, *rest = (layout.generators for layout in layouts.values())
    # A generator is work of its own: times of steps with it and without it say nothing about layouts.
    if odd := [names for names in rest if names != first]:
        told = " and ".join(", ".join(names) or "none" for names in (first, odd[0]))
        raise InputError(f"--layout: files must have the same generators to be compared, got {told}")
    given = given_of(
        log if isinstance(log, str) else open_log(log),
        max(layout.num_gpus for layout in layouts.values()), batch=options["ranks"] * options["batch_per_rank"],
        cluster=cluster, num_steps=num_steps, generators=first, **asked,
    )  # fmt: skip
    found: dict[str, Priced | None] = {}
    for path, layout in layouts.items():
        meta[GIVEN_IN] = of_layout(path)
        found[path] = price_layouts(given, [layout])[0]
    runtime_s = time.perf_counter() - started
    if as_json:
        document = {path: None if each is None else each.to_json() for path, each in found.items()}
        about = about_layouts(log, asked, ranks=options["ranks"], batch_per_rank=options["batch_per_rank"])
        click.echo(json.dumps(about | {"layouts": document, "runtime_s": runtime_s}, indent=2))
        return
    from balancer.report.layouts import assumptions, print_layouts

    console = table_console()
    if fitting := [(f"{each.layout.mode}", each) for each in found.values() if each is not None]:
        print_layouts(console, fitting, "layouts")
    for path, each in found.items():
        if each is None:
            console.print(f"{path} does not fit the memory of a GPU", markup=False, highlight=False, soft_wrap=True)
    for line in (*assumptions(given), f"{runtime_s:.1f} s"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
