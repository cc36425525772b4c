"""What ``configure`` and ``simulate --layout`` share, and the table of ``simulate --layout``."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from balancer.cli.run import say_json, table_console
from balancer.cost import CostModel, module
from balancer.cost.throughput import ThroughputCurve
from balancer.errors import InputError
from balancer.io.log import open_log
from balancer.io.log_files import LogPath, files_of
from balancer.layout_choice.choose import price_layouts
from balancer.layout_choice.given import given_of
from balancer.layout_choice.price import Priced
from balancer.layouts.layout import read_layout
from balancer.offline.step_table import JSON_VERSION
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.report.layouts import assumptions, print_layouts
from balancer.report.table import print_lines
from balancer.simulate.cluster import Cluster
from balancer.step import StepFile
from solvers.errors import WordedError


def by_phase(option: str, texts: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` words, each phase once; of a single phase that nobody named, the value alone."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if tuple(names) == (SINGLE_PHASE,) and name not in names:
            name, equals, value = SINGLE_PHASE, "=", text.strip()
        if not (name and equals and value):
            raise InputError(f"{option} {text!r} must be NAME=VALUE, with the name of a phase")
        if name not in names:
            raise InputError(f"{option} {text!r}: there is no phase {name!r}; phases are {', '.join(names)}")
        if name in found:
            raise InputError(f"{option} names phase {name!r} twice")
        found[name] = value
    return found


def layout_arguments(step: StepFile, efficiency: float, curves: Iterable[str], overlap: float) -> dict[str, Any]:
    """Return what is said of a step as :func:`balancer.configure` takes it."""
    if step.is_single:
        raise InputError(
            "layouts are of phases: name them with --set phase.NAME.length=COLUMN, the language model last"
        )
    columns = step.of_phases("length")
    files = by_phase("--throughput", curves, step.names)
    return {
        "phases": tuple(Phase(name, columns[name]) for name in step.names if name in columns),
        "models": step.of_phases("model"),
        "pieces": step.of_phases("pieces"),
        "throughput": {name: ThroughputCurve.by_shards(path) for name, path in files.items()},
        "frozen": tuple(name for name, still in step.of_phases("frozen").items() if still),
        "efficiency": efficiency,
        "overlap": overlap,
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


@contextlib.contextmanager
def _of_file(path: str) -> Iterator[None]:
    """Let errors name the layout's file."""
    try:
        yield
    except WordedError as error:
        raise error.within(path) from error.__cause__


def compare_layouts(
    log: LogPath, paths: Iterable[str], step: StepFile, rates: dict[str, Any], cluster: Cluster, num_steps: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Print what steps of the same samples take by each of some layouts."""
    started = time.perf_counter()
    layouts = {path: read_layout(path) for path in paths}
    ranks, batch_per_rank = step.need("ranks"), step.need("batch_per_rank")
    asked = layout_arguments(step, **rates)
    for path, layout in layouts.items():
        with _of_file(path):
            layout.check_phases([phase.name for phase in asked["phases"]])
    first, *rest = (layout.generators for layout in layouts.values())
    # A generator is work of its own: times of steps with it and without it say nothing about layouts.
    if odd := [names for names in rest if names != first]:
        told = " and ".join(", ".join(names) or "none" for names in (first, odd[0]))
        raise InputError(f"--layout: files must have the same generators to be compared, got {told}")
    given = given_of(
        log if isinstance(log, str) else open_log(log),
        max(layout.num_gpus for layout in layouts.values()), batch=ranks * batch_per_rank,
        cluster=cluster, num_steps=num_steps, generators=first, **asked,
    )  # fmt: skip
    found: dict[str, Priced | None] = {}
    for path, layout in layouts.items():
        with _of_file(path):
            found[path] = price_layouts(given, [layout])[0]
    runtime_s = time.perf_counter() - started
    if as_json:
        document = {path: None if each is None else each.to_json() for path, each in found.items()}
        about = about_layouts(log, asked, ranks=ranks, batch_per_rank=batch_per_rank)
        say_json(about | {"layouts": document, "runtime_s": runtime_s})
        return
    console = table_console()
    if fitting := [(f"{each.layout.mode}", each) for each in found.values() if each is not None]:
        print_layouts(console, fitting, "layouts")
    too_large = [f"{path} does not fit the memory of a GPU" for path, each in found.items() if each is None]
    print_lines(console, *too_large, *assumptions(given), f"{runtime_s:.1f} s")
