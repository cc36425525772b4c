"""FLOPs and parameters of shapes: against a walk through every product, and by what must follow from what."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_flops import attention, decoder, mlp, product

from balancer.cost.layers import Attention, Block, Convolution, Experts, Mlp, Projector
from balancer.cost.polynomial import LengthPolynomial
from balancer.cost.shapes import AudioEncoder, Decoder, VisionEncoder


def block_of(hidden=8, heads=4, kv_heads=2, head_dim=6, intermediate=20, gated=True):
    return Block(
        attention=Attention(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim),
        mlp=Mlp(hidden=hidden, intermediate=intermediate, gated=gated),
        norm_parameters=2 * hidden,
    )


small = st.integers(1, 6)


@given(
    tokens=st.integers(0, 9), layers=small, hidden=small, kv_heads=small, share=small, head_dim=small, data=st.data()
)
def test_decoder_against_every_product(tokens, layers, hidden, kv_heads, share, head_dim, data):
    intermediate, vocabulary = data.draw(small), data.draw(small)
    gated = data.draw(st.booleans())
    heads = kv_heads * share
    shape = Decoder(
        block=block_of(hidden, heads, kv_heads, head_dim, intermediate, gated),
        layers=layers,
        vocabulary=vocabulary,
        causal=False,
    )
    want = decoder(tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, gated, vocabulary)
    assert shape.flops(backward=False).exact(tokens) == want


def test_a_causal_mask_halves_the_attention_square():
    causal = Decoder(block=block_of(), layers=3, vocabulary=50)
    full = dataclasses.replace(causal, causal=False)
    assert full.flops().b == 2 * causal.flops().b
    assert full.flops().a == causal.flops().a
    assert full.parameters == causal.parameters


def test_a_tied_head_costs_flops_and_no_parameters():
    untied = Decoder(block=block_of(), layers=3, vocabulary=50)
    tied = dataclasses.replace(untied, tied=True)
    assert tied.flops() == untied.flops()
    assert untied.parameters - tied.parameters == 50 * 8


def test_passes():
    shape = Decoder(block=block_of(), layers=3, vocabulary=50)
    forward = shape.flops(backward=False)
    assert shape.flops() == forward * 3
    assert shape.flops(checkpointing=True) == forward * 4
    with pytest.raises(ValueError, match="needs backward=True"):
        shape.flops(backward=False, checkpointing=True)


@given(experts=st.integers(1, 8), data=st.data())
def test_experts_count_by_those_that_are_active(experts, data):
    active, shared = data.draw(st.integers(1, experts)), data.draw(st.integers(0, 5))
    mixture = Experts(hidden=8, intermediate=20, experts=experts, active=active, shared_intermediate=shared)
    attends = Attention(hidden=8, heads=4, kv_heads=2, head_dim=6)
    shape = Decoder(
        block=Block(attention=attends, mlp=mixture, norm_parameters=16),
        layers=4,
        vocabulary=50,
        causal=False,
        dense_layers=1,
        dense_mlp=Mlp(hidden=8, intermediate=30, gated=True),
    )
    tokens = 7
    routed = product(tokens, 8, experts) + active * mlp(tokens, 8, 20, True)
    routed += mlp(tokens, 8, shared, True)
    want = 4 * attention(tokens, lambda _: tokens, 8, 4, 2, 6) + 3 * routed + mlp(tokens, 8, 30, True)
    assert shape.flops(backward=False).exact(tokens) == want + product(tokens, 8, 50)
    resting = 3 * (experts - active) * 3 * 8 * 20
    assert shape.parameters - shape.active_parameters == resting


@pytest.mark.parametrize("class_tokens", [0, 1, 3])
def test_vision_encoder_against_every_product(class_tokens):
    projector = Projector(merge=4, widths=(32, 16, 12))
    shape = VisionEncoder(
        block=block_of(kv_heads=4), layers=3, patch_values=27, class_tokens=class_tokens, projector=projector
    )
    patches = 16
    tokens = patches + class_tokens
    want = 3 * (attention(tokens, lambda _: tokens, 8, 4, 4, 6) + mlp(tokens, 8, 20, True)) + product(patches, 27, 8)
    want += product(patches // 4, 32, 16) + product(patches // 4, 16, 12)
    assert shape.flops(backward=False).exact(patches) == want


def test_windows_of_attention():
    shape = VisionEncoder(block=block_of(kv_heads=4), layers=5, patch_values=27, window=4, full_layers=2)
    patches = 12
    windowed = attention(patches, lambda _: 4, 8, 4, 4, 6)
    full = attention(patches, lambda _: patches, 8, 4, 4, 6)
    want = 3 * windowed + 2 * full + 5 * mlp(patches, 8, 20, True) + product(patches, 27, 8)
    assert shape.flops(backward=False).exact(patches) == want
    everywhere = dataclasses.replace(shape, full_layers=0)
    assert everywhere.flops().b == 0


def test_audio_encoder_against_every_product():
    stem = (Convolution(inputs=10, outputs=8, kernel=3), Convolution(inputs=8, outputs=8, kernel=5, stride=2))
    shape = AudioEncoder(
        convolutions=stem, block=block_of(kv_heads=4), layers=3, projector=Projector(merge=2, widths=(8, 12))
    )
    frames, tokens = 24, 12
    want = product(frames, 10 * 3, 8) + product(tokens, 8 * 5, 8)
    want += 3 * (attention(tokens, lambda _: tokens, 8, 4, 4, 6) + mlp(tokens, 8, 20, True)) + product(6, 8, 12)
    assert shape.flops(backward=False).exact(frames) == want
    assert shape.frames_per_token == 2


def test_flops_that_a_stride_would_make_fractions():
    stem = (Convolution(inputs=1, outputs=1, kernel=1, stride=3),)
    shape = AudioEncoder(convolutions=stem, block=block_of(hidden=1, heads=1, kv_heads=1, head_dim=1), layers=1)
    with pytest.raises(ValueError, match="must divide by 3"):
        shape.flops()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Attention(hidden=0, heads=1, kv_heads=1, head_dim=1),
            "Attention hidden must be an integer >= 1, got 0",
        ),
        (lambda: Attention(hidden=4, heads=3, kv_heads=2, head_dim=1), "multiple of kv_heads, got 3 and 2"),
        (lambda: Mlp(hidden=4, intermediate=2.5), "Mlp intermediate must be an integer >= 1, got 2.5"),
        (lambda: Experts(hidden=4, intermediate=2, experts=2, active=3), "active must be <= experts, got 3 of 2"),
        (lambda: Decoder(block=block_of(), layers=True, vocabulary=5), "Decoder layers"),
        (lambda: Decoder(block=block_of(), layers=2, vocabulary=5, dense_layers=1), "dense_layers"),
        (lambda: VisionEncoder(block=block_of(), layers=2, patch_values=5, full_layers=1), "full_layers"),
        (lambda: VisionEncoder(block=block_of(), layers=2, patch_values=5, window=4, class_tokens=1), "class tokens"),
        (lambda: AudioEncoder(convolutions=(), block=block_of(), layers=1), "must end in 8 outputs"),
        (lambda: Projector(merge=1, widths=(5,)), "widths"),
        (lambda: LengthPolynomial(0, -1, 0), "coefficient a"),
    ],
)
def test_impossible_shapes_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


lengths_in = st.lists(st.integers(0, 2**24), max_size=20)


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**24), lengths_in)
def test_polynomial(constant, a, b, lengths):
    flops = LengthPolynomial(constant, a, b)
    each = [constant + a * length + b * length**2 for length in lengths]
    assert [flops.exact(length) for length in lengths] == each
    assert flops.total(lengths) == sum(each)
    np.testing.assert_allclose(flops(lengths), np.array(each, dtype=float), rtol=1e-15)
    assert (flops + flops * 2).total(lengths) == 3 * sum(each)


def test_lengths_of_two_units_do_not_add_up():
    with pytest.raises(ValueError, match="one unit"):
        LengthPolynomial(0, 1, 0, "tokens") + LengthPolynomial(0, 1, 0, "frames")


def test_pieces_keep_the_constant():
    image = LengthPolynomial(7, 5, 3, "patches of one image")
    tiles = image.in_pieces(4, "tiles")
    assert tiles.exact(6) == 6 * image.exact(4)
    assert str(tiles.cost_model()) == "linear"  # in units of one tile
    with pytest.raises(ValueError, match="length must be >= 1"):
        image.in_pieces(0, "tiles")
