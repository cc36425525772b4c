"""What is said of a step on a command line: ``--step FILE.toml``, a few short options, and ``--set`` for every key."""

import tomllib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from balancer.cli.options import SHORT
from balancer.errors import InputError
from balancer.step import StepFile, kind_of_cut, read_toml, step_of


def said_step(options: dict[str, Any]) -> StepFile:
    """Take what is said of a step out of a command's options; options win."""
    path, keys = options.pop("step_file"), options.pop("keys")
    said: dict[str, Any] = {}
    if path is not None:
        said = read_toml(path)
        step_of(said, path)  # what is wrong in the file is told with its name
    short = [(key, value) for name, (key, _, _) in SHORT.items() if (value := options.pop(name, None)) is not None]
    return step_of(as_tables(said, (*map(_parted, keys), *short))).of_file(path or "")


def as_tables(said: dict[str, Any], typed: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the tables of a file with keys set as they were typed."""
    named = tuple(each.get("name", "all") for each in said.get("phase", ()))  # phases that the file knows
    # The kind of a cut is set first: it may leave out what the file says of another.
    for key, text in sorted(_each_once(typed), key=lambda each: each[0] != "cut.kind"):
        _put(said, key, text, named)
    return {name: value for name, value in said.items() if value != {}}


def _parted(text: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not all(key.split(".")):
        raise InputError(f"--set {text}: write KEY=VALUE; balancer step --keys lists the keys")
    return key, value


def _each_once(typed: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    seen = set()
    for key, value in typed:
        if key in seen:
            raise InputError(f"{key} is set twice; set each key once")
        seen.add(key)
        yield key, value


def _put(said: dict[str, Any], key: str, text: str, named: tuple[str, ...]) -> None:
    """Set one key; an empty text leaves it out, as if the file did not say it."""
    table, _, name = key.rpartition(".")
    if table.startswith("phase."):
        keys = _phase(said, key, table.removeprefix("phase."), named)
    elif table:
        keys = said.setdefault(table, {})
        if not isinstance(keys, dict):
            raise InputError(f"--set {key}: {table} was set to {keys!r:.60}, which is no table")
        if key == "cut.kind" and keys.get("kind", kind_of_cut(keys)) != text:
            keys.clear()  # the keys of another cut mean nothing here
    else:
        keys = said
    if text:
        keys[name] = _value(key, text)
    else:
        keys.pop(name, None)


def _phase(said: dict[str, Any], key: str, name: str, named: tuple[str, ...]) -> dict[str, Any]:
    """Return the table of a phase, which is made where no file names the phases."""
    phases = said.setdefault("phase", [])
    if not isinstance(phases, list) or not all(isinstance(each, dict) for each in phases):
        raise InputError(f"--set {key}: phase was set to {phases!r:.60}, which are no phases")
    names = [each.setdefault("name", "all") for each in phases]
    if name not in names and names and "all" in (name, *names):
        option = next((f"--{short}" for short, (path, _, _) in SHORT.items() if path == key), f"--set {key}")
        rest = key.rpartition(".")[2]
        if names == ["all"]:
            raise InputError(f"{option}: the step has one phase, without a name: write --set phase.all.{rest}=...")
        which = " or ".join(f"--set phase.{each}.{rest}=..." for each in names if each != "all")
        raise InputError(f"{option} is for a step of one phase; say of which: {which}")
    if name not in names and named:
        raise InputError(f"--set {key}: there is no phase {name!r}; phases are {', '.join(named)}")
    if name not in names:
        phases.append({"name": name})
        names.append(name)
    found: dict[str, Any] = phases[names.index(name)]
    return found


def _value(key: str, text: str) -> Any:
    """Read a value as TOML has it; what is none is text, so that it need not be quoted twice."""
    try:
        found = tomllib.loads(f"x = {text}", parse_float=Decimal)
    except RecursionError:
        raise InputError(f"--set {key}: lists stand within lists too often") from None
    except ValueError as error:  # of TOML, or of a number of thousands of digits
        if text[0] in "{[":
            raise InputError(f"--set {key}: {text!r:.80} is no TOML: {error}") from None
        return text
    value = found["x"]
    # A date is the name of a column here, and a line's end begins no second key.
    known = isinstance(value, str | int | Decimal | list | dict) and len(found) == 1
    return value if known else text
