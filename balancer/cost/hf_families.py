"""Families of language models whose layers are unlike, a row each: see :class:`balancer.cost.hf_layers.Family`.

Multi-token heads are not counted: transformers does not build them. Of experts that do nothing (LongCat-Flash) a token
is taken to choose as many as if all were chosen alike.
"""

from dataclasses import replace

from balancer.cost.hf_layers import (
    CHUNKED,
    FULL,
    INDEXED,
    REUSED,
    SCANNED,
    SLIDING,
    Family,
    all_experts,
    all_full,
    decoder_of,
    delta_net,
    every,
    experts_of,
    first_dense,
    grouped_of,
    kimi_delta,
    latent_of,
    mamba_1,
    mamba_2,
    mlp_of,
    no_experts,
    short_conv,
)
from balancer.cost.hf_section import Section
from balancer.cost.parts import Part, linear, mlp, norm, total
from balancer.cost.shapes import Decoder


def _llama_4_kinds(section: Section, layers: int) -> list[str]:
    listed = section.raw("no_rope_layers", None) or []
    every_nth = section.count("no_rope_layer_interval", 4)
    rope = listed if len(listed) == layers else [(i + 1) % every_nth for i in range(layers)]
    if listed and len(listed) != layers:
        raise section.refuse("no_rope_layers", len(listed), f"must be a list of {layers}")
    return [CHUNKED if each else FULL for each in rope]


def _llama_4_experts(section: Section, layers: int) -> list[bool]:
    step = section.count("interleave_moe_layer_step", 1)
    return _listed(section, "moe_layers", list(range(step - 1, layers, step)), layers)


def _listed(section: Section, key: str, default: list[int], layers: int) -> list[bool]:
    found = section.raw(key, default)
    if not isinstance(found, list) or not all(isinstance(i, int) and 0 <= i < layers for i in found):
        raise section.refuse(key, found, f"must be a list of layers from 0 to {layers - 1}")
    return [i in found for i in range(layers)]


def _sparse_step(section: Section, layers: int) -> list[bool]:
    plain, step = _listed(section, "mlp_only_layers", [], layers), section.count("decoder_sparse_step", 1)
    return [not plain[i] and (i + 1) % step == 0 for i in range(layers)]


def _jamba_kinds(section: Section, layers: int) -> list[str]:
    of = section.count("attn_layer_period", 8), section.count("attn_layer_offset", 4, minimum=0)
    return [FULL if i % of[0] == of[1] else SCANNED for i in range(layers)]


def _jamba_experts(section: Section, layers: int) -> list[bool]:
    of = section.count("expert_layer_period", 2), section.count("expert_layer_offset", 1, minimum=0)
    return [section.count("num_experts", 16) > 1 and i % of[0] == of[1] for i in range(layers)]


def _ernie_experts(section: Section, layers: int) -> list[bool]:
    first, step = section.count("moe_layer_start_index", 1, minimum=0), section.count("moe_layer_interval", 1)
    last = section.count("moe_layer_end_index", -1, minimum=-1)
    last = layers - 1 if last < 0 else last
    return [first <= i <= last and (i + 1) % step == 0 for i in range(layers)]


def _all_scanned(section: Section, layers: int) -> list[str]:
    return [SCANNED] * layers


_PATTERN = {"M": SCANNED, "E": "moe", "*": FULL, "-": "mlp"}


def _nemotron_kinds(section: Section, layers: int) -> list[str]:
    found = section.raw("hybrid_override_pattern", None)
    if found is None:
        raise section.refuse("layers_block_type", None, "must list the layers, where no hybrid_override_pattern does")
    if not isinstance(found, str) or len(found) != layers or not set(found) <= set(_PATTERN):
        raise section.refuse("hybrid_override_pattern", found, f"must be {layers} letters of {', '.join(_PATTERN)}")
    return [_PATTERN[letter] for letter in found]


def _lfm2_kinds(section: Section, layers: int) -> list[str]:
    full = _listed(section, "full_attn_idxs", list(range(layers)), layers)
    return [FULL if each else "conv" for each in full]


def _kimi_kinds(section: Section, layers: int) -> list[str]:
    nested = section.raw("linear_attn_config", {})
    full = nested.get("full_attn_layers") if isinstance(nested, dict) else None
    return [FULL if (i + 1 in full if full is not None else i and i % 4 == 0) else SCANNED for i in range(layers)]


