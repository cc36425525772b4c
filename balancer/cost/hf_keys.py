"""Keys of a model's configuration: found by any of their names, or refused by name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from balancer.errors import InputError

NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "depth", "encoder_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "mlp": ("intermediate_size", "block_ff_dim", "ffn_hidden_size", "n_inner", "encoder_ffn_dim"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "active": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k"),
    "expert_width": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "shared_width": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
    ),
    "first_dense": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "expert_step": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "expert_layer_period"),
    "full_every": (
        "full_attention_interval", "sliding_window_pattern", "global_attn_every_n_layers", "layer_group_size",
        "attn_layer_period", "no_rope_layer_interval",
    ),
    "kinds": ("layer_types", "layers_block_type"),
    "pattern": ("hybrid_override_pattern", "hybrid_layer_pattern"),
    "tied": ("tie_word_embeddings",),
    "kernel": ("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim", "short_conv_kernel_size", "conv_L_cache"),
    "state": ("mamba_d_state", "ssm_state_size"),
    "scan_heads": ("mamba_n_heads", "mamba_num_heads"),
    "scan_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "delta_heads": ("linear_num_heads", "num_heads"),
    "groups": ("mamba_n_groups", "n_groups"),
    "expand": ("mamba_expand", "expand"),
    "channels": ("in_chans", "in_channels", "num_channels"),
}  # fmt: skip
"""What a thing is called here, and what families call it; a thing that is not here has one name."""

_NEEDED: Any = object()
_LARGEST = 2**31 - 1
_MOST = {"layers": 10_000}  # each is looked at


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration, or a part nested in one; reads a thing or says which key is missing or wrong.

    `defaults` say what a class fills in where no key does, by the name of a key or of a thing, and `keys` which key a
    thing has in this family, where other keys have other meanings.
    """

    values: Mapping[str, Any]
    where: str
    prefix: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str | None:
        """Its ``model_type``."""
        found = self.values.get("model_type")
        return found if isinstance(found, str) else None

    def key(self, name: str) -> str:
        """Return which key of a thing is there; the first if none is. Keys that contradict are refused."""
        known = (self.keys[name],) if name in self.keys else NAMES.get(name, (name,))
        found = [key for key in known if self.values.get(key) is not None]
        for other in found[1:]:
            if self.values[other] != self.values[found[0]]:
                first = json.dumps(self.values[found[0]])[:60]
                raise self.refuse(other, self.values[other], f"must be the {first} of '{found[0]}'")
        return found[0] if found else known[0]

    def get(self, name: str, default: Any = _NEEDED) -> Any:
        """Value of a thing; null and absent are the same, and refused unless there is a default."""
        key = self.key(name)
        for value in (self.values.get(key), self.defaults.get(key), self.defaults.get(name), default):
            if value is _NEEDED:
                others = [each for each in NAMES.get(name, ()) if each != key and name not in self.keys]
                more = f"; others call it {', '.join(others)}" if others else ""
                raise InputError(
                    f"{self.where}: key '{self.prefix}{key}' is missing, which model_type {self.kind!r} needs{more}"
                )
            if value is not None:
                return value
        return None

    def has(self, name: str) -> bool:
        """Whether a key, or what the class fills in, says anything of a thing."""
        return self.get(name, None) is not None

    def count(self, name: str, default: Any = _NEEDED, least: int = 1) -> int:
        """Value of a thing that must be an integer."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.refuse(self.key(name), value, f"must be an integer >= {least}")
        if value > (most := _MOST.get(name, _LARGEST)):
            raise self.refuse(self.key(name), value, f"must be <= {most}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Value of a thing that must be true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(self.key(name), value, "must be true or false")
        return value

    def listed(self, name: str, known: Sequence[Any], count: int | None = None) -> list[Any]:
        """Value of a thing that must be a list or letters, of known values, one a layer if there is a `count`."""
        found = self.get(name)
        found = list(found) if isinstance(found, str) and found else found
        if not isinstance(found, list) or (count is not None and len(found) != count):
            number = f"{len(found)} of them" if isinstance(found, list) else found
            raise self.refuse(self.key(name), number, "must be a list" + (f" of {count}, one a layer" if count else ""))
        for value in found:
            if value not in known:
                few = known if len(known) <= 20 else [f"{known[0]} to {known[-1]}"]
                raise self.refuse(self.key(name), value, f"must be of {', '.join(map(str, few))}")
        return found

    def part(self, key: str, kind: str | None = None) -> "Config":
        """Return the object nested under a key, of its own ``model_type``, or else of this kind."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.refuse(key, value, "must be an object")
        return Config({"model_type": kind, **value}, self.where, f"{self.prefix}{key}.")

    def filled(self, sizes: Mapping[str, Any]) -> "Config":
        """Return the configuration with these values where it says none."""
        said = {key: value for key, value in self.values.items() if value is not None}
        return self.with_values({**sizes, **said})

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """Return the configuration with some keys of other values."""
        return Config({**self.values, **values}, self.where, self.prefix, self.defaults, self.keys)

    def of_family(self, defaults: Mapping[str, Any], keys: Mapping[str, str]) -> "Config":
        """Return the configuration as a family reads it."""
        return Config(self.values, self.where, self.prefix, defaults, keys)

    def refuse(self, key: str, value: Any, rule: str) -> InputError:
        """Make the error about the value of a key."""
        return InputError(f"{self.where}: key '{self.prefix}{key}' {rule}, got {json.dumps(value, default=str)[:60]}")
