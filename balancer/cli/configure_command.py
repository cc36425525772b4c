"""``balancer configure``: which layout a cluster is to have for a log and its models."""

import json
import os
import shlex
import time
from collections.abc import Iterator
from typing import Any

from balancer.cli.layouts import about_layouts, layout_arguments
from balancer.cli.run import check_page, progress, say, say_json, say_page, table_console
from balancer.cli.said import said_step
from balancer.errors import InputError
from balancer.io._atomic import target_of, write_whole
from balancer.io.log import open_log
from balancer.io.log_files import LogPath
from balancer.layout_choice.choose import LAST_S, Configuration, configure
from balancer.layouts.layout import StepLayout
from balancer.report.layouts import print_configuration
from balancer.step import StepFile

_DOING = "write the layout"


def run(
    log: LogPath, as_json: bool, out: str | None, page: str | None, efficiency: float, curves: tuple[str, ...],
    overlap: float, mode: str, num_steps: int, layouts: int, generators: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Choose a layout, and write it if that is wanted."""
    check_page(page)
    paths = [log] if isinstance(log, str) else [str(path) for path in log]  # type: ignore[union-attr]
    if out is not None:
        target_of(out, _DOING)
        for what, path in (*(("log", path) for path in paths), ("page", page)):
            # Not the words are compared: a link to the log would overwrite the log, too.
            if path is not None and os.path.realpath(path) == os.path.realpath(out):
                raise InputError(f"{out}: the layout would overwrite the {what}; choose another --out")
    step = said_step(options)
    gpus = step.need("gpus")
    batch = step.need("batch_per_rank") * (step.ranks or gpus)  # of as many ranks as there are GPUs, unless it is said
    rates: dict[str, Any] = {"efficiency": efficiency, "curves": curves, "overlap": overlap}
    asked = layout_arguments(step, **rates) | {
        "num_gpus": gpus, "batch": batch, "cluster": step.need("cluster"), "mode": mode, "num_steps": num_steps,
        "layouts": layouts, "generators": generators,
    }  # fmt: skip
    started = time.perf_counter()
    with progress(as_json, "layouts scheduled") as tick:
        found = configure(paths[0] if len(paths) == 1 else open_log(paths), tick=tick, **asked)
    runtime_s = time.perf_counter() - started
    if out is not None:
        text = json.dumps(found.winner.layout.to_json() | {"found": _told(found)}, indent=2) + "\n"
        write_whole(out, text.encode(), _DOING)
    if page is not None:
        from balancer.report.layout_page import layout_page
        from balancer.report.page import write_page

        write_page(page, layout_page(found, paths[0]))
    if as_json:
        say_json(about_layouts(log, asked, gpus=gpus, batch=batch) | found.to_json() | {"runtime_s": runtime_s})
        return
    print_configuration(table_console(), found, runtime_s)
    if out is not None:
        say(f"layout written to {out}")
        for what, words in _next_commands(paths, found, out, step, batch, rates | {"steps": num_steps}):
            say(f"{what}:\n  {shlex.join(map(str, words))}")
    say_page(page)


def _told(found: Configuration) -> dict[str, Any]:
    """Return what the winner's file says of it, besides the layout."""
    each = found.winner.to_json()
    return {name: value for name, value in each.items() if name != "layout"} | {"lower_bound_s": found.lower_bound_s}


def _next_commands(
    logs: list[str], found: Configuration, out: str, step: StepFile, batch: int, own: dict[str, Any]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield commands to go on with, and what for: to price the winner at the same samples, and to plan by it."""
    layout = found.winner.layout
    # The same samples as here must be priced: where the replicas do not divide them, one rank draws all.
    ranks = layout.llm.dp if batch % layout.llm.dp == 0 else 1
    words = _begun("simulate", logs, ranks, batch)
    words += [*_of_phases(step, "length", "model", "pieces", "frozen"), "--layout", out, "--cluster", step.cluster]
    words += [word for value in own["curves"] for word in ("--throughput", value)]
    for name, usual in (("steps", 1), ("efficiency", 0.5), ("overlap", 0.0)):
        words += [f"--{name}", own[name]] * (own[name] != usual)
    yield "to see it beside others, give more files", words
    if layout.generators:  # which plans do not describe
        return
    ranks, each = layout.llm.dp, max(1, batch // layout.llm.dp)
    what = "to plan by it, its replicas being the ranks"
    what += f", in steps of {ranks * each:,} samples" * (ranks * each != batch)
    are_said = all(name in step.of_phases("outputs") for name in layout.encoders)
    if layout.encoders and layout.mode != "before":
        what += " (with outputs of every encoder it says what moves, too)" * (not are_said)
    elif layout.mode == "before" and layout.num_gpus != ranks:
        what += f" (with outputs of every encoder also --ranks {layout.num_gpus}, its GPUs: all modules are planned)"
    words = (
        _begun("plan", logs, ranks, ranks * each) + _of_phases(step, "length", "outputs", "own") + _set("layout", out)
    )
    # As was searched here, or what replaces the models and the memory that this layout's file lacks
    words += _set("plan.time_budget", LAST_S) if layout.times is not None else _costs(layout, step)
    yield what, [*words, "--out", f"{os.path.splitext(out)[0]}-plan.parquet"]


def _costs(layout: StepLayout, step: StepFile) -> list[Any]:
    """Return the words that replace the models and the memory that this layout's file lacks."""
    models, words = step.of_phases("model"), []
    piped = layout.modules if layout.mode == "stages" else (layout.llm_name,)
    for name in step.of_phases("pieces"):
        if name not in piped:  # else all costs must be in one unit
            del models[name]  # of pieces, cost is linear
    for name, model in models.items():
        words += _set(f"phase.{name}.cost", f"flops:{model}")
    for name, still in step.of_phases("frozen").items():
        words += _set(f"phase.{name}.frozen", "true") if still and name in piped else []
    words += _set("cut.allow_empty", "true")  # in a log's last step
    return words + (_set("cut.over_long", "own") if layout.micro_batch_tokens is not None else [])


def _begun(name: str, logs: list[str], ranks: int, samples: int) -> list[Any]:
    """Return the words with which each command that takes the layout begins."""
    return ["balancer", name, *logs, "--ranks", ranks, "--batch-per-rank", samples // ranks]


def _of_phases(step: StepFile, *names: str) -> list[str]:
    """Return the words that say keys of every phase."""
    return [
        word for phase in step.phase for name in names if (value := getattr(phase, name)) is not None
        for word in _set(f"phase.{phase.name}.{name}", str(value).lower() if value is True else value)
    ]  # fmt: skip


def _set(key: str, value: object) -> list[str]:
    return ["--set", f"{key}={value}"]
