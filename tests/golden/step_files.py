"""The command lines of plans as step files: what ``--set`` and short options say, under the same keys."""

import json

from balancer.cli.commands import COMMANDS
from balancer.cli.options import SHORT
from balancer.cli.said import as_tables


def as_step(words):
    """Return the text of a step file for the options of ``balancer plan``, and the options that files do not have."""
    options = {word: option for option in COMMANDS["plan"].params for word in option.opts}
    typed, rest = [], []
    words = iter(words)
    for word in words:
        option = options.get(word)
        if word == "--set":
            key, _, value = next(words).partition("=")
            typed.append((key, value))
        elif option is not None and option.name in SHORT:
            typed.append((SHORT[option.name][0], next(words)))
        else:
            rest.append(word)
    return "\n".join(_lines(as_tables({}, typed))) + "\n", rest


def _lines(tables):
    yield from (f"{name} = {_toml(value)}" for name, value in tables.items() if not isinstance(value, dict | list))
    for phase in tables.get("phase", ()):
        yield from ("", "[[phase]]", *(f"{name} = {_toml(value)}" for name, value in phase.items()))
    for name, table in tables.items():
        if isinstance(table, dict):
            yield from ("", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items()))


def _toml(value):
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)} = {_toml(each)}' for name, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value) if isinstance(value, str | bool | int) else str(value)
