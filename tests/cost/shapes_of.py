"""Layers and modules of small sizes, put together of parts."""

from balancer.cost.parts import Attention, Part, attend, experts, linear, mlp
from balancer.cost.shapes import Decoder, VisionEncoder


def attention_of(hidden=8, heads=4, kv_heads=2, head_dim=6):
    return Attention(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def mixer_of(shape, area="bidirectional"):
    """Projections of queries, keys, values and outputs, and the products between tokens."""
    wide, narrow, dim = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.head_dim
    products = attend(shape.heads, shape.kv_heads, dim, dim, area)
    return linear(shape.hidden, wide) + linear(shape.hidden, 2 * narrow) + linear(wide, shape.hidden) + products


def layer_of(shape, width=20, gated=True, area="bidirectional"):
    """A layer with the norms that its inputs go through."""
    norms = Part(parameters=2 * shape.hidden, kept=3 * shape.hidden)
    return norms + mixer_of(shape, area) + mlp(shape.hidden, width, gated=gated)


def mixture_of(shape, width, number, active, shared=0):
    """A layer with experts, and one that all tokens share."""
    parts = mixer_of(shape) + linear(shape.hidden, number) + experts(mlp(shape.hidden, width), number, active)
    return parts + mlp(shape.hidden, shared) if shared else parts


def decoder_of(shape, layers=3, vocabulary=50, *, tied=False, **sizes):
    return Decoder.of(shape, (layer_of(shape, **sizes),) * layers, vocabulary, tied=tied)


def vision_of(shape, around, layers=3, class_tokens=0, **sizes):
    return VisionEncoder(
        attention=shape, parts=(layer_of(shape, **sizes),) * layers, around=around, class_tokens=class_tokens
    )
