"""Decoders from the configurations of language models, by ``model_type``: rows of the table of families, and two more.

Models whose layers are alike are one block, many times, and half of the square counts as pairs of tokens; all others
are told layer by layer (:mod:`balancer.cost.hf_layers`).
"""

from collections.abc import Callable
from functools import partial

from balancer.cost.hf_families import FAMILIES, all_sliding, family_decoder
from balancer.cost.hf_layers import ACTIVE_KEYS, EXPERT_KEYS, Family, all_full, head_width, kv_heads_of
from balancer.cost.hf_section import Section, all_biased
from balancer.cost.layers import Attention, Block, Experts, Mlp
from balancer.cost.shapes import Decoder

_ALIKE = ("llama", "internlm2", "gemma", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""Families whose layers are alike, unless a window is shorter than the context."""


def _decoder(section: Section, kind: str) -> Decoder:
    """Return a decoder of layers that are alike, or, where a window is shorter than the context, layer by layer."""
    family = FAMILIES[kind]
    if _windowed(section, family):
        return family_decoder(section, kind)
    attention, layers = _attention(section, family), section.count("num_hidden_layers")
    dense = layers - sum(family.sparse(section, layers))
    plain = _mlp(section, family) if dense else None
    return Decoder(
        block=Block(
            attention=attention,
            mlp=plain if plain is not None and dense == layers else _experts(section, family),
            norm_parameters=family.norms * attention.hidden,
        ),
        layers=layers,
        vocabulary=section.count("vocab_size"),
        tied=section.flag("tie_word_embeddings", family.tied),
        extra_parameters=attention.hidden,
        dense_layers=dense % layers,
        dense_mlp=plain,
    )


def _windowed(section: Section, family: Family) -> bool:
    """Whether layers have a window that is in use and shorter than the context."""
    if family.kinds is all_full or section.raw("sliding_window", None) is None:
        return False
    used = section.flag("use_sliding_window", family.kinds is all_sliding)
    return used and section.count("sliding_window") < section.count("max_position_embeddings")


def _attention(section: Section, family: Family) -> Attention:
    hidden, heads = section.count("hidden_size"), section.count("num_attention_heads")
    kv_heads, head_dim = kv_heads_of(section, heads), head_width(section, family, heads)
    biased = family.bias(section, family.qkv_bias)
    return Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        query_bias=biased,
        key_bias=biased,
        value_bias=biased,
        output_bias=family.bias(section, family.output_bias),
        norm_parameters=2 * head_dim * (family.qk_norm == "head"),
    )


def _mlp(section: Section, family: Family) -> Mlp:
    hidden, width = section.count("hidden_size"), section.count(family.dense_key)
    return Mlp(hidden=hidden, intermediate=width, gated=True, bias=family.bias(section, family.mlp_bias))


def _experts(section: Section, family: Family) -> Experts:
    shared = section.count(family.shared_key, minimum=0) if family.shared_key else 0
    return Experts(
        hidden=section.count("hidden_size"),
        intermediate=section.count(family.expert_key),
        experts=section.any_count(EXPERT_KEYS),
        active=section.any_count(ACTIVE_KEYS),
        shared_intermediate=shared,
        shared_gate=shared > 0,
    )


def _gpt2(section: Section) -> Decoder:
    hidden = section.count("n_embd")
    attention = all_biased(hidden, section.count("n_head"), section, "n_head")
    mlp = Mlp(hidden=hidden, intermediate=section.count("n_inner", 4 * hidden), bias=True)
    return Decoder(
        block=Block(attention=attention, mlp=mlp, norm_parameters=4 * hidden),
        layers=section.count("n_layer"),
        vocabulary=section.count("vocab_size"),
        tied=section.flag("tie_word_embeddings", True),
        extra_parameters=hidden * (section.count("n_positions") + 2),
    )


def _gpt_neox(section: Section) -> Decoder:
    hidden, key = section.count("hidden_size"), "num_attention_heads"
    if not section.flag("attention_bias", True):
        raise section.refuse("attention_bias", False, "must be true")
    mlp = Mlp(hidden=hidden, intermediate=section.count("intermediate_size"), bias=True)
    return Decoder(
        block=Block(
            attention=all_biased(hidden, section.count(key), section, key), mlp=mlp, norm_parameters=4 * hidden
        ),
        layers=section.count("num_hidden_layers"),
        vocabulary=section.count("vocab_size"),
        tied=section.flag("tie_word_embeddings", False),
        extra_parameters=2 * hidden,
    )


qwen2 = partial(_decoder, kind="qwen2")
"""Reads Qwen2, and the language models of Qwen2-VL and Qwen2.5-VL."""

DECODERS: dict[str, Callable[[Section], Decoder]] = {
    **{kind: partial(_decoder if kind in _ALIKE else family_decoder, kind=kind) for kind in FAMILIES},
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), qwen2),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
"""Decoders by ``model_type``."""
