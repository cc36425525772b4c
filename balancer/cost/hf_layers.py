"""Language models from their configurations: which kind of layer each one is, and what a kind is made of.

One layer at a time, by what keys mean: a mixer, through which tokens see each other, and an MLP or experts. Norms are
counted where all layers have them, other numbers that no product is made with are left out: under 0.1 % of parameters.
Multi-token heads are not counted: transformers does not build them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from balancer.cost.hf_families import FAMILIES, UNCOUNTED
from balancer.cost.hf_keys import Config
from balancer.cost.parts import Attention, Part, attend, conv, experts, linear, mlp, scan, total
from balancer.cost.shapes import Decoder

_KINDS: dict[str | int, str] = {
    "full_attention": "full", "attention": "full", "sliding_attention": "window", "chunked_attention": "chunk",
    "linear_attention": "scan", "mamba": "scan", "conv": "conv", "indexed_attention": "indexed",
    "deepseek_sparse_attention": "indexed", "moe": "moe", "mlp": "mlp", "hybrid": "full",
    "M": "scan", "E": "moe", "*": "full", "-": "mlp", 0: "full", 1: "window",
}  # fmt: skip
_EVERY = {"L": "window", "G": "full"}
_PLAIN = ("gelu", "relu", "relu2", "gelu_new", "gelu_fast", "quick_gelu", "gelu_python", "gelu_pytorch_tanh")
"""Activations of MLPs of two matrices, if nothing else is known."""


def decoder_of(config: Config) -> Decoder:
    """Return the language model of a configuration; InputError names the key that is missing, wrong or not counted."""
    defaults = FAMILIES.get(config.kind or "", _unknown(config))
    config = config.of_family(defaults, defaults.get("keys", {}))
    for key, values in UNCOUNTED.items():
        found = config.get(key, None)
        if found not in values and not (isinstance(found, list) and found and all(each in values for each in found)):
            rule = " or ".join("absent" if value is None else str(value) for value in values)
            raise config.refuse(key, found, f"must be {rule}: what it changes is not counted")
    kinds = _kinds(config)
    layers = _layers(config, kinds, _sparse(config, len(kinds)))
    shape = attention_of(config)
    # The last norm, and positions
    more = shape.hidden * (1 + _flag(config, "bias") + config.count("n_positions", 0, least=0))
    return Decoder.of(shape, layers, config.count("vocab_size"), tied=config.flag("tied"), more=more)


def attention_of(config: Config) -> Attention:
    """Return the heads of a configuration's attention."""
    hidden, heads = config.count("hidden"), config.count("heads")
    return Attention(hidden=hidden, heads=heads, kv_heads=_kv_heads(config, heads), head_dim=_head_dim(config, heads))


def _unknown(config: Config) -> dict[str, Any]:
    """Return what keys suggest of a family that was not checked."""
    states = ("linear_num_value_heads", "mamba_d_state", "ssm_state_size", "linear_attn_config", "linear_head_dim")
    plain = any(config.get(key, None) in _PLAIN for key in ("hidden_act", "activation_function", "mlp_hidden_act"))
    if any(map(config.has, states)):
        return {"others": "scan", "gated": not plain}
    of_windows = {"others": "window", "window_used": True}
    return ({"others": "chunk"} if config.has("attention_chunk_size") else of_windows) | {"gated": not plain}


def _flag(config: Config, name: str, default: bool = False) -> bool:
    """Return what a family is, whatever its configuration says."""
    return bool(config.defaults.get(name, default))


# --- which layers are what -------------------------------------------------------------------------------------------


