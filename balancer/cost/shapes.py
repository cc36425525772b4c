"""Modules by their shape: decoder, vision encoder, audio encoder. FLOPs of a sample, exactly, and parameters.

A forward pass is counted once; a backward pass is two more, since every product has two operands whose gradients are
products of the same size; activation checkpointing is one more forward pass.
"""

from dataclasses import dataclass
from itertools import pairwise

from balancer.cost.parts import Attention, Part, total, whole_quotient
from balancer.cost.polynomial import LengthPolynomial


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Layers, and what is around them.

    Attributes
    ----------
    attention : Attention
        Heads of a layer with full attention, which tensor and sequence parallelism divide.
    parts : tuple of Part
        Each layer, in order.
    around : Part
        Embeddings, positions, norms, a projector: parameters, and FLOPs a unit of length.
    """

    attention: Attention
    parts: tuple[Part, ...]
    around: Part

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError(f"{type(self).__name__} must have a layer at least")

    @property
    def hidden(self) -> int:
        """Width of a token."""
        return self.attention.hidden

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.parts)

    @property
    def unlike(self) -> tuple[Part, ...]:
        """Each layer, in order, if they differ; else none."""
        return self.parts if len(set(self.parts)) > 1 else ()

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(layer.parameters for layer in self.parts) + self.around.parameters

    @property
    def active_parameters(self) -> int:
        """Those that a token meets; the whole embedding among them, as model cards count."""
        return self.parameters - sum(layer.resting for layer in self.parts)

    def in_stages(self, stages: int) -> list[tuple[Part, ...]]:
        """Return the layers of each of so many stages: as many as can be alike, more in the first."""
        ends = [i * (self.layers // stages) + min(i, self.layers % stages) for i in range(stages + 1)]
        return [self.parts[first:last] for first, last in pairwise(ends)]

    def flops(self, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
        """FLOPs of one sample by its length."""
        return self._forward() * passes(backward, checkpointing)

    def _forward(self) -> LengthPolynomial:
        whole = total(self.parts)
        return LengthPolynomial(0, whole.per_token + self.around.per_token, 0, "tokens", whole.pairs)


def passes(backward: bool, checkpointing: bool) -> int:
    """Return how many forward passes take as long as all passes."""
    if checkpointing and not backward:
        raise ValueError("checkpointing recomputes for the backward pass: it needs backward=True")
    return 1 + 2 * backward + checkpointing


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder(Module):
    """A language model. Lengths are tokens; the vocabulary head is counted on every token.

    Attributes
    ----------
    vocabulary : int
        Rows of the embedding, and of the head, which is the same matrix if `tied`: equal FLOPs, fewer parameters.

    Examples
    --------
    >>> from balancer.cost.parts import linear, mlp
    >>> layer = linear(64, 128) + linear(64, 64) + mlp(64, 128) + Part(pairs=(("full", 256),))
    >>> attention = Attention(hidden=64, heads=4, kv_heads=2, head_dim=16)
    >>> Decoder.of(attention, (layer,) * 2, vocabulary=1000).flops(backward=False)
    LengthPolynomial(constant=0, a=275456, b=0, length_unit='tokens', areas=(('full', 512),))
    """

    vocabulary: int
    tied: bool = False

    @classmethod
    def of(
        cls, attention: Attention, parts: tuple[Part, ...], vocabulary: int, *, tied: bool = False, more: int = 0
    ) -> "Decoder":
        """Put embedding and head around layers, and so many parameters `more`, such as learned positions."""
        matrix = attention.hidden * vocabulary
        around = Part(parameters=matrix * (1 if tied else 2) + more, per_token=2 * matrix)
        return cls(attention=attention, parts=parts, around=around, vocabulary=vocabulary, tied=tied)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionEncoder(Module):
    """A vision transformer. The length of a sample is the patches of one image, before any are merged.

    Attributes
    ----------
    class_tokens : int
        Tokens that every image has besides its patches.
    """

    class_tokens: int = 0

    def _forward(self) -> LengthPolynomial:
        whole, k = total(self.parts), self.class_tokens  # l + k tokens go through the layers
        square = dict(whole.pairs).get("bidirectional", 0)
        a = whole.per_token + 2 * k * square + self.around.per_token
        return LengthPolynomial(k * whole.per_token + k * k * square, a, square, "patches of one image")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioEncoder(Module):
    """Convolutions that shorten a spectrogram, then a transformer. The length of a sample is its frames.

    Attributes
    ----------
    stem : int
        Forward FLOPs a frame of the convolutions.
    frames_per_token : int
        By how much they shorten. A length that is no multiple counts as the fraction that it is.
    """

    stem: int
    frames_per_token: int

    def _forward(self) -> LengthPolynomial:
        whole, stride = total(self.parts), self.frames_per_token
        a = whole_quotient(whole.per_token + self.around.per_token, stride, "blocks")
        b = whole_quotient(dict(whole.pairs).get("bidirectional", 0), stride * stride, "attention")
        return LengthPolynomial(0, self.stem + a, b, "frames")

    def stem_flops(self, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
        """FLOPs of the convolutions alone, which many trainers run on rows padded to the longest."""
        return LengthPolynomial(0, self.stem, 0, "frames") * passes(backward, checkpointing)
