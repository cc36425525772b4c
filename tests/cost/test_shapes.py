"""FLOPs and parameters of shapes: against a walk through every product, and by what must follow from what."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_flops import attention, decoder, mlp, product
from shapes_of import attention_of, decoder_of, layer_of, mixture_of, vision_of

from balancer.cost.hf_config import modules_of
from balancer.cost.parts import Part, linear, projector
from balancer.cost.polynomial import LengthPolynomial
from balancer.cost.shapes import AudioEncoder, Decoder

small = st.integers(1, 6)


@given(
    tokens=st.integers(0, 9), layers=small, hidden=small, kv_heads=small, share=small, head_dim=small, data=st.data()
)
def test_decoder_against_every_product(tokens, layers, hidden, kv_heads, share, head_dim, data):
    intermediate, vocabulary = data.draw(small), data.draw(small)
    gated = data.draw(st.booleans())
    heads = kv_heads * share
    shape = decoder_of(
        attention_of(hidden, heads, kv_heads, head_dim), layers, vocabulary, width=intermediate, gated=gated
    )
    want = decoder(tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, gated, vocabulary)
    assert shape.flops(backward=False).exact(tokens) == want


def test_a_causal_mask_keeps_half_of_the_square_and_half_the_diagonal():
    full = decoder_of(attention_of())
    causal = decoder_of(attention_of(), area="full")
    assert dict(causal.flops().areas)["full"] == full.flops().b
    assert full.flops().a == causal.flops().a
    assert full.parameters == causal.parameters


def test_a_tied_head_costs_flops_and_no_parameters():
    untied, tied = (decoder_of(attention_of(), tied=each) for each in (False, True))
    assert tied.flops() == untied.flops()
    assert untied.parameters - tied.parameters == 50 * 8


def test_passes():
    shape = decoder_of(attention_of())
    forward = shape.flops(backward=False)
    assert shape.flops() == forward * 3
    assert shape.flops(checkpointing=True) == forward * 4
    with pytest.raises(ValueError, match="needs backward=True"):
        shape.flops(backward=False, checkpointing=True)


@given(experts=st.integers(1, 8), data=st.data())
def test_experts_count_by_those_that_are_active(experts, data):
    active, shared = data.draw(st.integers(1, experts)), data.draw(st.integers(0, 5))
    attends = attention_of()
    layers = (layer_of(attends, width=30), *(mixture_of(attends, 20, experts, active, shared),) * 3)
    shape = Decoder.of(attends, layers, 50)
    tokens = 7
    routed = product(tokens, 8, experts) + active * mlp(tokens, 8, 20, True)
    routed += mlp(tokens, 8, shared, True)
    want = 4 * attention(tokens, lambda _: tokens, 8, 4, 2, 6) + 3 * routed + mlp(tokens, 8, 30, True)
    assert shape.flops(backward=False).exact(tokens) == want + product(tokens, 8, 50)
    resting = 3 * (experts - active) * 3 * 8 * 20
    assert shape.parameters - shape.active_parameters == resting
    assert shape.unlike == layers
    assert [len(stage) for stage in shape.in_stages(3)] == [2, 1, 1]


@pytest.mark.parametrize("class_tokens", [0, 1, 3])
def test_vision_encoder_against_every_product(class_tokens):
    around = linear(27, 8) + projector(4, 32, 16, 12)
    shape = vision_of(attention_of(kv_heads=4), around, class_tokens=class_tokens)
    patches = 16
    tokens = patches + class_tokens
    want = 3 * (attention(tokens, lambda _: tokens, 8, 4, 4, 6) + mlp(tokens, 8, 20, True)) + product(patches, 27, 8)
    want += product(patches // 4, 32, 16) + product(patches // 4, 16, 12)
    assert shape.flops(backward=False).exact(patches) == want


WINDOWS = {
    "model_type": "qwen2_5_vl_vision", "depth": 5, "hidden_size": 8, "head_dim": 6, "num_heads": 4,
    "intermediate_size": 20, "in_chans": 3, "patch_size": 3, "temporal_patch_size": 1, "spatial_merge_size": 2,
    "out_hidden_size": 12, "window_size": 6, "fullatt_block_indexes": [1, 4],
}  # fmt: skip


def test_windows_of_attention():
    shape = modules_of(WINDOWS)["vision"]
    patches = 12
    windowed = attention(patches, lambda _: 4, 8, 4, 4, 6)
    full = attention(patches, lambda _: patches, 8, 4, 4, 6)
    want = 3 * windowed + 2 * full + 5 * mlp(patches, 8, 20, True) + product(patches, 27, 8)
    want += product(patches // 4, 32, 32) + product(patches // 4, 32, 12)
    assert shape.flops(backward=False).exact(patches) == want
    assert modules_of({**WINDOWS, "fullatt_block_indexes": []})["vision"].flops().b == 0


WHISPER = {
    "model_type": "whisper", "d_model": 8, "head_dim": 6, "encoder_attention_heads": 4, "encoder_ffn_dim": 20,
    "encoder_layers": 3, "num_mel_bins": 10, "max_source_positions": 12,
}  # fmt: skip


def test_audio_encoder_against_every_product():
    shape = modules_of(WHISPER)["audio"]
    frames, tokens = 24, 12
    want = product(frames, 10 * 3, 8) + product(tokens, 8 * 3, 8)
    want += 3 * (attention(tokens, lambda _: tokens, 8, 4, 4, 6) + mlp(tokens, 8, 20, False))
    assert shape.flops(backward=False).exact(frames) == want
    assert shape.stem_flops(backward=False).exact(frames) == product(frames, 10 * 3, 8) + product(tokens, 8 * 3, 8)
    pooled = dataclasses.replace(shape, around=shape.around + projector(2, 8, 12))
    assert pooled.flops(backward=False).exact(frames) == want + product(6, 8, 12)
    assert shape.frames_per_token == 2


def test_flops_that_a_stride_would_make_fractions():
    shape = AudioEncoder(
        attention=attention_of(), parts=(Part(per_token=7),), around=Part(), stem=1, frames_per_token=3
    )
    with pytest.raises(ValueError, match="must divide by 3"):
        shape.flops()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: attention_of(hidden=0), "Attention hidden must be an integer >= 1, got 0"),
        (lambda: attention_of(head_dim=True), "Attention head_dim must be an integer >= 1, got True"),
        (lambda: attention_of(4, 3, 2), "multiple of kv_heads, got 3 and 2"),
        (lambda: Decoder.of(attention_of(), (), 5), "Decoder must have a layer at least"),
        (lambda: projector(3, 5, 4), "projector weights must divide by 3"),
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
    each = [constant * (length > 0) + a * length + b * length**2 for length in lengths]
    assert [flops.exact(length) for length in lengths] == each
    np.testing.assert_allclose(flops(lengths), np.array(each, dtype=float), rtol=1e-15)
    assert [(flops * 3).exact(length) for length in lengths] == [3 * value for value in each]


def test_pieces_keep_the_constant():
    image = LengthPolynomial(7, 5, 3, "patches of one image")
    tiles = image.in_pieces(4, "tiles")
    assert tiles.exact(6) == 6 * image.exact(4)
    assert str(tiles.cost_model()) == "linear"  # in units of one tile
    with pytest.raises(ValueError, match="length must be >= 1"):
        image.in_pieces(0, "tiles")
