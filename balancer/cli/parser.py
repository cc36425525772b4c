"""How command-line words become options: a class of commands instead of click's own."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import click

from balancer.cli.run import COMPILED, Compiled
from balancer.cli.step_options import BARE
from balancer.cli.wording import GIVEN_IN
from balancer.errors import InputError
from balancer.io.columns import LengthUnknownError
from balancer.problem.step_file import read_step
from solvers.errors import WordedError, Wording

WORDS = "balancer.words"
"""Where a command's context keeps the words that it was given."""


class NamedFlag(click.Option):
    """A flag that may name a phase: ``--flag``, ``--flag NAME`` or ``--flag=NAME``; may be given several times.

    The next word is the name only if it is that of a phase, of ``--phase`` or of a step file: else
    ``--flag log.parquet`` would take the log for one.
    """

    def __init__(self, *declarations: Any, **attributes: Any) -> None:
        super().__init__(*declarations, **{"multiple": True, "metavar": "[NAME]", **attributes})


def _with_command(ctx: click.Context, error: LengthUnknownError) -> Exception:
    """Return the error with the command to paste, where something in the log looks like a length."""
    if not error.likely or "length" not in ctx.params:
        return error
    words = [*ctx.command_path.split(), *ctx.meta[WORDS], "--length", error.likely]
    return InputError(f"{error.what}\nsay which, such as: {shlex.join(words)}")


class Command(click.Command):
    """A command whose options with one value are given once: click would take the last and say nothing."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        for word in args:
            # The system would refuse it later, in an error that does not name the word.
            if "\0" in word:
                raise InputError(f"{word!r:.200} holds a null byte, which no name can have")
        # Before anything is added to them: errors and advice repeat what was typed.
        ctx.meta[WORDS] = list(args)
        flags = {word for option in self.params if isinstance(option, NamedFlag) for word in option.opts}
        args = _with_names(args, flags) if flags else args
        # The third value has an entry for each time that an option was given.
        given = Counter(self.make_parser(ctx).parse_args(list(args))[2])
        for option, times in given.items():
            if isinstance(option, click.Option) and times > 1 and not (option.multiple or option.is_flag):
                name = option.opts[-1]
                raise click.UsageError(f"{name} {option.make_metavar(ctx)} is given {times} times; give it once", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, count what it compiles, and let errors name a file that stands for options."""
        with Compiled.watched() as compiled:
            ctx.meta[COMPILED] = compiled
            try:
                return super().invoke(ctx)
            except LengthUnknownError as error:
                raise _with_command(ctx, error) from None
            except WordedError as error:
                # This makes a new error: the cause of the old one must be carried over by hand.
                raise error.in_words(ctx.meta.get(GIVEN_IN, Wording())) from error.__cause__

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options, under headings where they are many."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        if not any(option.opts[0] == "--ranks" for option in options):
            return super().format_options(ctx, formatter)
        parts: dict[str, list[tuple[str, str]]] = {}
        heading = "Options"
        for option in options:
            heading = _HEADINGS.get(option.opts[0], heading)
            if (record := option.get_help_record(ctx)) is not None:
                parts.setdefault(heading, []).append(record)
        for heading, records in parts.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        return None


_HEADINGS = {
    "--ranks": "Global batches, and where their samples go",
    "--step-tokens": "Which samples form a step",
    "--length": "One phase",
    "--phase": "Several phases",
    "--cluster": "What runs, and on what",
    "--equal-counts": "What every rank keeps to",
    "--micro-batch-tokens": "Micro-batches",
    "--method": "Solver",
    "--epochs": "Epochs",
    "--strategies": "What is compared",
    "--out": "Output",
    "--json": "Output",
}
"""The option with which each part of a command's options begins."""


def command(name: str, **attributes: Any) -> Callable[[Any], click.Command]:
    """Make a command of a function, as ``click.command`` does."""
    return click.command(name, cls=Command, **attributes)


def _with_names(args: list[str], flags: Iterable[str]) -> list[str]:
    """Give each of these flags that no phase's name follows an empty value."""
    phases = {text.partition("=")[0].strip() for text in _given("--phase", args)}
    # A number is no file: `step_option` says so, with the remedy.
    phases.update(name for path in _given("--step", args) if not path.isdigit() for name in read_step(path).names)
    named: list[str] = []
    for i, word in enumerate(args):
        # Behind it all words are arguments, even those that begin with dashes.
        if word == "--":
            return named + args[i:]
        bare = word in flags and not (i + 1 < len(args) and args[i + 1].strip() in phases)
        # Joined by "=", or click would take the next word, often the log, for the value.
        named.append(f"{word}={BARE}" if bare else word)
    return named


def _given(option: str, args: Sequence[str]) -> list[str]:
    """Return the values of an option."""
    apart = [after for word, after in pairwise(args) if word == option]
    return apart + [word.partition("=")[2] for word in args if word.startswith(f"{option}=")]
