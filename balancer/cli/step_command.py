"""``balancer step``: a step file for a log, to be edited, or the schema by which editors check one."""

import json
from collections.abc import Iterator

import click

from balancer.cli.options import log_argument
from balancer.cli.parser import command
from balancer.io.columns import LengthUnknownError, listed
from balancer.io.log_files import LogPath
from balancer.io.logs import LengthLog, default_columns, open_log
from balancer.problem.step_keys import KEYS
from balancer.report.text import printable


@command("step", short_help="Write a step file for a log, to be edited.")
@log_argument
def step_command(log: LogPath) -> None:
    """Print a step file for LOG, with comments: what --step of the other commands takes.

    \b
    balancer step log.parquet > step.toml
    """  # noqa: D301 (click's mark, not an escape)
    for line in _lines(open_log(log)):
        click.echo(printable(line))


def _lines(log: LengthLog) -> Iterator[str]:
    sure = True
    try:
        length = "+".join(default_columns(log))
    except LengthUnknownError as error:
        length, sure = error.likely, False
    yield f"# A step of {log.path.name}: balancer plan {log.path} --step step.toml"
    yield f"# Its columns of integers: {listed(log.integer_columns)}; of lists: {listed(log.list_columns)}"
    yield from (_line("", "ranks", 8), _line("", "ranks_per_node", 8), _line("", "batch_per_rank", 16))
    yield _line("", "home", "contiguous")
    yield from ("", "# The phases of a multimodal model have a [[phase]] each, with a name, in order; others have one.")
    yield "[[phase]]"
    if length and not sure:
        yield "# Several columns may be the length: is it this one?"
    yield _line("phase", "length", length) if length else f"# length = ...  # {KEYS['phase']['length'].about}"
    yield _line("phase", "cost", "linear")
    # Keys that most steps do without are comments: to use one, its sign is taken away.
    yield f"# {_line('phase', 'max_tokens_per_rank', 90_000)}"
    yield f"# {_line('phase', 'keep_together', 'prompt_id')}"
    yield from ("", "[plan]", _line("plan", "placement", "relocate"), _line("plan", "eps", 0.001))
    yield from ("", "# [micro_batches]")
    yield f"# {_line('micro_batches', 'tokens', 16_384)}"
    yield f"# {_line('micro_batches', 'sync', 'micro_batch')}"
    yield from ("", "# [context_shards]", f"# {_line('context_shards', 'degree', 8)}")
    yield f"# {_line('context_shards', 'pack_tokens', 131_072)}"


def _line(table: str, key: str, value: str | int | float) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}  # {KEYS[table][key].about}"
