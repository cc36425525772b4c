"""Parts of unlike layers, in numbers: parameters, FLOPs a token, and FLOPs a pair of tokens that a mask keeps.

Counted as in :mod:`balancer.cost.layers`. Scans take what their recurrence does a token: with state P x N a head, the
update and the read-out of Mamba are 2 P N each (Dao & Gu 2024, arXiv:2405.21060), and those of gated delta nets, with
what the state predicts before it is corrected, 2 P N each too, so 6 P N (Yang et al. 2024, arXiv:2412.06464). Kernels
that work in chunks do more, by a factor that does not depend on the length.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from balancer.cost.areas import Terms, as_terms, pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a layer, or a part of it, has and does; parts add up."""

    parameters: int = 0
    resting: int = 0  # parameters that a token does not meet: of experts
    per_token: int = 0  # forward FLOPs a token
    pairs: Terms = ()  # forward FLOPs a pair of tokens, by the name of the mask's area
    kept: int = 0  # values a token that the backward needs of inputs, queries, keys, values and the inside of MLPs

    def flops(self, length: int) -> int:
        """Forward FLOPs of a sample of so many tokens."""
        return self.per_token * length + int(pairs(self.pairs, length))

    def __add__(self, other: "Part") -> "Part":
        """Both, one after the other."""
        return total((self, other))

    def __mul__(self, times: int) -> "Part":
        """As often as `times`."""
        return total((self,) * times)


class Heads(NamedTuple):
    """Heads of attention."""

    queries: int
    keys: int  # and values
    key_dim: int  # of queries too
    value_dim: int


class LatentSizes(NamedTuple):
    """Sizes of latent attention: ranks that queries (0: none), and keys and values, are projected to, and of a head."""

    query_rank: int
    kv_rank: int
    nope: int  # of queries and keys without positions
    rope: int  # and with them
    value_dim: int


def total(parts: Iterable[Part]) -> Part:
    """Return all parts together."""
    listed = list(parts)
    areas: dict[str, int] = {}
    for part in listed:
        for name, value in part.pairs:
            areas[name] = areas.get(name, 0) + value
    return Part(
        parameters=sum(part.parameters for part in listed), resting=sum(part.resting for part in listed),
        per_token=sum(part.per_token for part in listed), pairs=as_terms(areas), kept=sum(part.kept for part in listed),
    )  # fmt: skip


def linear(inputs: int, outputs: int, bias: bool = False) -> Part:
    """One matrix, whose input the backward needs."""
    return Part(parameters=inputs * outputs + outputs * bias, per_token=2 * inputs * outputs)


def norm(*widths: int) -> Part:
    """Scales, or other numbers that no product is made with."""
    return Part(parameters=sum(widths))


def conv(channels: int, kernel: int, bias: bool = False) -> Part:
    """A convolution over time of each channel by itself."""
    return Part(parameters=channels * (kernel + bias), per_token=2 * channels * kernel)


def scan(times: int, heads: int, width: int, state: int) -> Part:
    """A recurrence with a state of ``width x state`` a head that is met so many times a token."""
    return Part(per_token=2 * times * heads * width * state, kept=heads * (width + state))


def grouped(
    hidden: int, heads: Heads, area: str, *, qkv_bias: bool = False, output_bias: bool = False,
    shared_values: bool = False, gate: int = 0,
) -> Part:  # fmt: skip
    """Attention whose query heads share heads of keys and values; with `gate`, so many outputs more of the hidden."""
    queries, keys, key_dim, value_dim = heads
    projections = [
        linear(hidden, queries * key_dim, qkv_bias), linear(hidden, keys * key_dim, qkv_bias),
        linear(queries * value_dim, hidden, output_bias),
    ]  # fmt: skip
    if not shared_values:
        projections.append(linear(hidden, keys * value_dim, qkv_bias))
    if gate:
        projections.append(linear(hidden, gate, qkv_bias))
    kept = hidden + queries * (key_dim + value_dim) + keys * (key_dim + value_dim) + gate
    return total(projections) + Part(pairs=((area, 2 * queries * (key_dim + value_dim)),), kept=kept)


def latent(hidden: int, heads: int, area: str, sizes: LatentSizes, bias: bool = False) -> Part:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) as it is trained, its projections not absorbed."""
    query_rank, kv_rank, nope, rope, value_dim = sizes
    wide = heads * (nope + rope)
    queries = [linear(hidden, wide)]
    if query_rank:
        queries = [linear(hidden, query_rank, bias), norm(query_rank), linear(query_rank, wide)]
    projections = [
        *queries, linear(hidden, kv_rank + rope, bias), norm(kv_rank), linear(kv_rank, heads * (nope + value_dim)),
        linear(heads * value_dim, hidden, bias),
    ]  # fmt: skip
    kept = hidden + query_rank + kv_rank + 2 * wide + 2 * heads * value_dim
    return total(projections) + Part(pairs=((area, 2 * heads * (nope + rope + value_dim)),), kept=kept)


def indexer(hidden: int, query_rank: int, heads: int, head_dim: int) -> Part:
    """What chooses the keys of sparse attention, over all pairs and heads (DeepSeek-V3.2, arXiv:2512.02556)."""
    projections = (
        linear(query_rank, heads * head_dim),
        linear(hidden, head_dim),
        norm(2 * head_dim),
        linear(hidden, heads),
    )
    return total(projections) + Part(pairs=(("full", 2 * heads * (head_dim + 1)),), kept=(heads + 1) * head_dim)


def mlp(hidden: int, intermediate: int, *, gated: bool = True, bias: bool = False) -> Part:
    """Three matrices, or, not gated, two."""
    up = linear(hidden, intermediate, bias) * (1 + gated)
    return up + linear(intermediate, hidden, bias) + Part(kept=hidden + (2 + gated) * intermediate)


def experts(one: Part, number: int, active: int, *, of: int = 0) -> Part:
    """MLPs of which a token meets `active`; `of` is how many it chooses among, if some of these do nothing.

    Of those that do nothing a token then meets their share, as if all were chosen alike.
    """
    met, every = active * number, of or number
    return Part(
        parameters=number * one.parameters, resting=number * one.parameters - met * one.parameters // every,
        per_token=met * one.per_token // every, kept=met * one.kept // every,
    )  # fmt: skip
