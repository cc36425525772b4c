"""Vision and audio encoders from their configurations."""

from math import isqrt

from balancer.cost.hf_families import ENCODERS, SAME_AS
from balancer.cost.hf_keys import Config
from balancer.cost.hf_layers import attention_of
from balancer.cost.parts import Attention, Part, attend, linear, mlp, projector, total
from balancer.cost.shapes import AudioEncoder, VisionEncoder


def _block(config: Config, shape: Attention) -> Part:
    """One layer, but for the products between its tokens, and what the backward needs of them."""
    hidden, wide = shape.hidden, shape.heads * shape.head_dim
    width = config.count("mlp", hidden * config.count("mlp_ratio")) if config.has("mlp_ratio") else config.count("mlp")
    norm = hidden if config.get("norm_type", "") == "rms_norm" or config.flag("gated") else 2 * hidden
    more = 2 * norm + 2 * hidden * ("norm_type" in config.values)  # InternViT scales what layers add
    more += 2 * hidden * config.flag("qk_normalization")
    return total((
        linear(hidden, 3 * wide, config.flag("qkv_bias", True)), linear(wide, hidden, True),
        mlp(hidden, width, gated=config.flag("gated"), bias=True), Part(parameters=more, kept=3 * hidden),
    ))  # fmt: skip


def vision_of(config: Config, project: Part | None = None) -> VisionEncoder:
    """Return a vision encoder with its own merger, or with the projector given."""
    facts, sizes = ENCODERS.get(SAME_AS.get(config.kind or "", config.kind or ""), ({}, {}))
    # Default sizes are of parts; a whole encoder's configuration is saved with all of its keys.
    config = config.filled(sizes if config.prefix else {}).of_family(facts, facts.get("keys", {}))
    if config.kind == "siglip_vision_model" and config.flag("vision_use_head", True):
        raise config.refuse("vision_use_head", True, "must be false: no pooling head is counted")
    shape, hidden, patch = attention_of(config), config.count("hidden"), config.count("patch_size")
    block = _block(config, shape)
    products = attend(shape.heads, shape.heads, shape.head_dim, shape.head_dim, "bidirectional")
    full = windowed = block + products
    layers, seen = config.count("layers"), list(range(config.count("layers")))
    if config.has("window_size"):
        # Images count as if cut into whole windows: each patch then sees as many as a window has.
        patches = (config.count("window_size") // patch) ** 2
        windowed = block + Part(per_token=dict(products.pairs)["bidirectional"] * patches, kept=products.kept)
        seen = config.listed("fullatt_block_indexes", range(layers))
    classes = config.count("class_tokens", 0, least=0)
    values = config.count("channels", 3) * config.count("temporal_patch_size", 1) * patch * patch
    extra = hidden * (classes + config.count("norms", 0, least=0) + config.flag("patch_bias", True))
    if config.has("num_position_embeddings"):
        extra += hidden * config.count("num_position_embeddings")
    elif config.has("image_size"):
        extra += hidden * ((config.count("image_size") // patch) ** 2 + classes)
    around = [linear(values, hidden), Part(parameters=extra), project or _merger(config, hidden)]
    parts = tuple(full if i in seen else windowed for i in range(layers))
    return VisionEncoder(attention=shape, parts=parts, around=total(around), class_tokens=classes)


def _merger(config: Config, hidden: int) -> Part:
    """Squares of patches become tokens; one merger more for each inner layer that feeds the LLM too (DeepStack)."""
    if not config.has("spatial_merge_size"):
        return Part()
    merge = config.count("spatial_merge_size") ** 2
    out = config.count("out" if "out" in config.keys else "out_hidden_size")
    inner = config.get("deepstack_visual_indexes", [])
    if not isinstance(inner, list | tuple):
        raise config.refuse("deepstack_visual_indexes", inner, "must be a list")
    one = projector(merge, hidden * merge, hidden * merge, out)
    norms = hidden * (1 if config.flag("gated") else 2) + 2 * hidden * merge * len(inner)
    return one * (1 + len(inner)) + Part(parameters=norms)


def pooled(config: Config, vision: Config, hidden: int) -> Part:
    """Return Gemma 3's: as many tokens of every image, each the mean of a square of patches, through one matrix."""
    side = vision.count("image_size") // vision.count("patch_size")
    width, tokens = vision.count("hidden_size"), config.count("mm_tokens_per_image", 256)
    # A token is the mean of a square of patches, and the tokens of an image form a square, too.
    merge = (side // isqrt(tokens)) ** 2
    if not merge or merge * tokens != side * side:
        raise config.refuse("mm_tokens_per_image", tokens, f"must be {side} x {side} patches in squares")
    return projector(merge, width, hidden, bias=False) + Part(parameters=width)


def whisper_of(config: Config, project: Part | None = None) -> AudioEncoder:
    """Return Whisper's encoder; positions are a table that is not trained, yet counted."""
    config = config.of_family({}, {"mlp": "encoder_ffn_dim", "hidden": "d_model"})
    shape, hidden, mels = attention_of(config), config.count("hidden"), config.count("num_mel_bins")
    products = attend(shape.heads, shape.heads, shape.head_dim, shape.head_dim, "bidirectional")
    block = _block(config, shape) + products + Part(parameters=-hidden)  # keys have no bias
    # Two convolutions of three frames, of which the second gives half as many.
    first, second = linear(3 * mels, hidden, True), linear(3 * hidden, hidden, True)
    extra = hidden * (config.count("max_source_positions") + 2)
    around = Part(parameters=first.parameters + second.parameters + extra) + (project or Part())
    return AudioEncoder(
        attention=shape, parts=(block,) * config.count("layers"), around=around,
        stem=first.per_token + second.per_token // 2, frames_per_token=2,
    )  # fmt: skip
