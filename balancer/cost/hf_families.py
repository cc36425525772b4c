"""Families whose reading was checked against the library's own classes, and what each fills in where no key says it.

Most families say all by their keys and have an empty row. A row is of names of things in
:mod:`balancer.cost.hf_keys`, of keys, and of:

- ``others``, ``nth``, ``first``: the kinds of most layers, of every ``full_every``-th one and of the first;
- ``window_used``: whether a window that is given is used;
- ``gate``: attention's outputs are gated by as many outputs more; ``gated``: MLPs have three matrices;
- ``bias``, ``qkv_bias``: whether all matrices, or those of queries, keys and values, have biases;
- ``mixers``, ``beside``: two mixers a layer, or another kind beside attention;
- ``moe``: the number of experts is needed;
- ``half``: full layers count as l^2 / 2 pairs, as tables of MFU do, not as l (l + 1) / 2;
- ``keys``: the key that a thing has in this family.
"""

from typing import Any, NamedTuple

_EVERY_4, _EVERY_6 = ({"others": "window", "full_every": period} for period in (4, 6))
_ALL_WINDOWS = {"others": "window", "window_used": True}
_LAST_WINDOWS = {"others": "window", "window_used": False}  # those from ``max_window_layers`` on
_EXPERTS_AS_MLP = {"moe": True, "keys": {"expert_width": "intermediate_size"}}
_DELTA = {"others": "scan", "full_every": 4, "gate": True}
_GEMMA = {**_EVERY_6, "tied": True}
_QWEN_MOE = {**_LAST_WINDOWS, "moe": True, "half": True}
_BIASED = {"gated": False, "bias": True, "half": True}
_ONE_DENSE, _THREE_DENSE = ({"moe": True, "first_dense": dense} for dense in (1, 3))

FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {**_EVERY_4, **_ONE_DENSE, "gate": True},
    "bailing_hybrid": {"others": "scan", "full_every": 6, "moe": True, "first_dense": 2, "gate": True},
    "cohere2": {**_EVERY_4, "tied": True},
    "deepseek_v2": {"moe": True, "active": 6},
    "deepseek_v3": _THREE_DENSE,
    "deepseek_v32": _THREE_DENSE,
    "ernie4_5": {"tied": True},
    "ernie4_5_moe": {**_ONE_DENSE, "tied": True},
    "exaone4": _EVERY_4,
    "falcon_h1": {"beside": "scan"},
    "gemma": {"tied": True, "half": True},
    "gemma2": {**_GEMMA, "full_every": 2},
    "gemma3_text": _GEMMA,
    "gemma4_text": {**_GEMMA, "global_head_dim": 512, "hidden_size_per_layer_input": 256},
    "glm4_moe": {**_ONE_DENSE, "uneven_heads": True},
    "glm4_moe_lite": _ONE_DENSE,
    "glm_moe_dsa": _THREE_DENSE,
    "gpt2": {**_BIASED, "tied": True, "mlp_ratio": 4, "keys": {"mlp": "n_inner"}},
    "gpt_neox": {**_BIASED, "keys": {"kv_heads": "num_attention_heads"}},
    "gpt_oss": {**_EXPERTS_AS_MLP, "others": "window", "full_every": 2},
    "granitemoehybrid": {
        "others": "scan", "experts": 8,
        "keys": {"expert_width": "intermediate_size", "mlp": "shared_intermediate_size"},
    },
    "hy_v3": _ONE_DENSE,
    "internlm2": {"half": True},
    "jamba": {
        **_EXPERTS_AS_MLP, "others": "scan", "full_every": 8, "attn_layer_offset": 4, "experts": 16, "expert_step": 2,
    },
    "kimi_linear": {**_ONE_DENSE, "others": "scan", "full_every": 4, "attn_layer_offset": 0, "first": "scan"},
    "lfm2": {"others": "conv", "tied": True, "block_auto_adjust_ff_dim": True},
    "lfm2_moe": {"others": "conv", "tied": True, "moe": True, "first_dense": 2},
    "llama": {"half": True},
    "llama4_text": {
        "others": "chunk", "full_every": 4, "moe": True,
        "keys": {"mlp": "intermediate_size_mlp", "expert_width": "intermediate_size",
                 "shared_width": "intermediate_size"},
    },
    "longcat_flash": {"mixers": 2, "moe": True, "keys": {"layers": "num_layers"}},
    "mimo_v2_flash": {**_EVERY_6, **_ONE_DENSE, "sliding_kv": 2, "first": "full"},
    "minimax_m2": _EXPERTS_AS_MLP,
    "ministral": {**_ALL_WINDOWS, "half": True},
    "mistral": {**_ALL_WINDOWS, "half": True},
    "mistral4": {"moe": True},
    "mixtral": {**_ALL_WINDOWS, **_EXPERTS_AS_MLP, "half": True},
    "nemotron_h": {"gated": False},
    "olmo3": _EVERY_4,
    "olmo_hybrid": {"others": "scan", "full_every": 4},
    "phi3": _ALL_WINDOWS,
    "qwen2": {**_LAST_WINDOWS, "qkv_bias": True, "half": True},
    "qwen2_moe": {**_QWEN_MOE, "qkv_bias": True},
    "qwen3": {**_LAST_WINDOWS, "half": True},
    "qwen3_5_moe_text": {**_DELTA, "moe": True},
    "qwen3_5_text": _DELTA,
    "qwen3_moe": _QWEN_MOE,
    "qwen3_next": {**_DELTA, "moe": True},
    "qwen3_omni_moe_text": {**_LAST_WINDOWS, "moe": True},
    "qwen3_vl_moe_text": {"moe": True},
    "qwen3_vl_text": {},
    "seed_oss": {},
    "smollm3": {"window_used": False, "others": "full", "nth": "window", "full_every": 4, "tied": True},
}  # fmt: skip
"""Language models by ``model_type``."""

