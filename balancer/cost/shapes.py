"""Modules by their shape: decoder, vision encoder, audio encoder. FLOPs of a sample, exactly, and parameters.

A forward pass is counted once; a backward pass is two more, since every product has two operands whose gradients are
products of the same size; activation checkpointing is one more forward pass. With a causal mask half of the attention
square counts (what a fused kernel computes, and the convention of MFU tables), without one all of it.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Protocol

from balancer.cost.layers import Block, Convolution, Mlp, Projector, check_counts, exact_quotient
from balancer.cost.parts import Part, total
from balancer.cost.polynomial import LengthPolynomial


class Module(Protocol):
    """What every module can tell."""

    @property
    def block(self) -> Block:
        """One of its layers, which are alike but for some of their MLPs and windows."""

    @property
    def layers(self) -> int:
        """How many there are."""

    @property
    def parameters(self) -> int:
        """All of them."""

    @property
    def active_parameters(self) -> int:
        """Those that a token meets: fewer only with a mixture of experts."""

    def flops(self, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
        """FLOPs of one sample by its length."""


def _passes(forward: LengthPolynomial, backward: bool, checkpointing: bool) -> LengthPolynomial:
    if checkpointing and not backward:
        raise ValueError("checkpointing recomputes for the backward pass: it needs backward=True")
    return forward * (1 + 2 * backward + checkpointing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A language model: embedding, `layers` blocks, vocabulary head. Lengths are tokens.

    Attributes
    ----------
    block : Block
        One layer.
    layers : int
        How many there are.
    dense_layers : int
        How many of them have `dense_mlp` instead of the experts.
    vocabulary : int
        Rows of the embedding, and of the head, which is the same matrix if `tied`: equal FLOPs, fewer parameters.
    causal : bool
        Whether tokens see only those before them.
    extra_parameters : int
        Final norm, learned positions.
    unlike : tuple of Part
        Where layers differ in more than that: each one, in order. `block` then has their attention's heads alone.

    Examples
    --------
    >>> from balancer.cost.layers import Attention
    >>> attention = Attention(hidden=64, heads=4, kv_heads=2, head_dim=16)
    >>> block = Block(attention=attention, mlp=Mlp(hidden=64, intermediate=128, gated=True), norm_parameters=128)
    >>> Decoder(block=block, layers=2, vocabulary=1000).flops(backward=False)
    LengthPolynomial(constant=0, a=275456, b=256, length_unit='tokens')
    """

    block: Block
    layers: int
    vocabulary: int
    tied: bool = False
    causal: bool = True
    extra_parameters: int = 0
    dense_layers: int = 0
    dense_mlp: Mlp | None = None
    unlike: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        check_counts(self, 1, "layers", "vocabulary")
        check_counts(self, 0, "extra_parameters", "dense_layers")
        if self.unlike and len(self.unlike) != self.layers:
            raise ValueError(f"Decoder unlike must be {self.layers} layers, got {len(self.unlike)}")
        if self.dense_layers > self.layers or (self.dense_mlp is None and self.dense_layers):
            raise ValueError(f"Decoder dense_layers must be <= layers and have a dense_mlp, got {self.dense_layers}")

    @property
    def _dense_block(self) -> Block:
        block = self.block
        mlp = block.mlp if self.dense_mlp is None else self.dense_mlp
        return Block(attention=block.attention, mlp=mlp, norm_parameters=block.norm_parameters)

    @property
    def _around(self) -> int:
        return self.block.hidden * self.vocabulary * (1 if self.tied else 2) + self.extra_parameters

    @property
    def parameters(self) -> int:
        """All of them."""
        if self.unlike:
            return sum(layer.parameters for layer in self.unlike) + self._around
        experts = (self.layers - self.dense_layers) * self.block.parameters
        return experts + self.dense_layers * self._dense_block.parameters + self._around

    @property
    def active_parameters(self) -> int:
        """Those that a token meets; the whole embedding among them, as model cards count."""
        if self.unlike:
            return self.parameters - sum(layer.resting for layer in self.unlike)
        experts = (self.layers - self.dense_layers) * self.block.active_parameters
        return experts + self.dense_layers * self._dense_block.parameters + self._around

    def in_stages(self, stages: int) -> list[tuple[Part, ...]]:
        """Return the unlike layers of each of so many stages: as many as can be alike, more in the first."""
        ends = [i * (self.layers // stages) + min(i, self.layers % stages) for i in range(stages + 1)]
        return [self.unlike[first:last] for first, last in pairwise(ends)]

    def flops(self, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
        """FLOPs of a sample of l tokens, the vocabulary head on every token."""
        if self.unlike:
            whole = total(self.unlike)
            head = 2 * self.block.hidden * self.vocabulary
            forward = LengthPolynomial(0, whole.per_token + head, 0, "tokens", whole.pairs)
            return _passes(forward, backward, checkpointing)
        a = (self.layers - self.dense_layers) * self.block.flops_per_token
        a += self.dense_layers * self._dense_block.flops_per_token
        a += 2 * self.block.hidden * self.vocabulary
        b = self.layers * self.block.flops_per_pair // (2 if self.causal else 1)  # four times something: divides
        return _passes(LengthPolynomial(0, a, b, "tokens"), backward, checkpointing)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionEncoder:
    """A vision transformer. The length of a sample is the patches of one image, before any are merged.

    Attributes
    ----------
    block, layers
        As in :class:`Decoder`; attention looks both ways.
    patch_values : int
        Numbers in a patch: channels x height x width (x frames, where several share a patch).
    class_tokens : int
        Tokens that every image has besides its patches.
    window : int, optional
        Patches in a window of attention; images are counted as if cut into whole windows.
    full_layers : int
        Layers that attend to the whole image all the same; only with `window`.
    extra_parameters : int
        Bias of the patch embedding, positions, class token, norms before and after.
    projector : Projector, optional
        The merger that follows, where it is part of the model.
    inner_projectors : tuple of Projector
        Those that follow layers before the last, as DeepStack has them.
    """

    block: Block
    layers: int
    patch_values: int
    class_tokens: int = 0
    window: int | None = None
    full_layers: int = 0
    extra_parameters: int = 0
    projector: Projector | None = None
    inner_projectors: tuple[Projector, ...] = ()

    def __post_init__(self) -> None:
        check_counts(self, 1, "layers", "patch_values")
        check_counts(self, 0, "class_tokens", "full_layers", "extra_parameters")
        if self.window is None:
            if self.full_layers:
                raise ValueError("VisionEncoder full_layers are those without a window: give a window, or none of them")
            return
        check_counts(self, 1, "window")
        if self.class_tokens or self.full_layers > self.layers:
            raise ValueError("VisionEncoder with a window has no class tokens, and full_layers <= layers")

    @property
    def _projectors(self) -> tuple[Projector, ...]:
        return self.inner_projectors + ((self.projector,) if self.projector is not None else ())

    @property
    def parameters(self) -> int:
        """All of them, the projectors' too."""
        around = self.patch_values * self.block.hidden + self.extra_parameters
        return self.layers * self.block.parameters + around + sum(each.parameters for each in self._projectors)

    @property
    def active_parameters(self) -> int:
        """As `parameters`, but for resting experts."""
        return self.parameters - self.layers * (self.block.parameters - self.block.active_parameters)

    def flops(self, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
        """FLOPs of an image of l patches."""
        pair = self.block.flops_per_pair
        per_token = self.layers * self.block.flops_per_token
        if self.window is None:
            per_square = self.layers * pair
        else:
            per_token += (self.layers - self.full_layers) * pair * self.window
            per_square = self.full_layers * pair
        k = self.class_tokens  # l + k tokens go through the blocks
        a = per_token + 2 * k * per_square + 2 * self.patch_values * self.block.hidden
        a += sum(each.flops_per_token for each in self._projectors)
        forward = LengthPolynomial(k * per_token + k * k * per_square, a, per_square, "patches of one image")
        return _passes(forward, backward, checkpointing)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioEncoder:
    """Convolutions that shorten a spectrogram, then a transformer. The length of a sample is its frames.

    Attributes
    ----------
    convolutions : tuple of Convolution
        The stem, in order. A length that its strides do not divide counts as the fraction that it is.
    block, layers
        As in :class:`Decoder`; attention looks both ways.
    extra_parameters : int
        Positions and the final norm.
    projector : Projector, optional
        The pooling or merging that follows, where it is part of the model.
    """

    convolutions: tuple[Convolution, ...]
    block: Block
    layers: int
    extra_parameters: int = 0
    projector: Projector | None = None

    def __post_init__(self) -> None:
        check_counts(self, 1, "layers")
        check_counts(self, 0, "extra_parameters")
        if not self.convolutions or self.convolutions[-1].outputs != self.block.hidden:
            raise ValueError(f"AudioEncoder convolutions must end in {self.block.hidden} outputs, the blocks' hidden")

    @property
    def frames_per_token(self) -> int:
        """By how much the stem shortens."""
        return prod(convolution.stride for convolution in self.convolutions)

    @property
    def parameters(self) -> int:
        """All of them, the projector's too."""
        around = sum(convolution.parameters for convolution in self.convolutions) + self.extra_parameters
        return self.layers * self.block.parameters + around + (self.projector.parameters if self.projector else 0)

    @property
    def active_parameters(self) -> int:
        """As `parameters`, but for resting experts."""
        return self.parameters - self.layers * (self.block.parameters - self.block.active_parameters)

    def flops(self, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
        """FLOPs of a recording of l frames."""
        stride = self.frames_per_token
        per_token = self.layers * self.block.flops_per_token
        if self.projector is not None:
            per_token += self.projector.flops_per_token
        a = exact_quotient(per_token, stride, "blocks")
        b = exact_quotient(self.layers * self.block.flops_per_pair, stride * stride, "attention")
        rest = _passes(LengthPolynomial(0, a, b, "frames"), backward, checkpointing)
        return self.stem_flops(backward=backward, checkpointing=checkpointing) + rest

    def stem_flops(self, *, backward: bool = True, checkpointing: bool = False) -> LengthPolynomial:
        """FLOPs of the convolutions alone, which many trainers run on rows padded to the longest."""
        a, stride = 0, 1
        for convolution in self.convolutions:
            stride *= convolution.stride
            a += exact_quotient(convolution.flops_per_output, stride, "convolution")
        return _passes(LengthPolynomial(0, a, 0, "frames"), backward, checkpointing)
