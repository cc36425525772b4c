"""The options that several commands share, with their help texts."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import click

from balancer.cli.step_options import step_options
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.offline.engines import ENGINES
from balancer.problem.phases import SINGLE_PHASE

_SEVERAL: dict[str, Any] = {"multiple": True}


# In the path of the copy, so that messages about it are told from those about a user's own file `stdin`.
_STAGED = "seqbalancer-log-"


def without_staged(message: str) -> str:
    """Return what is said of standard input under that name, not under that of its copy."""
    return re.sub(rf"[^\s']*{_STAGED}[^\s/\\]*[/\\]stdin", "standard input", message)


def _log_of(context: click.Context, _: click.Parameter, paths: tuple[str, ...]) -> LogPath:
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


def add_options(command: Any, options: Iterable[Any]) -> Any:
    """Decorate a command with options, the first of them listed first."""
    # The last decorator is applied first, and click lists the option that was applied last first.
    for option in reversed(tuple(options)):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


rate_options: tuple[Any, ...] = (
    click.option(
        "--efficiency", type=float, default=0.5, show_default=True, metavar="E",
        help="Fraction of peak FLOP/s that computing reaches; MFU is proportional to it.",
    ),
    click.option(
        "--throughput", "curves", metavar="[NAME=]FILE.csv", **_SEVERAL,
        help="Measured FLOP/s of a GPU by tokens, instead of --efficiency; for layouts by tp too.",
    ),
    click.option(
        "--overlap", type=float, default=0.0, show_default=True, metavar="F",
        help="Assumed fraction of every exchange that overlaps with computing.",
    ),
)  # fmt: skip


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


def engine_options(command: Any) -> Any:
    """Add who does the work."""
    options = (
        click.option(
            "--engine", metavar="E",
            help=f"How the work runs: {' | '.join(ENGINES)} [default: processes for a long log, else serial].",
        ),
        click.option(
            "--jobs", type=click.IntRange(min=1), metavar="N", help="With processes, how many [default: one a core]."
        ),
        click.option(
            "--address", metavar="A", help="With ray, the cluster, such as auto [default: one is started here]."
        ),
    )  # fmt: skip
    return add_options(command, options)


planning_options = step_options("ranks", "ranks_per_node", "batch_per_rank", "length", "cost")
"""Add what says how a log is planned."""