def _kinds(config: Config) -> list[str]:
    """Return the kind of each layer: as listed, or else by the family's older keys."""
    if config.has("index_topk"):
        return _indexed(config)
    for listed in ("kinds", "pattern"):
        if config.has(listed):
            count = config.count("layers", 0, least=0) or None
            return [_KINDS[kind] for kind in config.listed(listed, tuple(_KINDS), count)]
    layers = config.count("layers")
    others, nth = config.get("others", "full"), config.get("nth", "full")
    unused = "window_used" in config.defaults and not _window_used(config)
    if unused or _flag(config, "beside"):
        return ["full"] * layers
    if config.has("linear_attn_config") and (inside := config.part("linear_attn_config")).has("full_attn_layers"):
        full = inside.listed("full_attn_layers", range(1, layers + 1))
        return ["full" if i + 1 in full else others for i in range(layers)]
    if others == "conv":
        full = config.listed("full_attn_idxs", range(layers)) if config.has("full_attn_idxs") else list(range(layers))
        return ["full" if i in full else "conv" for i in range(layers)]
    if config.has("no_rope_layers"):
        rope = config.listed("no_rope_layers", (0, 1), layers)
        return [others if each else nth for each in rope]
    if config.has("max_window_layers"):
        return ["full" if i < config.count("max_window_layers", least=0) else "window" for i in range(layers)]
    every = config.get("full_every", None)
    if isinstance(every, str) and every and set(every) <= set(_EVERY):  # such as LLLG
        return [_EVERY[every[i % len(every)]] for i in range(layers)]
    if every is None:
        return [others] * layers
    every = config.count("full_every")
    place = config.count("attn_layer_offset", every - 1, least=0)
    kinds = [nth if i % every == place else others for i in range(layers)]
    return [config.get("first", kinds[0]), *kinds[1:]]


def _window_used(config: Config) -> bool:
    """Whether layers have a window that is in use and shorter than the context."""
    if not config.has("sliding_window") or not config.flag("use_sliding_window", _flag(config, "window_used")):
        return False
    return config.count("sliding_window") < config.count("max_position_embeddings", 2**31 - 1)


def _indexed(config: Config) -> list[str]:
    """Return which layers choose keys, and which take those that a layer before has chosen."""
    layers = config.count("layers")
    if config.has("kinds"):  # which say nothing that the keys of the indexer do not
        config.listed("kinds", ("indexed_attention", "deepseek_sparse_attention"), layers)
    for key, known in (("indexer_types", ("full", "shared")), ("index_topk_pattern", ("F", "S"))):
        if config.has(key):
            return ["indexed" if kind == known[0] else "chosen" for kind in config.listed(key, known, layers)]
    period, offset = config.count("index_topk_freq", 1), config.count("index_skip_topk_offset", 2, least=0)
    return ["chosen" if max(i - offset + 1, 0) % period else "indexed" for i in range(layers)]


def _sparse(config: Config, layers: int) -> list[bool]:
    """Return which layers have experts."""
    number = config.count("experts", least=0) if _flag(config, "moe") else config.count("experts", 0, least=0)
    if number <= 1:
        return [False] * layers
    if config.has("mlp_layer_types"):
        return [kind == "sparse" for kind in config.listed("mlp_layer_types", ("dense", "sparse"), layers)]
    if config.has("moe_layers"):
        listed = config.listed("moe_layers", range(layers))
        return [i in listed for i in range(layers)]
    plain = config.listed("mlp_only_layers", range(layers)) if config.has("mlp_only_layers") else []
    first, last = config.count("first_dense", 0, least=0), config.count("moe_layer_end_index", -1, least=-1)
    step = config.count("expert_step", 1)
    place = config.count("expert_layer_offset", step - 1, least=0)
    used = range(first, layers if last < 0 else last + 1)
    return [i in used and i % step == place and i not in plain for i in range(layers)]


# --- what a layer is made of -----------------------------------------------------------------------------------------


