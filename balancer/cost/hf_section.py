"""Keys of a model's configuration: read, or refused by name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from balancer.cost.layers import Attention
from balancer.errors import InputError

_NEEDED: Any = object()
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Section:
    """A configuration, or a part nested in one; reads a key or says where it is missing or wrong."""

    values: Mapping[str, Any]
    where: str
    prefix: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def raw(self, key: str, default: Any = _NEEDED) -> Any:
        """Value of a key; null and absent are the same, and refused unless there is a default."""
        value = self.values.get(key)
        if value is None:
            value = self.defaults.get(key, default)
        if value is _NEEDED:
            kind = self.values.get("model_type")
            raise InputError(f"{self.where}: key '{self.prefix}{key}' is missing, which model_type {kind!r} needs")
        return value

    def count(self, key: str, default: Any = _NEEDED, minimum: int = 1) -> int:
        """Value of a key that must be an integer."""
        value = self.raw(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.refuse(key, value, f"must be an integer >= {minimum}")
        if value > _LARGEST:
            raise self.refuse(key, value, f"must be <= {_LARGEST}")
        return value

    def present(self, keys: Sequence[str]) -> str:
        """Return which of several keys for one thing is there; empty if none is, refused if they contradict."""
        found = [key for key in keys if self.raw(key, None) is not None]
        for key in found[1:]:
            if self.raw(key) != self.raw(found[0]):
                raise self.refuse(key, self.raw(key), f"must be the {self.raw(found[0])} of '{found[0]}'")
        return found[0] if found else ""

    def any_count(self, keys: Sequence[str], default: Any = _NEEDED, minimum: int = 1) -> int:
        """Value of whichever key is there, an integer; where none is, the first is missing."""
        return self.count(self.present(keys) or keys[0], default, minimum)

    def any_flag(self, keys: Sequence[str], default: bool) -> bool:
        """Value of whichever key is there, true or false."""
        return self.flag(self.present(keys) or keys[0], default)

    def flag(self, key: str, default: bool) -> bool:
        """Value of a key that must be true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, value, "must be true or false")
        return value

    def part(self, key: str, defaults: Mapping[str, Mapping[str, Any]], model_type: str | None = None) -> "Section":
        """Give the object nested under a key; `defaults` by its ``model_type``, or by the one it inherits."""
        value = self.raw(key)
        if not isinstance(value, dict):
            raise self.refuse(key, value, "must be an object")
        kind = str(value.get("model_type", model_type))
        return Section({"model_type": kind, **value}, self.where, f"{self.prefix}{key}.", defaults.get(kind, {}))

    def beside(self, values: Mapping[str, Any]) -> "Section":
        """Return the configuration with some keys of other values."""
        return Section({**self.values, **values}, self.where, self.prefix, self.defaults)

    def refuse(self, key: str, value: Any, rule: str) -> InputError:
        """Make the error about the value of a key."""
        return InputError(f"{self.where}: key '{self.prefix}{key}' {rule}, got {json.dumps(value)[:60]}")


def head_dim_of(section: Section, hidden: int, heads: int) -> int:
    """Width of a head: the key of that name, or else an equal share."""
    if section.raw("head_dim", None) is not None:
        return section.count("head_dim")
    if hidden % heads:
        raise section.refuse("num_attention_heads", heads, f"must divide hidden_size {hidden}")
    return hidden // heads


def all_biased(hidden: int, heads: int, section: Section, key: str, key_bias: bool = True) -> Attention:
    """Plain multi-head attention, all four projections with biases; `key` is what the number of heads is called."""
    if hidden % heads:
        raise section.refuse(key, heads, f"must divide the hidden size {hidden}")
    biases = {"query_bias": True, "key_bias": key_bias, "value_bias": True, "output_bias": True}
    return Attention(hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads, **biases)