def _granite_experts(section: Section, layers: int) -> list[bool]:
    return [section.count("num_local_experts", 8, minimum=0) > 0] * layers


def all_sliding(section: Section, layers: int) -> list[str]:
    """Return all sliding, if there is a window that is in use."""
    used = section.raw("sliding_window", None) is not None and section.flag("use_sliding_window", True)
    return [SLIDING if used else FULL] * layers


def _from_layer(section: Section, layers: int) -> list[str]:
    """Return the first so many full, then sliding, as Qwen2 has it."""
    if not section.flag("use_sliding_window", False) or section.raw("sliding_window", None) is None:
        return [FULL] * layers
    full = section.count("max_window_layers", layers, minimum=0)
    return [FULL if i < full else SLIDING for i in range(layers)]


def _smollm_kinds(section: Section, layers: int) -> list[str]:
    used = section.flag("use_sliding_window", False) and section.raw("sliding_window", None) is not None
    rope = section.raw("no_rope_layers", None) or [
        (i + 1) % section.count("no_rope_layer_interval", 4) for i in range(layers)
    ]
    if len(rope) != layers:
        raise section.refuse("no_rope_layers", len(rope), f"must be a list of {layers}")
    return [SLIDING if used and not each else FULL for each in rope]


def _mimo_kinds(section: Section, layers: int) -> list[str]:
    listed = section.raw("hybrid_layer_pattern", None)
    if listed is None:
        return [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers:
        raise section.refuse("hybrid_layer_pattern", str(listed), f"must be a list of {layers}")
    return [SLIDING if each else FULL for each in listed]


def _indexed(section: Section, layers: int) -> list[str]:
    """Return which layers choose keys, and which take those that a layer before has chosen."""
    kinds = section.raw("indexer_types", None)
    if kinds is None:
        period, offset = section.count("index_topk_freq", 1), section.count("index_skip_topk_offset", 2, minimum=0)
        pattern = section.raw("index_topk_pattern", None)
        kinds = [{"F": "full", "S": "shared"}.get(each, each) for each in pattern] if pattern else [
            "full" if max(i - offset + 1, 0) % period == 0 else "shared" for i in range(layers)]  # fmt: skip
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"full", "shared"}:
        raise section.refuse("indexer_types", str(kinds), f"must be a list of {layers} of full, shared")
    return [INDEXED if kind == "full" else REUSED for kind in kinds]


