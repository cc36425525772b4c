"""A step described once, in a file ``step.toml``: ranks, batch, phases, cut, placement.

Numbers with a point stay the decimals that were written.
"""

import os
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from balancer.cost import parse_cost
from balancer.errors import InputError, did_you_mean
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.step_keys import KEYS, KINDS
from balancer.problem.step_tables import CUTS_OF_STEPS, StepTables, table_in_words


def read_step(path: str | os.PathLike[str]) -> StepTables:
    """Read a step file.

    Raises
    ------
    InputError
        A file that is not there or no TOML; it names table, key, value and rule.
    """
    where = os.fspath(path)
    try:
        with open(where, encoding="utf-8-sig") as file:  # some editors begin a file with a mark of its encoding
            found = tomllib.loads(file.read(), parse_float=Decimal)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: is no TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: lists stand within lists too often") from None
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror or error}") from None
    # A table that is not known falls to the top keys, where it is refused with the names of those that are.
    tables = {name: value for name, value in found.items() if name in KEYS}
    for name, value in tables.items():
        if name != "phase" and not isinstance(value, dict):
            raise InputError(f"{where}: [{name}] must be a table, got {_shown(value)}")
    if len(cuts := [name for name in CUTS_OF_STEPS if name in tables]) > 1:
        raise InputError(f"{where}: [{cuts[0]}] and [{cuts[1]}] are two cuts of one step; keep one of them")
    if "stages" in tables and cuts != ["micro_batches"]:
        raise InputError(f"{where}: [stages] needs [micro_batches], which run through them")
    top = {name: value for name, value in found.items() if name not in tables}
    phases = _phases(where, tables.pop("phase", []))
    checked = {name: _checked(where, name, "", keys) for name, keys in ({"": top} | tables).items()}
    if checked.get("stages") and "counts" not in checked["stages"]:
        raise InputError(f"{where}: [stages] counts is missing: {KEYS['stages']['counts'].about}")
    return StepTables(where, checked, phases)


def _phases(where: str, tables: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}: phases are tables of their own: write [[phase]], with two brackets, before each")
    found: list[Mapping[str, Any]] = []
    for number, table in enumerate(tables):
        name = table.get("name", SINGLE_PHASE if len(tables) == 1 else None)
        if name is None:
            raise InputError(
                f"{where}: [[phase]] {number + 1} of {len(tables)} has no name; only a single one needs none"
            )
        keys = _checked(where, "phase", str(name), {"name": name} | table)
        if any(name == other["name"] for other in found):
            raise InputError(f"{where}: [[phase]] {name!r} stands there twice; name each phase once")
        found.append(keys)
    return tuple(found)


def _checked(where: str, table: str, phase: str, keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of a table, if each is known and of its kind."""
    known = KEYS.get(table, {})
    for key, value in keys.items():
        place = f"{where}: {table_in_words(table, phase)}{key}"
        if key not in known:
            raise InputError(f"{place}: there is no such key{_meant(key, table)}; known here are {', '.join(known)}")
        check, kind, _ = KINDS[known[key].kind]
        if not check(value):
            raise InputError(f"{place} must be {kind}, got {_shown(value)}")
        if (choices := known[key].choices) and value not in choices:
            raise InputError(f"{place} must be one of {', '.join(choices)}, got {_shown(value)}")
        if key == "cost":
            _check_cost(place, value)
    return keys


def _check_cost(place: str, text: str) -> None:
    try:
        parse_cost(text)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None


def _meant(key: str, table: str) -> str:
    """Return the words that name the table in which a key is known, or the key that was probably meant."""
    homes = [table_in_words(name).strip() for name, keys in KEYS.items() if name and name != table and key in keys]
    return f", but in {homes[0]}" if homes else did_you_mean(key, tuple(KEYS.get(table, {})))


def _shown(value: object) -> str:
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