def _layers(config: Config, kinds: Sequence[str], sparse: Sequence[bool]) -> tuple[Part, ...]:
    """Return every layer; alike ones are the same object."""
    given = config.get("per_layer_config", {})
    if not isinstance(given, dict) or not all(isinstance(keys, dict) for keys in given.values()):
        raise config.refuse("per_layer_config", str(given), "must be an object of an object a layer")
    own = {int(number): keys for number, keys in given.items() if str(number).isdecimal()}
    if own:  # which say what is otherwise assumed of layers with full attention
        config = config.of_family({**config.defaults, "global_head_dim": None}, config.keys)
    # Mixers and MLPs may be layers of their own.
    apart = bool({"moe", "mlp"} & set(kinds))
    made = cache(lambda mixer, feed: _layer(config, mixer, feed))
    layers = []
    for i, (kind, has_experts) in enumerate(zip(kinds, sparse, strict=True)):
        pair = (kind, "moe" if has_experts else "mlp")
        if apart:
            pair = ("", kind) if kind in ("moe", "mlp") else (kind, "")
        layers.append(_layer(config.with_values(own[i]), *pair) if i in own else made(*pair))
    # Only families whose layers all have full attention are counted by half of the square.
    if _flag(config, "half") and set(kinds) == {"full"}:
        halves = {layer: (("bidirectional", dict(layer.pairs)["full"] // 2),) for layer in set(layers)}
        layers = [replace(layer, pairs=halves[layer]) for layer in layers]
    return tuple(layers)


def _layer(config: Config, mixer: str, feed: str) -> Part:
    """Return a layer of a kind of mixer, and of experts or an MLP; either may be none."""
    hidden, bias = config.count("hidden"), _flag(config, "bias")
    norms = Part(parameters=2 * hidden * (1 + bias), kept=2 * hidden)
    if _flag(config, "mixers"):  # LongCat-Flash: two attentions and two MLPs, and experts beside them
        return (norms + _mixer(config, mixer) + _mlp(config)) * 2 + _experts(config)
    parts = [norms]
    if mixer:
        parts.append(_mixer(config, mixer))
    if _flag(config, "beside"):  # Falcon-H1: attention and a scan side by side
        parts.append(_scan(config))
    if feed:
        parts.append(_experts(config) if feed == "moe" else _mlp(config))
    if inputs := config.count("hidden_size_per_layer_input", 0, least=0):  # Gemma 4: an embedding for each layer
        table = Part(parameters=config.count("vocab_size_per_layer_input", 262144) * inputs)
        parts += [table, linear(hidden, inputs) * 2, linear(inputs, hidden)]
    return total(parts)


def _mixer(config: Config, kind: str) -> Part:
    if kind == "scan":
        return _scan(config)
    if kind == "conv":  # LFM2: a gated short convolution
        hidden = config.count("hidden")
        through = linear(hidden, 3 * hidden) + linear(hidden, hidden)
        return through + conv(hidden, config.count("kernel", 3)) + Part(kept=5 * hidden)
    return _latent(config, kind) if config.has("kv_lora_rank") else _grouped(config, kind)


def _kv_heads(config: Config, heads: int, default: int | None = None) -> int:
    """Return how many heads keys and values have: by default as many as queries, else what divides them."""
    kv_heads = config.count("kv_heads", heads) if default is None else default
    if heads % kv_heads:
        raise config.refuse(config.key("kv_heads"), kv_heads, f"must divide {config.key('heads')} {heads}")
    return kv_heads


def _head_dim(config: Config, heads: int) -> int:
    """Return how wide a head of queries and keys is."""
    hidden = config.count("hidden")
    if config.has("kv_lora_rank"):
        return config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    if config.has("head_dim"):
        return config.count("head_dim")
    if hidden % heads and not _flag(config, "uneven_heads"):
        raise config.refuse(config.key("heads"), heads, f"must divide {config.key('hidden')} {hidden}")
    return hidden // heads


def _area(config: Config, kind: str) -> str:
    """Return the name of what a kind of layer sees."""
    if kind == "window":
        if config.has("sliding_window_size"):  # MiMo: keys before the query
            return f"window{config.count('sliding_window_size') + 1}"
        return f"window{config.count('sliding_window')}"
    return f"chunk{config.count('attention_chunk_size')}" if kind == "chunk" else "full"


def _grouped(config: Config, kind: str) -> Part:
    """Attention by the usual keys; those of sliding layers may have a prefix of their own."""
    hidden, heads = config.count("hidden"), config.count("heads")
    kv_heads, key_dim = config.count("kv_heads", heads), _head_dim(config, heads)
    value_dim = config.count("v_head_dim", key_dim)
    if kind == "window":
        heads = config.count("swa_num_attention_heads", heads)
        kv_heads = config.count("swa_num_key_value_heads", kv_heads * config.count("sliding_kv", 1))
        key_dim, value_dim = config.count("swa_head_dim", key_dim), config.count("swa_v_head_dim", value_dim)
    if kind == "full" and config.has("global_head_dim"):
        key_dim = value_dim = config.count("global_head_dim")
    shared = kind == "full" and config.flag("attention_k_eq_v")  # values are keys
    if shared:
        kv_heads = config.count("num_global_key_value_heads", kv_heads)
    kv_heads = _kv_heads(config, heads, kv_heads)
    gate = heads * key_dim * (_flag(config, "gate") or config.flag("attn_output_gate"))
    bias, output_bias = _flag(config, "bias") or _flag(config, "qkv_bias"), _flag(config, "bias")
    values = 0 if shared else kv_heads * value_dim
    products = attend(heads, kv_heads, key_dim, value_dim, _area(config, kind))
    return total((
        linear(hidden, heads * key_dim + gate, bias), linear(hidden, kv_heads * key_dim + values, bias),
        linear(heads * value_dim, hidden, output_bias), products, Part(kept=hidden + gate),
    ))  # fmt: skip


def _latent(config: Config, kind: str) -> Part:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) as it is trained, its projections not absorbed.

    Where it is sparse, an indexer looks at all pairs and heads, and attention at the top ones (arXiv:2512.02556).
    """
    hidden, heads = config.count("hidden"), config.count("heads")
    query_rank, rank = config.count("q_lora_rank", 0, least=0), config.count("kv_lora_rank")
    nope, rope, value_dim = (config.count(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    wide = heads * (nope + rope)
    parts = [linear(hidden, query_rank), linear(query_rank, wide)] if query_rank else [linear(hidden, wide)]
    area = "full"
    if kind in ("indexed", "chosen"):
        area = f"topk{config.count('index_topk')}"
    if kind == "indexed":
        number, width = config.count("index_n_heads"), config.count("index_head_dim")
        parts += [linear(query_rank, number * width), linear(hidden, width + number)]
        parts.append(Part(pairs=(("full", 2 * number * (width + 1)),), kept=(number + 1) * width))
    if _flag(config, "gate"):
        parts.append(linear(hidden, heads))
    return total((
        *parts, linear(hidden, rank + rope), linear(rank, heads * (nope + value_dim)),
        linear(heads * value_dim, hidden), attend(heads, heads, nope + rope, value_dim, area),
        Part(kept=hidden + query_rank + rank),
    ))  # fmt: skip


def _scan(config: Config) -> Part:
    """Linear attention or a state-space layer, by which keys there are."""
    if config.has("scan_heads"):
        return _mamba_2(config)
    if config.has("state"):
        return _mamba_1(config)
    return _delta_net(config) if config.has("linear_num_value_heads") else _kimi_delta(config)


def _mamba_1(config: Config) -> Part:
    """Mamba, as Jamba has it (arXiv:2403.19887)."""
    hidden, state = config.count("hidden"), config.count("state")
    inner = hidden * config.count("expand", 2)
    rank = -(-hidden // 16) if config.get("mamba_dt_rank", "auto") == "auto" else config.count("mamba_dt_rank")
    return total((
        linear(hidden, 2 * inner), conv(inner, config.count("kernel", 4)), linear(inner, rank + 2 * state),
        linear(rank, inner), linear(inner, hidden), Part(parameters=inner * state), scan(2, inner, 1, state),
        Part(kept=hidden + 2 * inner),
    ))  # fmt: skip


def _mamba_2(config: Config) -> Part:
    hidden, heads = config.count("hidden"), config.count("scan_heads")
    state, groups = config.count("state"), config.count("groups")
    inner = config.count("mamba_d_ssm", 0, least=0) or hidden * config.count("expand", 2)
    head_dim = inner // heads
    if config.has("mamba_head_dim"):
        head_dim = config.count("mamba_head_dim")
        inner = heads * head_dim
    wide = inner + 2 * groups * state
    return total((
        linear(hidden, inner + wide + heads), conv(wide, config.count("kernel", 4)), linear(inner, hidden),
        scan(2, heads, head_dim, state), Part(kept=hidden + 2 * inner),
    ))  # fmt: skip


def _delta_net(config: Config) -> Part:
    """Gated delta nets: keys and values of head counts of their own, a convolution before, a gate behind."""
    hidden, heads = config.count("hidden"), config.count("linear_num_value_heads")
    key_dim, value_dim = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    keys, values = config.count("linear_num_key_heads") * key_dim, heads * value_dim
    return total((
        linear(hidden, 2 * keys + 2 * values + 2 * heads), conv(2 * keys + values, config.count("kernel", 4)),
        linear(values, hidden), scan(3, heads, value_dim, key_dim), Part(kept=hidden + 2 * keys + 2 * values),
    ))  # fmt: skip


def _kimi_delta(config: Config) -> Part:
    """Kimi Delta Attention (arXiv:2510.26692): a decay a channel, by two thin matrices or one wide one."""
    nested = config.part("linear_attn_config").values if config.has("linear_attn_config") else {}
    inside = config.with_values({**nested, "model_type": config.kind})
    hidden, heads = config.count("hidden"), inside.count("delta_heads", config.count("heads"))
    head_dim = inside.count("linear_head_dim" if inside.has("linear_head_dim") else "head_dim")
    wide = heads * head_dim
    through = linear(hidden, wide) if _flag(config, "gate") else linear(hidden, head_dim) + linear(head_dim, wide)
    return total((
        linear(hidden, 3 * wide), conv(3 * wide, inside.count("kernel", 4)), linear(hidden, heads), through * 2,
        linear(wide, hidden), scan(3, heads, head_dim, head_dim), Part(kept=hidden + 4 * wide),
    ))  # fmt: skip


def _mlp(config: Config) -> Part:
    """The MLP that all tokens meet."""
    hidden = config.count("hidden")
    width = config.count("mlp", hidden * config.count("mlp_ratio")) if config.has("mlp_ratio") else config.count("mlp")
    if _flag(config, "block_auto_adjust_ff_dim") and config.flag("block_auto_adjust_ff_dim"):
        # LFM2: two thirds, rounded up.
        multiple, times = config.count("block_multiple_of", 256), config.get("block_ffn_dim_multiplier", 1.0)
        if not isinstance(times, float | int) or not 0 < times < 1e6:
            raise config.refuse("block_ffn_dim_multiplier", times, "must be a number over 0")
        width = -(-int(times * int(2 * width / 3)) // multiple) * multiple
    return mlp(hidden, width, gated=_flag(config, "gated", True), bias=_flag(config, "bias"))


def _experts(config: Config) -> Part:
    """Router, experts, and what all tokens share."""
    hidden, number, active = config.count("hidden"), config.count("experts"), config.count("active")
    # Of a family that was not checked, experts may be as wide as its MLPs.
    default = () if config.kind in FAMILIES else (config.get("mlp", None),)
    width = config.count("expert_width", *default)
    if active > number:
        raise config.refuse(config.key("active"), active, f"must be <= {number} experts")
    choices = number + config.count("zero_expert_num", 0, least=0)
    one = mlp(hidden, width, gated=_flag(config, "gated", True))
    parts = [linear(hidden, choices), Part(kept=hidden), experts(one, number, active, of=choices)]
    shared = config.count("shared_width", 0, least=0) or config.count("shared_experts", 0, least=0) * width
    if shared:
        inside = mlp(hidden, shared, gated=_flag(config, "gated", True))
        parts.append(Part(parameters=inside.parameters, per_token=inside.per_token, kept=inside.kept - hidden))
    if shared and config.has("shared_expert_intermediate_size"):  # Qwen's, with a gate
        parts.append(linear(hidden, 1))
    return total(parts)
