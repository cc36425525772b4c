"""Parts of a model in numbers: parameters, FLOPs a token, FLOPs a pair of tokens that a mask keeps, values kept.

A FLOP is a multiplication or an addition of a matrix product or convolution; norms, activations, softmax, embeddings
and biases are not counted, as in the literature and in ``torch.utils.flop_counter``. Scans take what their recurrence
does a token: with state P x N a head, the update and the read-out of Mamba are 2 P N each (Dao & Gu 2024,
arXiv:2405.21060), and those of gated delta nets, with what the state predicts before it is corrected, 2 P N each too,
so 6 P N (Yang et al. 2024, arXiv:2412.06464). Kernels that work in chunks do more, by a factor that does not depend on
the length.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from balancer.cost.areas import Terms, area, as_terms


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
        return self.per_token * length + sum(value * int(area(name, length)) for name, value in self.pairs)

    def __add__(self, other: "Part") -> "Part":
        """Both, one after the other."""
        return total((self, other))

    def __mul__(self, times: int) -> "Part":
        """As often as `times`."""
        return total((self,) * times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Heads of queries, and of keys and values (GQA; equal: MHA; 1: MQA), and how wide a head of queries is."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Attention {name} must be an integer >= 1, got {value!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"Attention heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")


def total(parts: Iterable[Part]) -> Part:
    """Return all parts together."""
    listed = list(parts)
    areas: Counter[str] = Counter()
    for part in listed:
        areas.update(dict(part.pairs))
    return Part(
        parameters=sum(part.parameters for part in listed), resting=sum(part.resting for part in listed),
        per_token=sum(part.per_token for part in listed), pairs=as_terms(areas), kept=sum(part.kept for part in listed),
    )  # fmt: skip


def linear(inputs: int, outputs: int, bias: bool = False) -> Part:
    """One matrix."""
    return Part(parameters=inputs * outputs + outputs * bias, per_token=2 * inputs * outputs)


def conv(channels: int, kernel: int) -> Part:
    """A convolution over time of each channel by itself."""
    return Part(parameters=channels * kernel, per_token=2 * channels * kernel)


def scan(times: int, heads: int, width: int, state: int) -> Part:
    """A recurrence with a state of ``width x state`` a head that is met so many times a token."""
    return Part(per_token=2 * times * heads * width * state, kept=heads * (width + state))


def attend(queries: int, keys: int, key_dim: int, value_dim: int, area: str) -> Part:
    """Each query with the keys and values of its area: so many heads of queries, and of keys and values."""
    products = 2 * queries * (key_dim + value_dim)
    return Part(pairs=((area, products),), kept=(queries + keys) * (key_dim + value_dim))


def mlp(hidden: int, width: int, *, gated: bool = True, bias: bool = False) -> Part:
    """Three matrices, or, not gated, two."""
    inside = Part(kept=hidden + (2 + gated) * width)
    return linear(hidden, width, bias) * (1 + gated) + linear(width, hidden, bias) + inside


def experts(one: Part, number: int, active: int, *, of: int = 0) -> Part:
    """MLPs of which a token meets `active`; `of` is how many it chooses among, if some of these do nothing.

    Of those that do nothing a token then meets their share, as if all were chosen alike.
    """
    met, every = active * number, of or number
    return Part(
        parameters=number * one.parameters, resting=number * one.parameters - met * one.parameters // every,
        per_token=met * one.per_token // every, kept=met * one.kept // every,
    )  # fmt: skip


def projector(merge: int, *widths: int, bias: bool = True) -> Part:
    """An MLP of these widths, once for every `merge` tokens, which come side by side or averaged."""
    whole = total(linear(*each, bias) for each in pairwise(widths))
    return Part(parameters=whole.parameters, per_token=whole_quotient(whole.per_token, merge, "projector weights"))


def whole_quotient(flops: int, parts: int, what: str) -> int:
    """Divide, or raise: FLOPs stay integers."""
    if flops % parts:
        raise ValueError(f"{what} must divide by {parts} for its FLOPs a unit of length to be whole, got {flops} FLOPs")
    return flops // parts
