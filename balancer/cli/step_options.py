"""``--step FILE.toml``: what a step file says, as the options of a command have it; options given beside it win."""

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.core import ParameterSource

from balancer.cli.wording import GIVEN_IN
from balancer.errors import InputError
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.step_file import KEYS, StepFile, read_step
from solvers.errors import Wording, braced

__all__ = ["BARE", "STEP", "merge_step", "options_of", "step_option"]

BARE = ""
"""What a flag that may name a phase holds without a name."""

STEP = "balancer.step"
"""Where a command's context keeps its step file."""

_ARGUMENTS = {
    "ranks": ("num_ranks",),
    "micro_batches": ("num_micro_batches", "num_slots"),
    "micro_batches_multiple_of": ("micro_batches_multiple_of", "slots_multiple_of"),
    "group_degrees": ("sequence_groups", "degrees"),
    "group_exchange": ("exchange",),
    "stages": ("stages", "layout"),
}
"""What the library calls the values of options that have another name there."""


def step_option(command: Any = None, *, only: Iterable[str] | None = None) -> Any:
    """Add ``--step``; `only` are the parameters that the command takes of a file."""
    wanted = None if only is None else frozenset(only)

    def use(context: click.Context, _: click.Parameter, path: str | None) -> None:
        if path is None:
            return
        if path.isdigit():
            raise InputError(f"--step {path}: names a step file; the step that a page draws is --page-step {path}")
        step = context.meta[STEP] = read_step(path)
        said = options_of(step)
        context.default_map = said if wanted is None else {name: said[name] for name in said if name in wanted}

    option: Callable[[Any], Any] = click.option(
        "--step", "step_file", metavar="FILE.toml", is_eager=True, expose_value=False, callback=use,
        help="What a step is: ranks, batch, phases, cut, placement; options given beside it win. See balancer step.",
    )  # fmt: skip
    return option if command is None else option(command)


def options_of(step: StepFile) -> dict[str, Any]:
    """Return the values of a step file by the parameters of the command line, in the form in which they are typed."""
    found: dict[str, Any] = {}
    for table, phase, key, value in step.values():
        option = KEYS[table][key].option
        if phase and not (step.is_single and key == "length"):
            if (text := _of_phase(step, phase, key, value)) is not None:
                found[option] = (*found.get(option, ()), *text)
        elif option:
            found[option] = _typed(key, value)
    if {"ranks", "batch_per_rank"} <= set(step.top):
        found["batch"] = step.top["ranks"] * step.top["batch_per_rank"]
    if step.is_single and "phases" in found:
        found["length"] = found.pop("phases")
    if "layouts" in found:
        found["layouts"] = (found["layouts"],)
    return found


def _typed(key: str, value: Any) -> Any:
    """Return a value of the whole step as it is typed: exact decimals as text."""
    if isinstance(value, dict):
        return ",".join(f"{name}={count}" for name, count in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, bool | int) and key != "count" else str(value)


def _of_phase(step: StepFile, phase: str, key: str, value: Any) -> tuple[str, ...] | None:
    """Return what is typed for a phase; None for a key that another one brings along, or a flag that is not set."""
    if isinstance(value, bool):
        bare = BARE if step.is_single and key == "equal_counts" else phase
        return (bare,) if value else None
    named = "" if step.is_single else f"{phase}="
    if isinstance(value, dict):
        return tuple(f"{named}{column}={most}" for column, most in value.items())
    if key == "share_multiple_of":
        return None
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if key == "sequence_parallel":
        of_phase = next(keys for keys in step.phases if keys["name"] == phase)
        text += f",{of_phase.get('share_multiple_of', 1)}"
    return (f"{named}{text}",)


def merge_step(context: click.Context) -> None:
    """Put the file's values of other phases beside those that were typed, and let errors say where a value stands."""
    step: StepFile | None = context.meta.get(STEP)
    if step is None:
        return
    said = options_of(step)
    typed = {
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }  # fmt: skip
    if not step.is_single:
        for name in typed & {name for name, values in said.items() if isinstance(values, tuple)}:
            context.params[name] = _beside(name, context.params[name], said[name], step.names)
    context.meta[GIVEN_IN] = _wording(step, typed)


def _beside(option: str, typed: tuple[str, ...], said: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return what was typed with what the file says of phases of which nothing was typed."""

    def of(text: str) -> str | None:
        name = text.partition("=")[0].strip()
        return name if name in names or option == "phases" else None

    if option == "costs" and any(of(text) is None for text in typed):
        return typed  # a cost of all phases
    mine = {of(text) or names[-1] for text in typed}
    if option != "phases":
        return tuple(text for text in said if of(text) not in mine) + typed
    both = {of(text): text for text in said} | {of(text): text for text in typed}
    return tuple(both.values())


def _wording(step: StepFile, typed: set[str]) -> Wording:
    """Return where the file says what options would."""
    places: dict[str, str | None] = {}
    for table, phase, key, _ in step.values():
        option = KEYS[table][key].option
        if option and option not in typed:
            place = step.place(table, "" if phase == SINGLE_PHASE else phase, key)
            for argument in _ARGUMENTS.get(option, (option,)):
                places.setdefault(argument, braced(place))
    return Wording(places)
