"""``--step FILE.toml``: a step file beside the options of a command, which win."""

from collections.abc import Callable, Iterable
from typing import Any

import click

from balancer.errors import InputError
from balancer.problem.step_file import read_step
from balancer.problem.step_keys import KEYS

BARE = ""
"""What a flag that may name a phase holds without a name."""

STEP = "balancer.step"
"""Where a command's context keeps its step file."""


def step_option(command: Any = None, *, only: Iterable[str] | None = None) -> Any:
    """Add ``--step``; `only` are the options that the command takes of the top of a file."""
    wanted = None if only is None else frozenset(only)

    def use(context: click.Context, _: click.Parameter, path: str | None) -> None:
        if path is None:
            return
        if path.isdigit():
            raise InputError(f"--step {path}: names a step file; the step that a page draws is --page-step {path}")
        step = context.meta[STEP] = read_step(path)
        # What a command asks for by itself, and its required options; of all else tables are made where it is planned
        said = {KEYS[""][key].option: value for key, value in step.top.items()}
        if {"ranks", "batch_per_rank"} <= set(said):
            said["batch"] = said["ranks"] * said["batch_per_rank"]
        # The option may be given several times, so click expects a tuple as its default.
        if "layouts" in said:
            said["layouts"] = (said["layouts"],)
        context.default_map = {name: said[name] for name in said if wanted is None or name in wanted}

    # Eager: it sets defaults of the other options, so it must be read before them.
    option: Callable[[Any], Any] = click.option(
        "--step", "step_file", metavar="FILE.toml", is_eager=True, expose_value=False, callback=use,
        help="What a step is: ranks, batch, phases, cut, placement; options given beside it win. See balancer step.",
    )  # fmt: skip
    return option if command is None else option(command)
