"""The options that several commands share, with their help texts: nothing here imports what commands run."""

import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import click

from balancer.errors import InputError

SHORT = {
    "ranks": ("ranks", "N", "Data-parallel ranks."),
    "ranks_per_node": ("ranks_per_node", "C", "Ranks on each node [default: all on one]."),
    "batch_per_rank": ("batch_per_rank", "B", "Samples that a rank draws for each step."),
    "length": ("phase.all.length", "COL[+COL...]", "Columns whose sum is the length [default: the only integer one]."),
    "cost": ("phase.all.cost", "SPEC", "linear | quadratic:a=24576,b=1 | padded | flops:qwen2-7b [default: linear]"),
    "model": ("phase.all.model", "MODEL", "The model: qwen2-7b, another known name, or a config.json[#module]."),
    "cluster": ("cluster", "C", "What it runs on: h100 or another known name, or a JSON file of a cluster's fields."),
    "gpus": ("gpus", "N", "GPUs of the cluster."),
}
"""Options with a name of their own, as everybody types them: each sets a key. Those of a phase are for steps of one."""

# In the path of the copy, so that messages about it are told from those about a user's own file `stdin`.
_STAGED = "seqbalancer-log-"


def option(words: str, about: str, to: str | None = None, **more: Any) -> Callable[[Any], Any]:
    """Make an option of its name and what its value is called, as help shows both, and of its help."""
    name, _, metavar = words.partition(" ")
    return click.option(*([name] if to is None else [name, to]), metavar=metavar or None, help=about, **more)


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what adds several options to a command, the first of them listed first."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


def step_options(*names: str) -> Callable[[Any], Any]:
    """Return what adds ``--step``, these of the :data:`SHORT` options, and ``--set``."""
    return together(
        option("--step FILE.toml", "A step file; what is typed wins.", to="step_file"),
        *(option(f"--{name.replace('_', '-')} {SHORT[name][1]}", SHORT[name][2]) for name in names),
        option(
            "--set KEY=VALUE",
            "Any key of a step, as often as wanted: cut.tokens=16384, phase.llm.cost=padded. All: step --keys.",
            to="keys", multiple=True,
        ),
    )  # fmt: skip


planning_options = step_options("ranks", "ranks_per_node", "batch_per_rank", "length", "cost")
"""Say how a log is planned."""


def without_staged(message: str) -> str:
    """Return what is said of standard input under that name, not under that of its copy."""
    return re.sub(rf"[^\s']*{_STAGED}[^\s/\\]*[/\\]stdin", "standard input", message)


def _log_of(context: click.Context, _: click.Parameter, paths: tuple[str, ...]) -> str | tuple[str, ...]:
    """Return the path of a log, or several, as a shell makes them of a pattern; - stands for standard input."""
    found = tuple(_standard_input(context) if path == "-" else path for path in paths)
    # A single path stays a text: by this, commands tell one log from several.
    return found[0] if len(found) == 1 else found


def _standard_input(context: click.Context) -> str:
    """Copy standard input to a file, which is there as long as the command runs: a log is read more than once."""
    stream = None if sys.stdin is None else getattr(sys.stdin, "buffer", None)
    # At a terminal the command would wait for words without saying so.
    if stream is None or stream.isatty():
        raise InputError("-: there is no standard input to read a log from: pipe one into the command")
    folder = context.with_resource(tempfile.TemporaryDirectory(prefix=_STAGED))
    path = os.path.join(folder, "stdin")
    with open(path, "wb") as file:
        shutil.copyfileobj(stream, file)
    return path


log_argument = click.argument("log", nargs=-1, required=True, type=click.Path(), metavar="LOG...", callback=_log_of)
"""The log: one path, several, or - for standard input."""

json_option = option("--json", "One JSON document on standard output.", to="as_json", is_flag=True)

html_option = option("--html FILE.html", "Write a page with charts; needs the extra 'plot'.", to="page")

out_options = together(
    option("--out FILE|DIR/", "Write the result: one Parquet file, or parts in a folder."),
    option("--overwrite", "Replace what is there, even if it is of another request.", is_flag=True),
)
"""Say where rows are written."""

rate_options = together(
    option(
        "--efficiency E", "Fraction of peak FLOP/s that computing reaches; MFU is proportional to it.",
        type=float, default=0.5,
    ),
    option(
        "--throughput [NAME=]FILE.csv",
        "Measured FLOP/s of a GPU by tokens, instead of --efficiency; for layouts by tp too.",
        to="curves", multiple=True,
    ),
    option("--overlap F", "Assumed fraction of every exchange that overlaps with computing.", type=float, default=0.0),
)  # fmt: skip
"""Say how fast GPUs compute and exchange."""

engine_options = together(
    option(
        "--engine", "Who works; the cluster of ray is that of RAY_ADDRESS [default: processes for a long log].",
        type=click.Choice(("processes", "ray")),
    ),
    option("--jobs N", "How many processes [default: one a core].", type=click.IntRange(1)),
)  # fmt: skip
"""Say who does the work."""
