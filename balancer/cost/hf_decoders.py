"""Decoders from the configurations of language models, one function a family."""

from collections.abc import Callable
from functools import partial
from typing import Any

from balancer.cost.hf_families import FAMILIES, family_decoder
from balancer.cost.hf_section import Section, all_biased, head_dim_of
from balancer.cost.layers import Attention, Block, Experts, Mlp
from balancer.cost.shapes import Decoder

__all__ = ["DECODERS", "qwen2"]


def _windowed(
    kind: str, plain: Callable[[Section], Decoder], switch: str | None = None
) -> Callable[[Section], Decoder]:
    """Read layers one by one where some have a window that is shorter than the context; all alike elsewhere."""

    def read(section: Section) -> Decoder:
        used = switch is None or section.flag(switch, False)
        if not used or section.raw("sliding_window", None) is None:
            return plain(section)
        shorter = section.count("sliding_window") < section.count("max_position_embeddings")
        return family_decoder(section, kind) if shorter else plain(section)

    return read


def _attention(
    section: Section, *, qkv_bias: bool = False, output_bias: bool = False, qk_norm: bool = False
) -> Attention:
    hidden, heads = section.count("hidden_size"), section.count("num_attention_heads")
    kv_heads = section.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise section.refuse("num_key_value_heads", kv_heads, f"must divide num_attention_heads {heads}")
    head_dim = head_dim_of(section, hidden, heads)
    return Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        query_bias=qkv_bias,
        key_bias=qkv_bias,
        value_bias=qkv_bias,
        output_bias=output_bias,
        norm_parameters=2 * head_dim * qk_norm,
    )


def _decoder(section: Section, attention: Attention, mlp: Mlp | Experts, *, tied: bool, **more: Any) -> Decoder:
    """RMSNorm before attention, before the MLP, and at the end."""
    return Decoder(
        block=Block(attention=attention, mlp=mlp, norm_parameters=2 * attention.hidden),
        layers=section.count("num_hidden_layers"),
        vocabulary=section.count("vocab_size"),
        tied=section.flag("tie_word_embeddings", tied),
        extra_parameters=attention.hidden,
        **more,
    )


def _gated(section: Section, bias: bool = False) -> Mlp:
    return Mlp(
        hidden=section.count("hidden_size"), intermediate=section.count("intermediate_size"), gated=True, bias=bias
    )


def _llama(section: Section) -> Decoder:
    bias = section.flag("attention_bias", section.flag("bias", False))
    attention = _attention(section, qkv_bias=bias, output_bias=bias)
    return _decoder(section, attention, _gated(section, section.flag("mlp_bias", False)), tied=False)


def _mistral(section: Section) -> Decoder:
    return _decoder(section, _attention(section), _gated(section), tied=False)


def _gemma(section: Section) -> Decoder:
    return _decoder(section, _attention(section), _gated(section), tied=True)


def _qwen2(section: Section) -> Decoder:
    """Biases on queries, keys and values alone; so have the language models of Qwen2-VL and Qwen2.5-VL."""
    return _decoder(section, _attention(section, qkv_bias=True), _gated(section), tied=False)


def _qwen3(section: Section) -> Decoder:
    bias = section.flag("attention_bias", False)
    attention = _attention(section, qkv_bias=bias, output_bias=bias, qk_norm=True)
    return _decoder(section, attention, _gated(section), tied=False)


def _num_experts(section: Section, key: str, other: str) -> int:
    """Newer versions of the library save one family's key under the other's name."""
    return section.count(other if section.raw(key, None) is None and section.raw(other, None) is not None else key)


def _mixtral(section: Section) -> Decoder:
    experts = Experts(
        hidden=section.count("hidden_size"),
        intermediate=section.count("intermediate_size"),
        experts=_num_experts(section, "num_local_experts", "num_experts"),
        active=section.count("num_experts_per_tok"),
    )
    return _decoder(section, _attention(section), experts, tied=False)


def _qwen_moe(section: Section, attention: Attention, shared: int) -> Decoder:
    experts = Experts(
        hidden=attention.hidden,
        intermediate=section.count("moe_intermediate_size"),
        experts=_num_experts(section, "num_experts", "num_local_experts"),
        active=section.count("num_experts_per_tok"),
        shared_intermediate=shared,
        shared_gate=shared > 0,
    )
    layers, every = section.count("num_hidden_layers"), section.count("decoder_sparse_step", 1)
    plain = section.raw("mlp_only_layers", [])
    if not isinstance(plain, list):
        raise section.refuse("mlp_only_layers", plain, "must be a list")
    dense = sum(1 for i in range(layers) if i in plain or (i + 1) % every)
    more = {"dense_layers": dense, "dense_mlp": _gated(section)} if dense else {}
    return _decoder(section, attention, experts, tied=False, **more)


def _qwen2_moe(section: Section) -> Decoder:
    shared = section.count("shared_expert_intermediate_size", minimum=0)
    return _qwen_moe(section, _attention(section, qkv_bias=True), shared)


def _qwen3_moe(section: Section) -> Decoder:
    bias = section.flag("attention_bias", False)
    return _qwen_moe(section, _attention(section, qkv_bias=bias, output_bias=bias, qk_norm=True), 0)


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


_SWITCH = "use_sliding_window"
qwen2 = _windowed("qwen2", _qwen2, _SWITCH)
"""Reads Qwen2, and the language models of Qwen2-VL and Qwen2.5-VL."""

DECODERS: dict[str, Callable[[Section], Decoder]] = {
    **{kind: partial(family_decoder, kind=kind) for kind in FAMILIES},
    **dict.fromkeys(("llama", "internlm2"), _llama),
    "mistral": _windowed("mistral", _mistral),
    "gemma": _gemma,
    **dict.fromkeys(("qwen2", "qwen2_vl_text", "qwen2_5_vl_text"), qwen2),
    "qwen3": _windowed("qwen3", _qwen3, _SWITCH),
    "mixtral": _windowed("mixtral", _mixtral),
    "qwen2_moe": _windowed("qwen2_moe", _qwen2_moe, _SWITCH),
    "qwen3_moe": _windowed("qwen3_moe", _qwen3_moe, _SWITCH),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
"""Decoders by ``model_type``."""