def _lfm2_width(section: Section) -> int:
    """Return the width of MLPs as it is after adjusting."""
    width = section.any_count(("block_ff_dim", "intermediate_size"))
    if not section.flag("block_auto_adjust_ff_dim", True):
        return width
    multiple, times = section.count("block_multiple_of", 256), section.raw("block_ffn_dim_multiplier", 1.0)
    return -(-int(times * int(2 * width / 3)) // multiple) * multiple


def _falcon_h1(section: Section, family: Family) -> Part:
    inside = section.beside({"mamba_rms_norm": section.flag("mamba_rms_norm", False)})
    both = grouped_of(section, family, FULL) + mamba_2(inside, family, SCANNED)
    bias = family.bias(section, family.mlp_bias)
    hidden = section.count("hidden_size")
    return both + mlp(hidden, section.count("intermediate_size"), bias=bias) + norm(hidden, hidden)


def _longcat(section: Section, family: Family) -> Part:
    """Two attentions and two MLPs a layer, and experts beside them, of which some do nothing."""
    hidden = section.count("hidden_size")
    twice = latent_of(section, family, FULL) + mlp_of(section, family) + norm(hidden, hidden)
    return twice * 2 + experts_of(section, family)


def _gemma_4_inputs(section: Section) -> Part:
    """An embedding of its own for every layer, projected, gated and added."""
    hidden, width = section.count("hidden_size"), section.count("hidden_size_per_layer_input", 256, minimum=0)
    if not width:
        return Part()
    table = norm(section.count("vocab_size_per_layer_input", 262144) * width)
    return total((table, linear(hidden, width) * 2, linear(width, hidden), norm(hidden)))


_QWEN_3 = Family(qk_norm="head", kinds=_from_layer)
_SPARSE = {"sparse": first_dense()}
_LATENT = Family(mixers={FULL: latent_of}, output_bias=False)
_DEEPSEEK = replace(_LATENT, sparse=first_dense())
_DSA = replace(
    _DEEPSEEK, kinds=_indexed, sparse=first_dense(3),
    mixers={INDEXED: latent_of, REUSED: latent_of}, own_kinds=True,
    fixed={"layer_types": (None, INDEXED, "deepseek_sparse_attention")},
)  # fmt: skip
_KIMI = replace(_DEEPSEEK, mixers={FULL: latent_of, SCANNED: kimi_delta})
_QWEN_3_NEXT = Family(
    kinds=every(4, "full_attention_interval", SCANNED), mixers={SCANNED: delta_net}, qk_norm="head",
    doubled_queries=True, sparse=_sparse_step, shared_key="shared_expert_intermediate_size", shared_gate=True,
)  # fmt: skip
_GEMMA_3 = Family(kinds=every(6, "sliding_window_pattern"), qk_norm="head", norms=4, tied=True)
_ERNIE = Family(
    qkv_bias=("use_bias", False), output_bias=("use_bias", False), mlp_bias=("use_bias", False), tied=True
)  # fmt: skip
_LFM_2 = Family(
    kinds=_lfm2_kinds, mixers={"conv": short_conv}, qkv_bias=False, output_bias=False, qk_norm="head", tied=True
)  # fmt: skip
_LLAMA = Family(mlp_bias=("mlp_bias", False))
_PLAIN = Family(qkv_bias=False, output_bias=False, kinds=all_sliding)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "internlm2": replace(_LLAMA, qkv_bias=("bias", False), output_bias=("bias", False)),
    "gemma": Family(tied=True),
    "mistral": _PLAIN,
    "ministral": _PLAIN,
    "mixtral": replace(_PLAIN, sparse=all_experts, expert_key="intermediate_size"),
    "qwen2_moe": Family(
        qkv_bias=True, output_bias=False, kinds=_from_layer, sparse=_sparse_step,
        shared_key="shared_expert_intermediate_size", shared_gate=True,
    ),
    "qwen2": Family(qkv_bias=True, output_bias=False, kinds=_from_layer),
    "qwen3": _QWEN_3,
    "qwen3_moe": replace(_QWEN_3, sparse=_sparse_step),
    "qwen3_vl_text": replace(_QWEN_3, kinds=all_full),
    "qwen3_vl_moe_text": replace(_QWEN_3, kinds=all_full, sparse=_sparse_step),
    "qwen3_omni_moe_text": replace(_QWEN_3, sparse=_sparse_step),
    "qwen3_next": _QWEN_3_NEXT,
    "qwen3_5_text": replace(_QWEN_3_NEXT, sparse=no_experts),
    "qwen3_5_moe_text": replace(_QWEN_3_NEXT, sparse=all_experts),
    "phi3": replace(_PLAIN, own_heads=False),
    "gemma2": replace(_GEMMA_3, kinds=every(2), qk_norm=""),
    "gemma3_text": _GEMMA_3,
    "gemma4_text": replace(_GEMMA_3, kinds=every(6), beside=_gemma_4_inputs, once="hidden_size_per_layer_input"),
    "gpt_oss": Family(
        kinds=every(2), qkv_bias=("attention_bias", True), output_bias=("attention_bias", True), sinks=(FULL, SLIDING),
        sparse=all_experts, expert_key="intermediate_size", expert_bias=True,
    ),
    "olmo3": Family(kinds=every(4), qk_norm="wide", own_heads=False),
    "olmo_hybrid": Family(
        kinds=every(4, others=SCANNED), mixers={SCANNED: delta_net}, qk_norm="wide", own_heads=False,
    ),
    "cohere2": Family(kinds=every(4, "sliding_window_pattern"), norms=1, tied=True, own_heads=False),
    "llama4_text": Family(
        kinds=_llama_4_kinds, sparse=_llama_4_experts, expert_key="intermediate_size",
        dense_key="intermediate_size_mlp", shared_key="intermediate_size",
    ),
    "smollm3": Family(kinds=_smollm_kinds, mlp_bias=("mlp_bias", False), tied=True),
    "seed_oss": Family(
        qkv_bias=("attention_bias", True), output_bias=("attention_out_bias", False), mlp_bias=("mlp_bias", False)
    ),
    "exaone4": Family(kinds=every(4, "sliding_window_pattern"), qkv_bias=False, output_bias=False, qk_norm="head"),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(_ERNIE, sparse=_ernie_experts, extra_per_expert=1),
    "hy_v3": Family(qk_norm="head", sparse=first_dense(1), mlp_bias=("mlp_bias", False)),
    "afmoe": Family(
        kinds=every(4, "global_attn_every_n_layers"), qk_norm="head", gated_outputs=True, norms=4,
        sparse=first_dense(1), extra_per_expert=1,
    ),
    "minimax_m2": Family(
        qkv_bias=False, output_bias=False, qk_norm="wide", sparse=all_experts, expert_key="intermediate_size",
        fixed={"attn_type_list": (None, 1), "shared_intermediate_size": (None, 0)},
    ),
    "glm4_moe": Family(output_bias=False, qk_norm="head", qk_norm_key="use_qk_norm", sparse=first_dense(1)),
    "mimo_v2_flash": Family(
        kinds=_mimo_kinds, output_bias=False, sliding_kv=2, sinks=(SLIDING,), sparse=first_dense(1)
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": replace(_DEEPSEEK, sparse=first_dense(3)),
    "deepseek_v32": _DSA,
    "glm_moe_dsa": _DSA,
    "glm4_moe_lite": replace(_DEEPSEEK, sparse=first_dense(1)),
    "mistral4": _DEEPSEEK,
    "longcat_flash": replace(
        _LATENT, layer=_longcat, dense_key="ffn_hidden_size", expert_key="expert_ffn_hidden_size"
    ),
    "kimi_linear": replace(_KIMI, kinds=_kimi_kinds, sparse=first_dense(1)),
    "bailing_hybrid": replace(
        _KIMI, kinds=every(6, "layer_group_size", SCANNED), sparse=first_dense(2), gated_outputs=True
    ),
    "jamba": Family(
        kinds=_jamba_kinds, mixers={SCANNED: mamba_1}, qkv_bias=False, output_bias=False, own_heads=False,
        sparse=_jamba_experts, expert_key="intermediate_size",
    ),
    "granitemoehybrid": Family(
        kinds=_all_scanned, mixers={SCANNED: mamba_2}, own_heads=False, sparse=_granite_experts,
        expert_key="intermediate_size", shared_key="shared_intermediate_size", dense_key="shared_intermediate_size",
    ),
    "falcon_h1": Family(layer=_falcon_h1, mlp_bias=("mlp_bias", False), own_heads=True),
    "nemotron_h": Family(
        kinds=_nemotron_kinds, mixers={SCANNED: mamba_2}, norms=1, gated_mlp=False, apart=True,
        shared_key="moe_shared_expert_intermediate_size", mlp_bias=("mlp_bias", False),
    ),
    "lfm2": _LFM_2,
    "lfm2_moe": replace(_LFM_2, sparse=first_dense(2)),
}  # fmt: skip
"""Families by ``model_type``."""

TEXT_KEYS: dict[str, tuple[str, str]] = {
    "gemma3": ("text_config", "gemma3_text"),
    "gemma4": ("text_config", "gemma4_text"),
    "llama4": ("text_config", "llama4_text"),
    "qwen3_vl": ("text_config", "qwen3_vl_text"),
    "qwen3_vl_moe": ("text_config", "qwen3_vl_moe_text"),
    "qwen3_5": ("text_config", "qwen3_5_text"),
    "qwen3_5_moe": ("text_config", "qwen3_5_moe_text"),
    "qwen3_omni_moe": ("thinker_config.text_config", "qwen3_omni_moe_text"),
    "kimi_k25": ("text_config", "deepseek_v3"),
    "mistral3": ("text_config", "mistral"),
}
"""Models of several parts whose language model alone is read: where it lies, and its type if it says none."""


def family_decoder(section: Section, kind: str) -> Decoder:
    """Return the language model of a configuration of one of these families."""
    own: dict[str, object] = {}
    layers = "num_hidden_layers"
    if kind == "lfm2":
        own["intermediate_size"] = _lfm2_width(section)
    if kind == "mimo_v2_flash" and section.raw("sliding_window_size", None) is not None:
        own["sliding_window"] = section.count("sliding_window_size") + 1  # keys before the query
    if kind == "gemma4_text" and not section.present(("global_head_dim", "per_layer_config")):
        own["global_head_dim"] = 512
    if kind == "nemotron_h" and section.raw(layers, None) is None:
        pattern = section.raw("hybrid_override_pattern", section.raw("layers_block_type", []))
        own[layers] = len(pattern) if isinstance(pattern, str | list) else 0
    if kind == "longcat_flash" and section.raw("num_layers", None) is not None:
        layers = "num_layers"
    return decoder_of(section.beside(own), FAMILIES[kind], layers)
