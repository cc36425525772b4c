"""Vision and audio encoders from their configurations, one function a family."""

from collections.abc import Callable

from balancer.cost.hf_section import Section, all_biased, head_dim_of
from balancer.cost.layers import Attention, Block, Convolution, Mlp, Projector
from balancer.cost.shapes import AudioEncoder, VisionEncoder

QWEN3_VITS = tuple(
    kind + part for kind in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe") for part in ("", "_vision")
)
"""What configurations of Qwen3-VL and Qwen3.5 call their vision encoders."""


def _intern_vit(section: Section) -> VisionEncoder:
    """Layer scales, one class token, learned positions; queries and keys normed over all heads in the large one."""
    hidden, heads = section.count("hidden_size"), section.count("num_attention_heads")
    norm_size = hidden * (1 if section.raw("norm_type") == "rms_norm" else 2)
    qkv_bias = section.flag("qkv_bias", True)
    attention = Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim_of(section, hidden, heads),
        query_bias=qkv_bias,
        key_bias=qkv_bias,
        value_bias=qkv_bias,
        output_bias=True,
        norm_parameters=2 * hidden * section.flag("qk_normalization", False),
    )
    patch = section.count("patch_size")
    positions = (section.count("image_size") // patch) ** 2 + 1
    mlp = Mlp(hidden=hidden, intermediate=section.count("intermediate_size"), bias=True)
    return VisionEncoder(
        block=Block(attention=attention, mlp=mlp, norm_parameters=2 * norm_size + 2 * hidden),
        layers=section.count("num_hidden_layers"),
        patch_values=section.count("num_channels", 3) * patch * patch,
        class_tokens=1,
        extra_parameters=hidden * (positions + 2),  # bias of the patch embedding, class token
    )


def _clip_vision(section: Section) -> VisionEncoder:
    hidden, patch = section.count("hidden_size"), section.count("patch_size")
    key = "num_attention_heads"
    mlp = Mlp(hidden=hidden, intermediate=section.count("intermediate_size"), bias=True)
    return VisionEncoder(
        block=Block(
            attention=all_biased(hidden, section.count(key), section, key), mlp=mlp, norm_parameters=4 * hidden
        ),
        layers=section.count("num_hidden_layers"),
        patch_values=section.count("num_channels", 3) * patch * patch,
        class_tokens=1,
        extra_parameters=hidden * ((section.count("image_size") // patch) ** 2 + 1 + 1 + 4),
    )


def _channels(section: Section) -> int:
    return section.count("in_chans", section.raw("in_channels", 3))


def _qwen2_vit(section: Section) -> VisionEncoder:
    hidden, heads, patch = section.count("embed_dim"), section.count("num_heads"), section.count("patch_size")
    merge = section.count("spatial_merge_size") ** 2
    mlp = Mlp(hidden=hidden, intermediate=hidden * section.count("mlp_ratio"), bias=True)
    return VisionEncoder(
        block=Block(attention=all_biased(hidden, heads, section, "num_heads"), mlp=mlp, norm_parameters=4 * hidden),
        layers=section.count("depth"),
        patch_values=_channels(section) * section.count("temporal_patch_size") * patch * patch,
        projector=Projector(
            merge=merge,
            widths=(hidden * merge, hidden * merge, section.count("hidden_size")),
            norm_parameters=2 * hidden,
        ),
    )


def _qwen2_5_vit(section: Section) -> VisionEncoder:
    hidden, patch = section.count("hidden_size"), section.count("patch_size")
    merge, window = section.count("spatial_merge_size") ** 2, section.count("window_size") // patch
    full = section.raw("fullatt_block_indexes")
    if not isinstance(full, list):
        raise section.refuse("fullatt_block_indexes", full, "must be a list")
    heads = section.count("num_heads")
    return VisionEncoder(
        block=Block(
            attention=all_biased(hidden, heads, section, "num_heads"),
            mlp=Mlp(hidden=hidden, intermediate=section.count("intermediate_size"), gated=True, bias=True),
            norm_parameters=2 * hidden,
        ),
        layers=section.count("depth"),
        patch_values=_channels(section) * section.count("temporal_patch_size") * patch * patch,
        window=window * window,
        full_layers=len(set(full)),
        projector=Projector(
            merge=merge,
            widths=(hidden * merge, hidden * merge, section.count("out_hidden_size")),
            norm_parameters=hidden,
        ),
    )


def _qwen3_vit(section: Section) -> VisionEncoder:
    """No windows; learned positions, and a merger more for each inner layer that feeds the LLM too (DeepStack)."""
    hidden, merge = section.count("hidden_size"), section.count("spatial_merge_size") ** 2
    patch, wide = section.count("patch_size"), hidden * merge
    inner = section.raw("deepstack_visual_indexes", [])
    if not isinstance(inner, list | tuple):
        raise section.refuse("deepstack_visual_indexes", inner, "must be a list")
    widths = (wide, wide, section.count("out_hidden_size"))
    mlp = Mlp(hidden=hidden, intermediate=section.count("intermediate_size"), bias=True)
    attention = all_biased(hidden, section.count("num_heads"), section, "num_heads")
    return VisionEncoder(
        block=Block(attention=attention, mlp=mlp, norm_parameters=4 * hidden),
        layers=section.count("depth"),
        patch_values=_channels(section) * section.count("temporal_patch_size") * patch * patch,
        extra_parameters=hidden * (section.count("num_position_embeddings") + 1),
        projector=Projector(merge=merge, widths=widths, norm_parameters=2 * hidden),
        inner_projectors=(Projector(merge=merge, widths=widths, norm_parameters=2 * wide),) * len(inner),
    )


def _siglip(section: Section) -> VisionEncoder:
    """No class token, learned positions, a norm after the last layer."""
    if section.flag("vision_use_head", True):
        raise section.refuse("vision_use_head", True, "must be false: no pooling head is counted")
    hidden, patch, key = section.count("hidden_size"), section.count("patch_size"), "num_attention_heads"
    attention = all_biased(hidden, section.count(key), section, key)
    mlp = Mlp(hidden=hidden, intermediate=section.count("intermediate_size"), bias=True)
    positions = (section.count("image_size") // patch) ** 2
    return VisionEncoder(
        block=Block(attention=attention, mlp=mlp, norm_parameters=4 * hidden),
        layers=section.count("num_hidden_layers"),
        patch_values=section.count("num_channels", 3) * patch * patch,
        extra_parameters=hidden * (positions + 1 + 2),
    )


def whisper(section: Section, projector: Projector | None = None) -> AudioEncoder:
    """The encoder; keys have no bias, positions are a table that is not trained, yet counted."""
    hidden, key = section.count("d_model"), "encoder_attention_heads"
    mlp = Mlp(hidden=hidden, intermediate=section.count("encoder_ffn_dim"), bias=True)
    attention = all_biased(hidden, section.count(key), section, key, key_bias=False)
    return AudioEncoder(
        convolutions=(
            Convolution(inputs=section.count("num_mel_bins"), outputs=hidden, kernel=3),
            Convolution(inputs=hidden, outputs=hidden, kernel=3, stride=2),
        ),
        block=Block(attention=attention, mlp=mlp, norm_parameters=4 * hidden),
        layers=section.count("encoder_layers"),
        extra_parameters=hidden * (section.count("max_source_positions") + 2),
        projector=projector,
    )


VISION_ENCODERS: dict[str, Callable[[Section], VisionEncoder]] = {
    "intern_vit_6b": _intern_vit,
    "clip_vision_model": _clip_vision,
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_vision"), _qwen2_vit),
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_vl_vision"), _qwen2_5_vit),
    **dict.fromkeys(QWEN3_VITS, _qwen3_vit),
    "siglip_vision_model": _siglip,
}
"""Vision encoders by ``model_type``, of the whole or of the part that is nested."""