UNCOUNTED: dict[str, tuple[Any, ...]] = {
    "attn_type_list": (None, 1),
    "enable_moe_block": (None, False),
    "moe_latent_size": (None,),
    "moe_layer_freq": (None, 1),
    "num_kv_shared_layers": (None, 0),
    "use_bidirectional_attention": (None, False),
    "use_double_wide_mlp": (None, False),
}
"""Keys that change what a model costs, in ways that are not counted, with the values that do not."""

_LLAMA_7B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
    "intermediate_size": 11008,
}  # fmt: skip
_CLIP_B = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "patch_size": 32, "image_size": 224,
}  # fmt: skip
_PATCHES = {"spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 16}
QWEN2_VIT: dict[str, Any] = {
    **_PATCHES, "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "patch_size": 14,
}  # fmt: skip
_QWEN2_5_VIT = {
    **_PATCHES, "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14, "window_size": 112,
    "out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
_QWEN3_VIT = {
    **_PATCHES, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
    "out_hidden_size": 3584, "num_position_embeddings": 2304,
}  # fmt: skip
_QWEN3_DEEP = {**_QWEN3_VIT, "deepstack_visual_indexes": [8, 16, 24]}

ENCODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clip_vision_model": ({"class_tokens": 1, "norms": 4, "patch_bias": False}, _CLIP_B),
    "intern_vit_6b": ({"class_tokens": 1}, {}),
    "siglip_vision_model": ({"norms": 2}, {**_CLIP_B, "patch_size": 16}),
    "qwen2_vl_vision": ({"patch_bias": False, "keys": {"hidden": "embed_dim", "out": "hidden_size"}}, QWEN2_VIT),
    "qwen2_5_vl_vision": ({"patch_bias": False, "gated": True}, _QWEN2_5_VIT),
    **dict.fromkeys(("qwen3_vl_vision", "qwen3_vl_moe_vision"), ({}, _QWEN3_DEEP)),
    **dict.fromkeys(("qwen3_5_vision", "qwen3_5_moe_vision"), ({}, _QWEN3_VIT)),
}
"""Vision encoders: what no key says, and their default sizes, which parts of multimodal models are saved without."""

NESTED: dict[str, dict[str, Any]] = {
    "llama": _LLAMA_7B,
    "mistral": {**_LLAMA_7B, "intermediate_size": 14336, "num_key_value_heads": 8},
}
"""Default sizes of language models, which parts of multimodal models are saved without."""


class Whole(NamedTuple):
    """A model of several parts."""

    text: str  # where the language model lies
    text_kind: str = ""  # its type, if it says none
    vision_kind: str = ""  # the type of the vision encoder that is read; where none is, the language model alone
    vision_optional: bool = True
    text_at_top: bool = False  # older configurations have the language model's keys at the top


WHOLE: dict[str, Whole] = {
    "gemma3": Whole("text_config", "gemma3_text", "siglip_vision_model"),
    "gemma4": Whole("text_config", "gemma4_text"),
    "internvl_chat": Whole("llm_config", "", "intern_vit_6b", vision_optional=False),
    "kimi_k25": Whole("text_config", "deepseek_v3"),
    "llama4": Whole("text_config", "llama4_text"),
    "llava": Whole("text_config", "", "clip_vision_model", vision_optional=False),
    "mistral3": Whole("text_config", "mistral"),
    "qwen2_5_vl": Whole("text_config", "qwen2", "qwen2_5_vl_vision", vision_optional=False, text_at_top=True),
    "qwen2_audio": Whole("text_config"),
    "qwen2_vl": Whole("text_config", "qwen2", "qwen2_vl_vision", vision_optional=False, text_at_top=True),
    "qwen3_5": Whole("text_config", "qwen3_5_text", "qwen3_5_vision"),
    "qwen3_5_moe": Whole("text_config", "qwen3_5_moe_text", "qwen3_5_moe_vision"),
    "qwen3_omni_moe": Whole("thinker_config.text_config", "qwen3_omni_moe_text"),
    "qwen3_vl": Whole("text_config", "qwen3_vl_text", "qwen3_vl_vision"),
    "qwen3_vl_moe": Whole("text_config", "qwen3_vl_moe_text", "qwen3_vl_moe_vision"),
}
"""Models of several parts by ``model_type``."""

SAME_AS = {
    "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen2_vl": "qwen2_vl_vision",
    "qwen2_5_vl": "qwen2_5_vl_vision", "qwen3_vl": "qwen3_vl_vision", "qwen3_vl_moe": "qwen3_vl_moe_vision",
    "qwen3_5": "qwen3_5_vision", "qwen3_5_moe": "qwen3_5_moe_vision", "qwen2_audio_encoder": "whisper",
}  # fmt: skip
"""Other names of parts."""
