"""Parts of transformer blocks: how many parameters they have, and how many FLOPs a token takes.

A FLOP is a multiplication or an addition of a matrix product or convolution; norms, activations, softmax, embeddings
and biases are not counted, as in the literature and in ``torch.utils.flop_counter``.
"""

from dataclasses import dataclass


def check_counts(owner: object, minimum: int, *names: str) -> None:
    """Raise ValueError unless each of the attributes is an integer of at least `minimum`."""
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ValueError(f"{type(owner).__name__} {name} must be an integer >= {minimum}, got {value!r}")


def exact_quotient(flops: int, parts: int, what: str) -> int:
    """Divide, or raise: FLOPs stay integers."""
    if flops % parts:
        raise ValueError(f"{what} must divide by {parts} for its FLOPs a unit of length to be whole, got {flops} FLOPs")
    return flops // parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Self-attention with `heads` query heads and `kv_heads` key and value heads (GQA; equal: MHA; 1: MQA)."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    norm_parameters: int = 0

    def __post_init__(self) -> None:
        check_counts(self, 1, "hidden", "heads", "kv_heads", "head_dim")
        check_counts(self, 0, "norm_parameters")
        if self.heads % self.kv_heads:
            raise ValueError(f"Attention heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")

    @property
    def weights(self) -> int:
        """Entries of the four projections."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def parameters(self) -> int:
        """Weights, biases, and the norms of queries and keys."""
        biases = self.head_dim * self.heads * self.query_bias + self.hidden * self.output_bias
        biases += self.head_dim * self.kv_heads * (self.key_bias + self.value_bias)
        return self.weights + biases + self.norm_parameters

    @property
    def flops_per_pair(self) -> int:
        """Query times key, and weight times value, for one pair of tokens."""
        return 4 * self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Two matrices, or, gated (SwiGLU, GeGLU), three."""

    hidden: int
    intermediate: int
    gated: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        check_counts(self, 1, "hidden", "intermediate")

    @property
    def weights(self) -> int:
        """Entries of the matrices."""
        return self.hidden * self.intermediate * (2 + self.gated)

    @property
    def active_weights(self) -> int:
        """Those that a token meets: all."""
        return self.weights

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.weights + (self.intermediate * (1 + self.gated) + self.hidden) * self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A router and `experts` gated MLPs, of which a token meets `active`, plus those that all tokens share."""

    hidden: int
    intermediate: int
    experts: int
    active: int
    shared_intermediate: int = 0
    shared_gate: bool = False

    def __post_init__(self) -> None:
        check_counts(self, 1, "hidden", "intermediate", "experts", "active")
        check_counts(self, 0, "shared_intermediate")
        if self.active > self.experts:
            raise ValueError(f"Experts active must be <= experts, got {self.active} of {self.experts}")

    def _weights(self, experts: int) -> int:
        mlps = 3 * self.hidden * (experts * self.intermediate + self.shared_intermediate)
        return mlps + self.hidden * (self.experts + self.shared_gate)

    @property
    def weights(self) -> int:
        """Entries of all matrices, the router's and the shared gate's too."""
        return self._weights(self.experts)

    @property
    def active_weights(self) -> int:
        """Those that a token meets."""
        return self._weights(self.active)

    @property
    def parameters(self) -> int:
        """Weights; there are no biases."""
        return self.weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Attention and what follows it; `norm_parameters` counts all norms and layer scales of a block."""

    attention: Attention
    mlp: Mlp | Experts
    norm_parameters: int

    def __post_init__(self) -> None:
        check_counts(self, 0, "norm_parameters")
        if self.attention.hidden != self.mlp.hidden:
            raise ValueError(f"Block hidden sizes must agree, got {self.attention.hidden} and {self.mlp.hidden}")

    @property
    def hidden(self) -> int:
        """Width of a token."""
        return self.attention.hidden

    @property
    def parameters(self) -> int:
        """All of them, inactive experts included."""
        return self.attention.parameters + self.mlp.parameters + self.norm_parameters

    @property
    def active_parameters(self) -> int:
        """Those that a token meets."""
        return self.parameters - self.mlp.weights + self.mlp.active_weights

    @property
    def flops_per_token(self) -> int:
        """Forward, without the pairs of tokens that attention compares."""
        return 2 * (self.attention.weights + self.mlp.active_weights)

    @property
    def flops_per_pair(self) -> int:
        """Forward, for each pair of tokens that see each other."""
        return self.attention.flops_per_pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One-dimensional, with a bias; every `stride`-th position comes out."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        check_counts(self, 1, "inputs", "outputs", "kernel", "stride")

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.outputs * (self.inputs * self.kernel + 1)

    @property
    def flops_per_output(self) -> int:
        """Forward, for one position that comes out."""
        return 2 * self.inputs * self.outputs * self.kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """An MLP from encoder to LLM, once for every `merge` tokens, which come side by side or averaged.

    `widths` are its layers' inputs, in order, and its last output.
    """

    merge: int
    widths: tuple[int, ...]
    bias: bool = True
    norm_parameters: int = 0

    def __post_init__(self) -> None:
        check_counts(self, 1, "merge")
        check_counts(self, 0, "norm_parameters")
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(f"Projector widths must be at least two positive integers, got {self.widths}")

    @property
    def weights(self) -> int:
        """Entries of the matrices."""
        return sum(width * after for width, after in zip(self.widths, self.widths[1:], strict=False))

    @property
    def parameters(self) -> int:
        """Weights, biases, norms."""
        return self.weights + sum(self.widths[1:]) * self.bias + self.norm_parameters

    @property
    def flops_per_token(self) -> int:
        """Forward, for one token that comes in."""
        return exact_quotient(2 * self.weights, self.merge, "projector weights")
