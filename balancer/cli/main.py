"""The command line, ``balancer advise | plan | report | simulate | configure | ...``: reads words and prints."""

import contextlib
import io
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import click

from balancer._version import __version__
from balancer.cli.commands import COMMANDS
from balancer.cli.options import without_staged
from balancer.errors import FitError, PlanError
from balancer.report.text import printable
from solvers.errors import SolverError, WordedError, Wording

DONE, FAILED, BAD_INPUT, NOT_READ = 0, 1, 2, 141  # the last as a shell has it: 128 + SIGPIPE


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; exits with 0 (done), 1 (failed check, infeasible), 2 (bad input) or as signals do."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show ends no run
    try:
        with _terminated():
            code = cli.main(arguments, prog_name="balancer", standalone_mode=False)
    except SystemExit as end:  # click and rich end with 1 where nobody reads our output on
        sys.exit(NOT_READ if end.code == FAILED else end.code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"\ntry: {context.command_path} --help" if context is not None else ""
        _fail(BAD_INPUT, f"{error.format_message()}{hint}")
    # Narrow kinds before wide ones: a solver's error is worded, too, but it ends with another code.
    except (FitError, PlanError) as error:
        _fail(FAILED, str(error))
    except SolverError as error:
        _fail(FAILED, str(error.in_words(_WORDS)))
    except WordedError as error:
        _fail(BAD_INPUT, str(error.in_words(_WORDS)))
    except OSError as error:
        _fail(BAD_INPUT, str(error) if error.filename else f"cannot read or write: {error.strerror or error}")
    except MemoryError:
        # An array that no memory holds comes, as a rule, from a mistyped number.
        _fail(BAD_INPUT, "out of memory; are the numbers what they should be?")
    except (ValueError, TypeError) as error:
        _fail(BAD_INPUT, str(error))
    except (KeyboardInterrupt, click.Abort) as error:
        # click turns an interrupt into its Abort; the cause below it is ours, and says what a command added.
        if isinstance(cause := error.__cause__ or error, _TerminatedError):
            cause.end()
        _fail(130, "; ".join(("interrupted", *(error.__cause__ or error).args)))
    # Outside of click's standalone mode --help returns its exit code, and a command what its function returned.
    sys.exit(code if isinstance(code, int) else DONE)


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, as what unwinds: unfinished files are removed, workers end, and then the signal ends the process."""

    def end(self) -> NoReturn:
        """End this process as the signal would have, so that who sent it sees that."""
        signal.raise_signal(signal.SIGTERM)  # which has its usual meaning again
        sys.exit(128 + signal.SIGTERM)


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM unwind the command, once; a second one ends it at once."""

    def unwind(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        raise _TerminatedError

    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a caller's own handler stays
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _fail(code: int, message: str) -> NoReturn:
    # None where the process was started with standard error closed.
    if sys.stderr is not None:
        print(f"balancer: {printable(without_staged(message))}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


_WORDS = Wording(
    {
        "num_ranks": "ranks",
        "num_groups": "ranks",
        "num_gpus": "gpus",
        "layouts": "layout",
        "layout": "cut.stages",
        "Topology(node_sizes=[...])": None,
    }
)
"""What keys are called that have another name in the library; a remedy that none of them sets is left out."""


@click.group(
    commands=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, prog_name="balancer", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Balance sequence lengths over data-parallel ranks, with a proof of how far from perfect the plan is."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
