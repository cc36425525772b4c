"""How command-line words become options: a class of commands instead of click's own."""

import shlex
from collections import Counter
from typing import Any

import click

from balancer.cli.options import SHORT
from balancer.errors import InputError
from solvers.errors import WordedError, Wording

WORDS = "balancer.words"
"""Where a command's context keeps the words that it was given."""


class Command(click.Command):
    """A command whose options with one value are given once: click would take the last and say nothing.

    Its errors call what an option sets as that option.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        for word in args:
            # The system would refuse it later, in an error that does not name the word.
            if "\0" in word:
                raise InputError(f"{word!r:.200} holds a null byte, which no name can have")
        # Before anything is added to them: errors and advice repeat what was typed.
        ctx.meta[WORDS] = list(args)
        # The third value has an entry for each time that an option was given.
        given = Counter(self.make_parser(ctx).parse_args(list(args))[2])
        for option, times in given.items():
            if isinstance(option, click.Option) and times > 1 and not (option.multiple or option.is_flag):
                name = option.opts[-1]
                raise click.UsageError(f"{name} {option.make_metavar(ctx)} is given {times} times; give it once", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and count what it compiles."""
        # Imported late: help, and words that are wrong, need none of it.
        from balancer.cli.run import COMPILED, Compiled
        from balancer.io.columns import LengthUnknownError

        with Compiled.watched() as compiled:
            ctx.meta[COMPILED] = compiled
            try:
                return super().invoke(ctx)
            except LengthUnknownError as error:
                if not error.likely or "length" not in ctx.params:
                    raise
                # The command to paste, as something in the log looks like a length.
                words = [*ctx.command_path.split(), *ctx.meta[WORDS], "--length", error.likely]
                raise InputError(f"{error.what}\nsay which, such as: {shlex.join(words)}") from None
            except WordedError as error:
                names = {name: word for name, word in self._names().items() if name not in error.fields}
                raise error.in_words(Wording(names)) from error.__cause__

    def _names(self) -> dict[str, str]:
        """Return how errors call what options set; short ones set keys, and are called as these."""
        own = [each for each in self.params if isinstance(each, click.Option)]
        if any(each.name == "keys" for each in own):
            own = [each for each in own if each.name not in SHORT]
        names = {each.name or "": each.opts[0] for each in own}
        for each in own:
            if isinstance(each.type, click.Choice):
                names |= {f"{each.name}='{value}'": f"{each.opts[0]} {value}" for value in each.type.choices}
        return names
