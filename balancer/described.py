"""What may be said of a step, declared once: a key is a field of a frozen dataclass, with a kind and a sentence.

Python's keywords, step files, ``--set``, plan files, their errors, the JSON schema, help and reference tables come from
the fields. A described class checks its values by their kinds as it is made; :func:`partly` makes the table of a file
in which each key may be left out, and is None then. No other file imports pydantic, and this one does where a table is
read: planning needs none.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from decimal import Decimal
from itertools import combinations
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from balancer.errors import InputError, did_you_mean, on_a_line
from solvers.arguments import INT64_MAX, as_share
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError, braced

Said = TypeVar("Said")

MOST_COUNT = 2**31 - 1
"""The most of anything that is counted: ranks, samples and micro-batches are int32 in plans."""

_OF_TABLES = {"extra": "forbid"}
"""How pydantic reads a table: a key that is not declared is an error."""

_SHOWN = 60  # characters of a value in an error


def key(about: str, **of_field: Any) -> Any:
    """Declare a key by its sentence; default, and all else, as :func:`dataclasses.field` takes it."""
    return field(metadata={"description": about}, **of_field)


@dataclass_transform(frozen_default=True, field_specifiers=(key, field))
def described(of_keys: type[Said]) -> type[Said]:
    """Make a class a frozen description of keys; one with a ``__post_init__`` calls :func:`settle` there."""
    if not hasattr(of_keys, "__post_init__"):
        of_keys.__post_init__ = settle  # type: ignore[attr-defined]
    of_keys.__pydantic_config__ = _OF_TABLES  # type: ignore[attr-defined]
    return dataclass(frozen=True)(of_keys)


def settle(said: Any, table: str = "") -> None:
    """Check each value by its kind, and keep it as the kind keeps it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Naming the key, in its table, with the value and the rule.
    """
    of_class: Any = type(said)
    for name, (kind, may_be_none) in _kinds_of(of_class).items():
        value = getattr(said, name)
        if value is not None or not may_be_none:
            object.__setattr__(said, name, kind.argument(f"{table}.{name}".removeprefix("."), value))


@functools.cache
def _kinds_of(description: Any) -> dict[str, "tuple[Kind, bool]"]:
    """Return the kind of each key that has one, and whether None stands for what nobody said."""
    found = {}
    for name, hint in get_type_hints(description, include_extras=True).items():
        of_hint = [hint] if get_origin(hint) is Annotated else get_args(hint)
        kinds = [kind for each in of_hint for kind in getattr(each, "__metadata__", ()) if isinstance(kind, Kind)]
        if kinds:
            found[name] = kinds[0], type(None) in get_args(hint)
    return found


@functools.cache
def partly(description: Any, kind: str = "", about: str = "", *, keeps: str = "") -> Any:
    """Return the description of a table of which each key may be left out, and is None then.

    The key `keeps` has the default that it has; a `kind` tells the table from others.
    """
    hints: dict[str, Any] = get_type_hints(description, include_extras=True)
    keys = [(each.name, hints[each.name] | None,
             key(each.metadata["description"], default=each.default if each.name == keeps else None))
            for each in fields(description) if each.metadata]  # fmt: skip
    if kind:
        keys.append(("kind", Literal[kind], key(about, default=kind)))
    more = {
        "__pydantic_config__": _OF_TABLES,
        "__post_init__": settle,
        "__doc__": (description.__doc__ or "").partition("\n")[0],
    }
    return make_dataclass(description.__name__, keys, frozen=True, namespace=more)


def defaults_of(description: Any) -> dict[str, Any]:
    """Return the keys of a description, each with what it is where nobody says it."""
    return {each.name: each.default for each in fields(description)}


def said_of(table: Any) -> dict[str, Any]:
    """Return the keys of a table of a file that were said, each with its value as it is kept."""
    values = {each.name: getattr(table, each.name) for each in fields(table)}
    return {name: value for name, value in values.items() if value is not None}


def changed(said: Said, **values: Any) -> Said:
    """Return what is said with some values in place of its own."""
    return replace(said, **values)  # type: ignore[type-var] # a dataclass


# Kinds of values -------------------------------------------------------------------------------------------------


class RuleError(ValueError):
    """A value that breaks a rule of its own; the text says it, after "must"."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of values: its rule in words, its JSON schema, and what returns a value as it is kept, or raises.

    Without a rule, what `take` raises says what is wrong.
    """

    rule: str
    schema: Mapping[str, Any]
    take: Callable[[Any], Any]

    def __repr__(self) -> str:
        """Return what help() shows of a field's type: the rule."""
        return self.rule or "its own rule"

    def argument(self, name: str, value: Any) -> Any:
        """Return the value of an argument as it is kept; an error names the argument, the value and the rule."""
        try:
            return self.take(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            if not self.rule:
                raise (error if isinstance(error, TypeError) else UsageError(braced(str(error)))) from None
            wrong = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
            raise wrong(name, braced(self._broken(error)), _shown(value)) from None

    def check(self, value: Any) -> Any:
        """Return a value of a table as it is kept; ValueError says the rule and the value."""
        try:
            return self.take(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            told = f"must {self._broken(error)}, got {_shown(value)}" if self.rule else f": {error}"
            raise ValueError(told) from None

    def _broken(self, error: Exception) -> str:
        """Return the rule that a value breaks."""
        return str(error) if isinstance(error, RuleError) else f"be {self.rule}"

    def or_word(self, *known: str) -> "Kind":
        """Return the kind of values that are of this kind, or one of some words."""
        schema = {"anyOf": [self.schema, {"enum": list(known)}]}
        return Kind(
            f"{self.rule}, or {' or '.join(map(repr, known))}", schema,
            lambda value: value if isinstance(value, str) and value in known else self.take(value),
        )  # fmt: skip

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> Any:
        """Let pydantic check values by this alone."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> Any:
        """Let pydantic describe values by this alone."""
        return dict(self.schema)


def whole(least: int, most: int = INT64_MAX) -> Kind:
    """Return the kind of whole numbers from `least` to `most`."""

    def take(value: Any) -> int:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)  # NumPy's integers too
        if number > most:
            raise RuleError(f"be <= {most}")
        if number < least:
            raise ValueError
        return number

    return Kind(f"a whole number >= {least}", {"type": "integer", "minimum": least}, take)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value.strip():
        raise ValueError
    return str(value)  # NumPy's texts too


def _flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):  # the text "no" would count as true
        raise TypeError
    return bool(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError
    if not Decimal(str(value)).is_finite():
        raise ValueError
    return float(value)


def _share_below_one(value: Any) -> str:
    """Return a share as exact text: no float is 0.1 %."""
    share = as_share("share", value)
    if share >= 1:
        raise ValueError
    return str(share)


def list_of(kind: Kind) -> Kind:
    """Return the kind of lists, not empty, of values of a kind."""

    def take(values: Any) -> tuple[Any, ...]:
        # A set has no order, and bytes are no list of numbers to anybody.
        if isinstance(values, str | bytes | bytearray | Mapping | Set) or not isinstance(values, Iterable):
            raise TypeError
        found = tuple(map(kind.take, values))
        if not found:
            raise ValueError
        return found

    return Kind(kind.rule.replace("a ", "a list of ", 1).replace("number", "numbers"),
                {"type": "array", "items": kind.schema, "minItems": 1}, take)  # fmt: skip


def _counts_by_name(values: Any) -> dict[str, int]:
    if not isinstance(values, Mapping):
        raise TypeError
    return {_text(name): A_SIZE.take(value) for name, value in values.items()}


def one_of(*known: str) -> Kind:
    """Return the kind of values that are one of some words."""

    def take(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError
        return known[known.index(value)]

    return Kind(f"one of {', '.join(known)}", {"enum": list(known)}, take)


A_COUNT, A_SIZE = whole(1, MOST_COUNT), whole(1)
A_SHARE = Kind(
    'a share of 0 or more and under 1, such as 0.001 or "0.1%"', {"type": ["number", "string"]}, _share_below_one
)

Count = Annotated[int, A_COUNT]  # of ranks, samples, micro-batches
Amount = Annotated[int, whole(0, MOST_COUNT)]
Size = Annotated[int, A_SIZE]  # tokens, bytes, whatever is added up
Text = Annotated[str, Kind("text", {"type": "string", "minLength": 1}, _text)]
Flag = Annotated[bool, Kind("true or false", {"type": "boolean"}, _flag)]
Number = Annotated[float, Kind("a number", {"type": "number"}, _number)]
Share = Annotated[str, A_SHARE]
Counts = Annotated[tuple[int, ...], list_of(A_COUNT)]
Sizes = Annotated[tuple[int, ...], list_of(A_SIZE)]
Amounts = Annotated[tuple[int, ...], list_of(whole(0))]
SizesByName = Annotated[
    Mapping[str, int],
    Kind("a table of whole numbers >= 1", {"type": "object", "additionalProperties": A_SIZE.schema}, _counts_by_name),
]


def by_kind(assumed: Callable[[Mapping[str, Any]], str | None]) -> tuple[Any, Any]:
    """Return what lets the key `kind` say which of several tables a table is; `assumed` says it where it does not."""

    def with_kind(said: Any) -> Any:
        if not isinstance(said, Mapping) or "kind" in said or (found := assumed(said)) is None:
            return said
        return {"kind": found, **said}

    from pydantic import BeforeValidator, Field

    return Field(discriminator="kind"), BeforeValidator(with_kind)


# Reading ---------------------------------------------------------------------------------------------------------


@functools.cache
def _adapter(description: Any) -> Any:
    """Return what checks values by a description."""
    from pydantic import TypeAdapter

    return TypeAdapter(description)


def read(description: Any, said: Mapping[str, Any], where: str = "") -> Any:
    """Return a description of what is said; InputError names place, value and rule of the first thing that is wrong."""
    from pydantic import ValidationError

    try:
        return _adapter(description).validate_python(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(where + _in_words(first, description, said)) from None


def as_dict(said: Any, *, all_keys: bool = False) -> Any:
    """Return what was said, as tables, lists and values that TOML and JSON have.

    Keys that are as by default are left out, unless `all_keys` are asked for; fields that are no keys always are. Where
    a description has keys alone, ``type(said)(**as_dict(said))`` is `said` again.
    """
    if isinstance(said, tuple):
        return [as_dict(each, all_keys=all_keys) for each in said]
    if isinstance(said, Mapping):
        return {name: as_dict(value, all_keys=all_keys) for name, value in said.items()}
    if not is_dataclass(said) or not hasattr(said, "__pydantic_config__"):
        return said if isinstance(said, int | float | str | None) else str(said)
    values = {each.name: (getattr(said, each.name), _default(each)) for each in fields(said) if each.metadata}
    if isinstance(kind := getattr(type(said), "kind", None), str):  # which of several tables it is
        values = {"kind": (kind, None), **values}
    return {
        name: as_dict(value, all_keys=all_keys)
        for name, (value, default) in values.items()
        if all_keys or name == "kind" or value != default
    }


def _default(of_key: Any) -> Any:
    return of_key.default if of_key.default_factory is MISSING else of_key.default_factory()


_RULES = {
    "dataclass_type": "must be a table",
    "model_attributes_type": "must be a table",
    "union_tag_not_found": "must be a table",
    "tuple_type": "must be tables of their own: write [[phase]], with two brackets, before each",
}
"""What is wrong, by the name that pydantic has for it; kinds of values say it themselves."""


def _in_words(first: Any, description: Any, said: Mapping[str, Any]) -> str:
    known = keys_of(description)
    kinds = tuple(dict.fromkeys(each.of_kind for each in known if each.of_kind))
    place = tuple(_as_written(first["loc"], said, kinds))
    named = on_a_line(".".join(map(str, place)))
    match first["type"]:
        case "unexpected_keyword_argument":
            mine = tuple(each for each in known if not each.of_kind or each.of_kind in first["loc"])
            return f"{named}: there is no such key{_meant(place, mine, known)}"
        case "value_error":
            return f"{named} {first['msg'].removeprefix('Value error, ')}".replace(" : ", ": ").lstrip()
        case "missing" | "missing_argument":
            return f"{named} is missing: {_sentence(place, first['loc'], known)}"
        case "union_tag_not_found" if isinstance(first["input"], Mapping):
            of_cuts = tuple(dict.fromkeys(each.name for each in known if each.of_kind))
            if odd := [name for name in first["input"] if name not in of_cuts]:
                others = set(first["input"]) - set(odd)
                fit = [kind for kind in kinds if others <= {each.name for each in known if each.of_kind == kind}]
                mine = tuple(each for each in known if not each.of_kind or each.of_kind in (fit or kinds))
                return f"{named}.{odd[0]}: there is no such key{_meant((*place, odd[0]), mine, known)}"
            kinds_of = {name: {each.of_kind for each in known if each.name == name} for name in first["input"]}
            pairs = combinations(kinds_of, 2)
            apart = next((each for each in pairs if kinds_of[each[0]].isdisjoint(kinds_of[each[1]])), tuple(kinds_of))
            return f"{named}: no kind of {named} has {'both ' * (len(apart) == 2)}{' and '.join(apart)}"
        case "union_tag_invalid":
            return f"{named}.kind must be one of {', '.join(kinds)}, got {_shown(first['input']['kind'])}"
    return f"{named} {_RULES[first['type']]}, got {_shown(first['input'])}"


def _as_written(place: tuple[Any, ...], said: Any, kinds: tuple[str, ...]) -> Iterator[Any]:
    """Yield the parts of a place as a user wrote them: a phase by its name, and not the kind by which a cut is read."""
    for part in place:
        if isinstance(said, list | tuple) and isinstance(part, int):
            only, said = len(said) == 1, said[part]
            alone = "all" if only else part + 1  # as people count
            yield said.get("name", alone) if isinstance(said, Mapping) else alone
        elif part not in kinds or (isinstance(said, Mapping) and part in said):
            said = said.get(part) if isinstance(said, Mapping) else None
            yield part


def _meant(place: tuple[Any, ...], mine: "tuple[Key, ...]", known: "tuple[Key, ...]") -> str:
    """Return the words that name the tables in which an unknown key is known, or what was probably meant."""
    name, table = str(place[-1]), str(place[0]) if len(place) > 1 else ""
    if homes := dict.fromkeys(each.table or "the top" for each in known if each.name == name and each.table != table):
        return f", but in {' and '.join(homes)}"
    if kinds := [each.of_kind for each in known if (each.table, each.name) == (table, name)]:
        return f" here, but where {table}.kind is {' or '.join(kinds)}"
    here = tuple(dict.fromkeys(each.name for each in mine if each.table == table))
    here += () if table else tuple(dict.fromkeys(each.table for each in known if each.table))
    return did_you_mean(name, here) or f"; known here are {', '.join(here)}"


def _sentence(place: tuple[Any, ...], loc: tuple[Any, ...], known: "tuple[Key, ...]") -> str:
    table = str(place[0]) if len(place) > 1 else ""
    return next(
        each.about for each in known
        if (each.table, each.name) == (table, place[-1]) and (not each.of_kind or each.of_kind in loc)
    )  # fmt: skip


def _shown(value: object) -> str:
    try:
        text = " ".join((str(value) if isinstance(value, Decimal) else repr(value)).split())
    except ValueError:  # Python writes down no number of so many digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# What there is to say --------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """A key of a description."""

    table: str  # empty: the top
    name: str
    of_kind: str  # the kind of the cut whose key it is; empty elsewhere
    about: str
    schema: Mapping[str, Any]

    @property
    def path(self) -> str:
        """How it is set: ``cut.tokens``; of a phase, ``phase.NAME.cost``."""
        return ".".join(part for part in (self.table, "NAME" * (self.table == "phase"), self.name) if part)


@functools.cache
def keys_of(description: Any) -> tuple[Key, ...]:
    """Return every key of a description, its tables in order."""
    return tuple(_each_key(description))


def _each_key(description: Any) -> Iterator[Key]:
    whole = schema_of(description)
    for name, value in whole["properties"].items():
        tables = [whole["$defs"][ref.rpartition("/")[2]] for ref in _references(value)]
        if not tables:
            yield Key("", name, "", value.get("description", ""), value)
        for table in tables:
            of_kind = table["properties"].get("kind", {}).get("const", "")
            for inner, spec in table["properties"].items():
                yield Key(name, inner, of_kind, spec.get("description", ""), spec)


def _references(value: Any) -> Iterator[str]:
    """Yield the tables that a value of a schema may be."""
    if isinstance(value, Mapping):
        yield from ([value["$ref"]] if "$ref" in value else ())
        for name in ("items", "oneOf", "anyOf"):
            yield from _references(value.get(name))
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def sentence_of(description: Any, name: str) -> str:
    """Return the sentence of a key of the top."""
    return next(each.about for each in keys_of(description) if (each.table, each.name) == ("", name))


def schema_of(description: Any) -> dict[str, Any]:
    """Return the JSON schema of a description, for editors."""
    found: dict[str, Any] = _without_none(_adapter(description).json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _without_none(value: Any) -> Any:
    """Leave out what says only that a key may be left out."""
    if isinstance(value, list):
        return [_without_none(each) for each in value if each != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    kept = {name: _without_none(each) for name, each in value.items()
            if name != "title" and not (name == "default" and each in (None, []))}  # fmt: skip
    if len(kept.get("anyOf", ())) == 1:
        kept |= kept.pop("anyOf")[0]
    return kept
