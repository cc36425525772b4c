"""``balancer step``: a step file for a log, to be edited; its keys; or the schema by which editors check one."""

import json
from collections.abc import Iterator

import click

from balancer.cli.run import say
from balancer.described import keys_of, schema_of
from balancer.io.columns import LengthUnknownError, listed
from balancer.io.log import LengthLog, default_columns, open_log
from balancer.io.log_files import LogPath
from balancer.step import StepFile


def print_keys() -> None:
    """Print every key of a step with its sentence, a key a line, so that a search finds it whole."""
    keys = keys_of(StepFile)
    kinds = tuple(dict.fromkeys(each.of_kind for each in keys if each.of_kind))
    of_kinds: dict[tuple[str, str], list[str]] = {}  # by a key and its sentence: the kinds of cut that have it
    for each in keys:
        is_kind = (each.table, each.name) == ("cut", "kind")
        about = f"One of {', '.join(kinds)}; other keys tell which." if is_kind else each.about
        of_kinds.setdefault((each.path, about), []).extend([each.of_kind] * (each.of_kind != "" and not is_kind))
    width = max(len(path) for path, _ in of_kinds)
    for (path, about), of in of_kinds.items():
        click.echo(f"{path:<{width}}  {about}" + f" ({', '.join(of)})" * bool(of))
    click.echo("NAME is the phase's name; the only phase of a step is called all.")


def print_schema() -> None:
    """Print the schema by which editors check a step file."""
    click.echo(json.dumps(schema_of(StepFile), indent=1))


def run(log: LogPath) -> None:
    """Print a step file for a log."""
    say(*_lines(open_log(log)))


def _lines(log: LengthLog) -> Iterator[str]:
    sure = True
    try:
        length = "+".join(default_columns(log))
    except LengthUnknownError as error:
        length, sure = error.likely, False
    if not sure:
        yield "# Say first which columns are the length, below."
    yield f"# A step of {log.path.name}: balancer plan {log.path} --step step.toml"
    yield f"# Its columns of integers: {listed(log.integer_columns)}; of lists: {listed(log.list_columns)}"
    yield from (_line("ranks", 8), _line("ranks_per_node", 8), _line("batch_per_rank", 16))
    yield _line("home", "contiguous")
    yield from ("", "# The phases of a multimodal model have a [[phase]] each, with a name, in order; others have one.")
    yield "[[phase]]"
    if length and not sure:
        yield "# Several columns may be the length: is it this one?"
    yield "# " * (not sure) + _line("phase.length", length or "...")  # a guess must not become a plan
    yield _line("phase.cost", "linear")
    # Keys that most steps do without are comments: to use one, its sign is taken away.
    yield f"# {_line('phase.max_tokens_per_rank', 90_000)}"
    yield f"# {_line('phase.keep_together', 'prompt_id')}"
    yield from ("", "[plan]", _line("plan.placement", "relocate"), _line("plan.eps", 0.001))
    yield from ("", "# How a rank's samples are cut, or shared: one of these.", "# [cut]")
    yield f"# {_line('cut.kind', 'micro_batches')}"
    yield f"# {_line('cut.tokens', 16_384)}"
    yield f"# {_line('cut.sync', 'micro_batch')}"
    yield from ("", "# [cut]", f"# {_line('cut.kind', 'context_shards')}", f"# {_line('cut.degree', 8)}")
    yield f"# {_line('cut.pack_tokens', 131_072)}"


def _line(path: str, value: str | int | float) -> str:
    table, _, name = path.rpartition(".")
    about = next(each.about for each in keys_of(StepFile) if (each.table, each.name) == (table, name))
    about = "How it is cut." if path == "cut.kind" else about
    return f"{name} = {json.dumps(value, ensure_ascii=False)}  # {about}"
