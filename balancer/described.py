"""What may be said of a step, declared once: a key is a field with a kind and a sentence.

Reader, errors, JSON schema, help and reference tables come from the fields. A key that nobody said is None.
No other file imports pydantic.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from decimal import Decimal
from itertools import combinations
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from pydantic_core import core_schema

from balancer.errors import InputError, did_you_mean
from solvers.arguments import INT64_MAX, as_share

Keys = TypeVar("Keys")

_SHOWN = 60  # characters of a value in an error


def key(about: str, default: Any = None) -> Any:
    """Declare a key by its sentence."""
    return Field(default, description=about)


def needed(about: str) -> Any:
    """Declare a key without which its table says nothing."""
    return Field(description=about)


def described(of_keys: type[Keys]) -> type[Keys]:
    """Make a class a frozen description of keys."""
    found: Any = dataclass(frozen=True, config=ConfigDict(extra="forbid"))(of_keys)
    return found  # type: ignore[no-any-return] # the same class


def defaults_of(description: type) -> dict[str, Any]:
    """Return the keys of a description, each with what it is where nobody says it."""
    declared: Any = description  # a dataclass, which pydantic made: defaults are what :func:`key` returns
    infos: dict[str, Any] = {each.name: each.default for each in fields(declared)}
    return {name: info.default for name, info in infos.items()}


def changed(said: Keys, **values: Any) -> Keys:
    """Return what is said with some values in place of its own."""
    return replace(said, **values)  # type: ignore[type-var] # a dataclass, which pydantic made


# Kinds of values -------------------------------------------------------------------------------------------------


@plain_dataclass(frozen=True, eq=False)
class Kind:
    """A kind of values: its rule in words, its JSON schema, and what returns a value as it is kept, or raises.

    Without a rule, what `take` raises says what is wrong.
    """

    rule: str
    schema: Mapping[str, Any]
    take: Callable[[Any], Any]

    def check(self, value: Any) -> Any:
        """Return a value as it is kept; ValueError says the rule."""
        try:
            return self.take(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"must be {self.rule}, got {_shown(value)}" if self.rule else f": {error}") from None

    def or_word(self, *known: str) -> "Kind":
        """Return the kind of values that are of this kind, or one of some words."""
        schema = {"anyOf": [self.schema, {"enum": list(known)}]}
        return Kind(
            f"{self.rule}, or {' or '.join(known)}", schema, lambda value: value if value in known else self.take(value)
        )

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> Any:
        """Let pydantic check values by this alone."""
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> Any:
        """Let pydantic describe values by this alone."""
        return dict(self.schema)


def _integer(least: int) -> Callable[[Any], int]:
    def take(value: Any) -> int:
        number = operator.index(value)  # NumPy's integers too
        if isinstance(value, bool) or not least <= number <= INT64_MAX:
            raise ValueError
        return number

    return take


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):  # the text "no" would count as true
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool | str) or not Decimal(str(value)).is_finite():
        raise ValueError
    return float(value)


def _share(value: Any) -> str:
    """Keep a share as it was written: no float is 0.1 %."""
    text = str(value)
    # Of 1e999999999 an exact fraction would never be done.
    if isinstance(value, bool) or ("e" in text.lower() and abs(Decimal(text.removesuffix("%")).adjusted()) > 30):
        raise ValueError
    if not 0 <= as_share("share", text) < 1:
        raise ValueError
    return text


def _list_of(take: Callable[[Any], int]) -> Callable[[Any], tuple[int, ...]]:
    def take_all(values: Any) -> tuple[int, ...]:
        if not isinstance(values, list | tuple) or not values:
            raise ValueError
        return tuple(map(take, values))

    return take_all


def _counts_by_name(values: Any) -> dict[str, int]:
    if not isinstance(values, Mapping) or not values:
        raise ValueError
    return {_text(name): _integer(1)(value) for name, value in values.items()}


def _whole(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least}


def _whole_ones(least: int) -> dict[str, Any]:
    return {"type": "array", "items": _whole(least), "minItems": 1}


A_COUNT = Kind("a whole number >= 1", _whole(1), _integer(1))
A_SHARE = Kind('a share of 0 or more and under 1, such as 0.001 or "0.1%"', {"type": ["number", "string"]}, _share)

Count = Annotated[int, A_COUNT]
Amount = Annotated[int, Kind("a whole number >= 0", _whole(0), _integer(0))]
Text = Annotated[str, Kind("text", {"type": "string", "minLength": 1}, _text)]
Flag = Annotated[bool, Kind("true or false", {"type": "boolean"}, _flag)]
Number = Annotated[float, Kind("a number", {"type": "number"}, _number)]
Share = Annotated[str, A_SHARE]
Counts = Annotated[tuple[int, ...], Kind("a list of whole numbers >= 1", _whole_ones(1), _list_of(_integer(1)))]
Amounts = Annotated[tuple[int, ...], Kind("a list of whole numbers >= 0", _whole_ones(0), _list_of(_integer(0)))]
CountsByName = Annotated[
    dict[str, int],
    Kind("a table of whole numbers >= 1", {"type": "object", "additionalProperties": _whole(1)}, _counts_by_name),
]


def one_of(*known: str) -> Kind:
    """Return the kind of values that are one of some words."""

    def take(value: Any) -> str:
        if value not in known:
            raise ValueError
        return str(value)

    return Kind(f"one of {', '.join(known)}", {"enum": list(known)}, take)


def by_kind(assumed: Callable[[Mapping[str, Any]], str | None]) -> tuple[Any, Any]:
    """Return what lets the key `kind` say which of several tables a table is; `assumed` says it where it does not."""

    def with_kind(said: Any) -> Any:
        if not isinstance(said, Mapping) or "kind" in said or (found := assumed(said)) is None:
            return said
        return {"kind": found, **said}

    return Field(discriminator="kind"), BeforeValidator(with_kind)


# Reading ---------------------------------------------------------------------------------------------------------


@functools.cache
def _adapter(description: Any) -> TypeAdapter[Any]:
    """Return what checks values by a description."""
    return TypeAdapter(description)


def read(description: Any, said: Mapping[str, Any], where: str = "") -> Any:
    """Return a description of what is said; InputError names place, value and rule of the first thing that is wrong."""
    try:
        return _adapter(description).validate_python(said)
    except ValidationError as error:
        raise InputError(where + _in_words(error, description, said)) from None


def as_dict(said: Any) -> Any:
    """Return what was said, as tables, lists and values that TOML and JSON have: :func:`read` takes it back."""
    if isinstance(said, tuple):
        return [as_dict(each) for each in said]
    if not is_pydantic_dataclass(type(said)):
        return said
    values = {each.name: as_dict(getattr(said, each.name)) for each in fields(said)}
    return {name: value for name, value in values.items() if value is not None and value not in ([], {})}


_RULES = {
    "dataclass_type": "must be a table",
    "model_attributes_type": "must be a table",
    "union_tag_not_found": "must be a table",
    "tuple_type": "must be tables of their own: write [[phase]], with two brackets, before each",
}
"""What is wrong, by the name that pydantic has for it; kinds of values say it themselves."""


def _in_words(error: ValidationError, description: Any, said: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False)[0]
    known = keys_of(description)
    kinds = tuple(dict.fromkeys(each.of_kind for each in known if each.of_kind))
    place = tuple(_as_written(first["loc"], said, kinds))
    named = ".".join(map(str, place))
    match first["type"]:
        case "unexpected_keyword_argument":
            mine = tuple(each for each in known if not each.of_kind or each.of_kind in first["loc"])
            return f"{named}: there is no such key{_meant(place, mine, known)}"
        case "value_error":
            return f"{named} {first['msg'].removeprefix('Value error, ')}".replace(" : ", ": ")
        case "missing" | "missing_argument":
            return f"{named} is missing: {_sentence(place, first['loc'], known)}"
        case "union_tag_not_found" if isinstance(first["input"], Mapping):
            of_cuts = tuple(dict.fromkeys(each.name for each in known if each.of_kind))
            if odd := [name for name in first["input"] if name not in of_cuts]:
                return f"{named}.{odd[0]}: there is no such key{_meant((*place, odd[0]), known, known)}"
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
    return f"{did_you_mean(name, here)}; known here are {', '.join(here)}"


def _sentence(place: tuple[Any, ...], loc: tuple[Any, ...], known: "tuple[Key, ...]") -> str:
    table = str(place[0]) if len(place) > 1 else ""
    return next(
        each.about for each in known
        if (each.table, each.name) == (table, place[-1]) and (not each.of_kind or each.of_kind in loc)
    )  # fmt: skip


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
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
