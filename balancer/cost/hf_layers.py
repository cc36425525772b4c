"""Layers that are unlike, from a configuration: which kind each one is, and what a kind is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from balancer.cost.hf_section import Section, head_dim_of
from balancer.cost.layers import Attention, Block, Mlp
from balancer.cost.parts import (
    Heads,
    LatentSizes,
    Part,
    conv,
    experts,
    grouped,
    indexer,
    latent,
    linear,
    mlp,
    norm,
    scan,
    total,
)
from balancer.cost.shapes import Decoder

Mixer = Callable[[Section, "Family", str], Part]
"""From the configuration, its family and a kind of layer to what lets the layer's tokens see each other."""

FULL, SLIDING, CHUNKED, SCANNED = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
INDEXED, REUSED = "indexed_attention", "indexed_attention of a layer before"
_OLD_KINDS = {"mamba": SCANNED, "attention": FULL, "deepseek_sparse_attention": INDEXED}
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
ACTIVE_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_bidirectional_attention": (None, False),
    "moe_latent_size": (None,),
    "moe_layer_freq": (None, 1),
    "num_kv_shared_layers": (None, 0),
    "use_double_wide_mlp": (None, False),
    "enable_moe_block": (None, False),
}
"""Keys that change what a model costs, in ways that are not counted, with the values that do not."""


def every(period: int, key: str = "", others: str = SLIDING) -> Callable[[Section, int], list[str]]:
    """Every so many layers see all, or as many as a key says; the others are of another kind. Without any, none is."""

    def kinds(section: Section, layers: int) -> list[str]:
        found = section.raw(key, period) if key else period
        if isinstance(found, str) and found and set(found) <= {"L", "G"}:  # such as LLLG
            return [FULL if found[i % len(found)] == "G" else others for i in range(layers)]
        size = section.count(key, period) if key else period
        return [FULL if (i + 1) % size == 0 else others for i in range(layers)]

    return kinds


def all_full(section: Section, layers: int) -> list[str]:
    """All layers see all that is before."""
    return [FULL] * layers


def first_dense(default: int = 0) -> Callable[[Section, int], list[bool]]:
    """Which layers have experts: all but the first, as many as a key says."""

    def sparse(section: Section, layers: int) -> list[bool]:
        found = section.raw("mlp_layer_types", None)
        if found is not None:
            _check_list(section, "mlp_layer_types", found, layers, ("dense", "sparse"))
            return [kind == "sparse" for kind in found]
        dense = section.any_count(("first_k_dense_replace", "num_dense_layers"), default, minimum=0)
        return [i >= dense for i in range(layers)]

    return sparse


def all_experts(section: Section, layers: int) -> list[bool]:
    """Every layer has experts."""
    return [True] * layers


def no_experts(section: Section, layers: int) -> list[bool]:
    """No layer has experts."""
    return [False] * layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the layers of a model type follow from its configuration. A bias is a key and its default, or fixed."""

    kinds: Callable[[Section, int], list[str]] = all_full  # where the configuration does not list them
    own_kinds: bool = False  # whether a list of kinds says nothing that those keys do not
    mixers: Mapping[str, Mixer] = field(default_factory=dict)  # by kind of layer; grouped attention for all others
    qkv_bias: tuple[str, bool] | bool = ("attention_bias", False)
    output_bias: tuple[str, bool] | bool = ("attention_bias", False)
    mlp_bias: tuple[str, bool] | bool = False
    qk_norm: str = ""  # "head": of each head's width; "wide": of all heads together
    doubled_queries: bool = False  # half of which gate the outputs
    gated_outputs: bool = False  # by a projection of their own
    qk_norm_key: str = ""  # that says whether they are normed at all
    sliding_kv: int = 1  # times as many heads of keys and values in sliding layers
    sinks: tuple[str, ...] = ()  # kinds of layers that have one number a query head besides
    own_heads: bool = True  # whether a key says how wide a head is
    norms: int = 2  # scales of the hidden width a layer has
    sparse: Callable[[Section, int], list[bool]] = no_experts  # which layers have experts
    expert_key: str = "moe_intermediate_size"  # width of an expert
    dense_key: str = "intermediate_size"
    shared_key: str = ""  # width of the shared expert; without, as many experts' as there are shared ones
    shared_gate: bool = False
    expert_bias: bool = False  # of router and experts
    extra_per_expert: int = 0  # parameters an expert that no product is made with
    gated_mlp: bool = True
    tied: bool = False
    apart: bool = False  # layers of a mixer and layers of an MLP take turns
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # keys that may have these values alone
    beside: "Callable[[Section], Part] | None" = None  # what each layer has besides
    once: str = ""  # a key that says how many parameters the model has besides
    layer: "Callable[[Section, Family], Part] | None" = None  # where layers are alike and like no others

    def bias(self, section: Section, of: tuple[str, bool] | bool) -> bool:
        """Read a bias."""
        return of if isinstance(of, bool) else section.flag(*of)


def decoder_of(section: Section, family: Family, layers_key: str = "num_hidden_layers") -> Decoder:
    """Return the decoder of a configuration; InputError names the key that is missing, wrong or not supported."""
    for key, values in {**_UNSUPPORTED, **family.fixed}.items():
        found = section.raw(key, None)
        if found not in values and not (isinstance(found, list) and found and set(found) <= set(values)):
            rule = " or ".join("absent" if value is None else str(value) for value in values)
            raise section.refuse(key, found, f"must be {rule}: what it changes is not counted")
    hidden = section.count("hidden_size")
    kinds = _kinds(section, family, layers_key)
    sparse = family.sparse(section, len(kinds))
    own = _overrides(section, len(kinds))
    made: dict[tuple[str, bool, str], Part] = {}
    listed = list(zip(kinds, sparse, map(repr, own), strict=True))
    for each, keys in zip(listed, own, strict=True):
        if each not in made:
            of_layer = section.beside(keys)
            made[each] = family.layer(of_layer, family) if family.layer else _layer(of_layer, family, *each[:2])
    heads = section.count("num_attention_heads")
    kv_heads = kv_heads_of(section, heads)
    attention = Attention(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_width(section, family, heads))
    block = Block(attention=attention, mlp=Mlp(hidden=hidden, intermediate=1), norm_parameters=0)
    return Decoder(
        block=block, layers=len(kinds), vocabulary=section.count("vocab_size"),
        tied=section.flag("tie_word_embeddings", family.tied),
        extra_parameters=hidden + (section.count(family.once, 0, minimum=0) if family.once else 0),
        unlike=tuple(made[each] for each in listed),
    )  # fmt: skip


def kv_heads_of(section: Section, heads: int) -> int:
    """Return how many heads keys and values have: by default as many as queries, else what divides them."""
    kv_heads = section.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise section.refuse("num_key_value_heads", kv_heads, f"must divide num_attention_heads {heads}")
    return kv_heads


def head_width(section: Section, family: Family, heads: int) -> int:
    """Return how wide a head of queries and keys is."""
    hidden = section.count("hidden_size")
    if section.raw("kv_lora_rank", None) is not None:
        return section.count("qk_nope_head_dim") + section.count("qk_rope_head_dim")
    if family.own_heads:
        return head_dim_of(section, hidden, heads)
    if hidden % heads:
        raise section.refuse("num_attention_heads", heads, f"must divide hidden_size {hidden}")
    return hidden // heads


def _kinds(section: Section, family: Family, layers_key: str) -> list[str]:
    """Return the kind of each layer: listed, or by the family's older keys."""
    key = section.present(("layer_types", "layers_block_type"))
    if not key or family.own_kinds:
        return family.kinds(section, section.count(layers_key))
    found = section.raw(key)
    layers = section.count(layers_key, len(found) if isinstance(found, list) else 1)
    known = [FULL, *family.mixers, *(("moe", "mlp") if family.apart else (SLIDING, CHUNKED))]
    renamed = [_OLD_KINDS.get(kind, kind) for kind in found] if isinstance(found, list) else found
    _check_list(section, key, renamed, layers, known)
    return list(renamed)


def _overrides(section: Section, layers: int) -> list[dict[str, Any]]:
    """Return the keys of each layer that differ from the model's."""
    given = section.raw("per_layer_config", {})
    if not isinstance(given, dict) or not all(isinstance(keys, dict) for keys in given.values()):
        raise section.refuse("per_layer_config", str(given), "must be an object of an object a layer")
    return [dict(given.get(str(i)) or given.get(i) or {}) for i in range(layers)]


def _check_list(section: Section, key: str, found: Any, layers: int, known: Sequence[str]) -> None:
    if not isinstance(found, list) or len(found) != layers:
        count = f"{len(found)} of them" if isinstance(found, list) else found
        raise section.refuse(key, count, f"must be a list of {layers} kinds, one a layer")
    for kind in found:
        if kind not in known:
            raise section.refuse(key, kind, f"must be of {', '.join(dict.fromkeys(known))}")


def _layer(section: Section, family: Family, kind: str, sparse: bool) -> Part:
    hidden = section.count("hidden_size")
    parts = [norm(*[hidden] * family.norms)]
    if not family.apart or kind not in ("moe", "mlp"):
        parts.append(family.mixers.get(kind, grouped_of)(section, family, kind))
    if not family.apart or kind in ("moe", "mlp"):
        parts.append(experts_of(section, family) if sparse or kind == "moe" else mlp_of(section, family))
    if family.beside:
        parts.append(family.beside(section))
    return total(parts)


def mlp_of(section: Section, family: Family) -> Part:
    """Return the MLP that all tokens meet."""
    bias = family.bias(section, family.mlp_bias)
    return mlp(section.count("hidden_size"), section.count(family.dense_key), gated=family.gated_mlp, bias=bias)


def experts_of(section: Section, family: Family) -> Part:
    """Router, experts, and what all tokens share."""
    hidden, width = section.count("hidden_size"), section.count(family.expert_key)
    number, active = section.any_count(EXPERT_KEYS), section.any_count(ACTIVE_KEYS)
    if active > number:
        raise section.refuse(section.present(ACTIVE_KEYS), active, f"must be <= {number} experts")
    idle = section.count("zero_expert_num", 0, minimum=0)
    one = mlp(hidden, width, gated=family.gated_mlp, bias=family.expert_bias)
    parts = [linear(hidden, number + idle, family.expert_bias), norm(family.extra_per_expert * number),
             experts(one, number, active, of=number + idle)]  # fmt: skip
    shared = 0
    if family.shared_key:
        shared = section.count(family.shared_key, 0, minimum=0)
    elif section.present(_SHARED):
        shared = section.any_count(_SHARED, 0, minimum=0) * width
    if shared:
        parts.append(mlp(hidden, shared, gated=family.gated_mlp))
        if family.shared_gate:
            parts.append(linear(hidden, 1))
    return total(parts)


def _area(section: Section, kind: str) -> str:
    """Return the name of what a kind of layer sees."""
    if kind == SLIDING:
        return f"window{section.count('sliding_window')}"
    return f"chunk{section.count('attention_chunk_size')}" if kind == CHUNKED else "full"


def grouped_of(section: Section, family: Family, kind: str) -> Part:
    """Attention by the usual keys; those of sliding layers may have a prefix of their own."""
    heads = section.count("num_attention_heads")
    kv_heads = section.count("num_key_value_heads", heads)
    head_dim = head_width(section, family, heads)
    value_dim = section.count("v_head_dim", head_dim)
    if kind == SLIDING:
        heads, kv_heads = (
            section.count("swa_num_attention_heads", heads),
            section.count("swa_num_key_value_heads", kv_heads * family.sliding_kv),
        )
        head_dim, value_dim = section.count("swa_head_dim", head_dim), section.count("swa_v_head_dim", value_dim)
    if kind == FULL and section.raw("global_head_dim", None) is not None:
        head_dim = value_dim = section.count("global_head_dim")
    shared = kind == FULL and section.flag("attention_k_eq_v", False)
    if shared:
        kv_heads = section.count("num_global_key_value_heads", kv_heads)
    if heads % kv_heads:
        raise section.refuse("num_key_value_heads", kv_heads, f"must divide num_attention_heads {heads}")
    normed = family.qk_norm if not family.qk_norm_key or section.flag(family.qk_norm_key, False) else ""
    widths = {"": (), "head": (2 * head_dim,), "wide": (heads * head_dim, kv_heads * head_dim)}[normed]
    part = grouped(
        section.count("hidden_size"), Heads(heads, kv_heads, head_dim, value_dim), _area(section, kind),
        qkv_bias=family.bias(section, family.qkv_bias), output_bias=family.bias(section, family.output_bias),
        shared_values=shared, gate=heads * head_dim * (family.doubled_queries or family.gated_outputs),
    )  # fmt: skip
    return part + norm(*widths, heads * (kind in family.sinks))


def latent_of(section: Section, family: Family, kind: str) -> Part:
    """Multi-head latent attention; sparse where the kind is indexed: the indexer over all pairs, then the top ones."""
    hidden, heads = section.count("hidden_size"), section.count("num_attention_heads")
    rank = section.count("q_lora_rank", 0, minimum=0)
    indexed = kind in (INDEXED, REUSED)
    area = f"topk{section.count('index_topk')}" if indexed else "full"
    sizes = LatentSizes(
        rank, section.count("kv_lora_rank"), section.count("qk_nope_head_dim"), section.count("qk_rope_head_dim"),
        section.count("v_head_dim"),
    )  # fmt: skip
    part = latent(hidden, heads, area, sizes, family.bias(section, family.qkv_bias))
    if kind == INDEXED:
        part += indexer(hidden, rank, section.count("index_n_heads"), section.count("index_head_dim"))
    return part + linear(hidden, heads) if family.gated_outputs else part


def mamba_1(section: Section, family: Family, kind: str) -> Part:
    """Mamba with norms of what it selects, as Jamba has it (arXiv:2403.19887)."""
    hidden, state = section.count("hidden_size"), section.count("mamba_d_state")
    inner = hidden * section.count("mamba_expand", 2)
    given = section.raw("mamba_dt_rank", "auto")
    rank = -(-hidden // 16) if given == "auto" else section.count("mamba_dt_rank")
    bias = section.flag("mamba_proj_bias", False)
    return total((
        linear(hidden, 2 * inner, bias),
        conv(inner, section.count("mamba_d_conv", 4), section.flag("mamba_conv_bias", True)),
        linear(inner, rank + 2 * state), linear(rank, inner, True), norm(inner * state, inner, rank, 2 * state),
        linear(inner, hidden, bias), scan(2, inner, 1, state), Part(kept=hidden + 2 * inner),
    ))  # fmt: skip


def mamba_2(section: Section, family: Family, kind: str) -> Part:
    """Mamba 2 by either set of keys: ``mamba_n_heads`` and so on, or ``mamba_num_heads`` and so on."""
    hidden, heads = section.count("hidden_size"), section.any_count(("mamba_n_heads", "mamba_num_heads"))
    state = section.any_count(("mamba_d_state", "ssm_state_size"))
    groups = section.any_count(("mamba_n_groups", "n_groups"))
    inner = section.count("mamba_d_ssm", 0, minimum=0) or hidden * section.any_count(("mamba_expand", "expand"), 2)
    head_dim = inner // heads
    if section.raw("mamba_head_dim", None) is not None:
        head_dim = section.count("mamba_head_dim")
        inner = heads * head_dim
    bias = section.flag("mamba_proj_bias", False)
    wide = inner + 2 * groups * state
    kernel = section.any_count(("mamba_d_conv", "conv_kernel"), 4)
    parts = [
        linear(hidden, inner + wide + heads, bias),
        conv(wide, kernel, section.any_flag(("mamba_conv_bias", "use_conv_bias"), True)),
        norm(3 * heads), linear(inner, hidden, bias), scan(2, heads, head_dim, state), Part(kept=hidden + 2 * inner),
    ]  # fmt: skip
    if section.flag("mamba_rms_norm", True):
        parts.append(norm(inner))
    return total(parts)


def delta_net(section: Section, family: Family, kind: str) -> Part:
    """Gated delta nets: keys and values of head counts of their own, a convolution before, a gate behind."""
    hidden, heads = section.count("hidden_size"), section.count("linear_num_value_heads")
    key_heads = section.count("linear_num_key_heads")
    key_dim, value_dim = section.count("linear_key_head_dim"), section.count("linear_value_head_dim")
    keys, values = key_heads * key_dim, heads * value_dim
    return total((
        linear(hidden, 2 * keys + 2 * values), linear(hidden, 2 * heads),
        conv(2 * keys + values, section.count("linear_conv_kernel_dim", 4)), norm(2 * heads, value_dim),
        linear(values, hidden), scan(3, heads, value_dim, key_dim), Part(kept=hidden + 2 * keys + 2 * values),
    ))  # fmt: skip


def kimi_delta(section: Section, family: Family, kind: str) -> Part:
    """Kimi Delta Attention (arXiv:2510.26692): a decay a channel, by two thin matrices or one wide one."""
    nested = section.raw("linear_attn_config", {})
    if not isinstance(nested, dict):
        raise section.refuse("linear_attn_config", nested, "must be an object")
    inside = section.beside(nested)
    heads = inside.any_count(("num_heads", "linear_num_heads"), section.count("num_attention_heads"))
    head_dim = inside.count("head_dim" if inside.raw("linear_head_dim", None) is None else "linear_head_dim")
    kernel = inside.any_count(("short_conv_kernel_size", "linear_conv_kernel_dim"), 4)
    hidden, wide = section.count("hidden_size"), heads * head_dim
    thin = linear(hidden, head_dim) + linear(head_dim, wide)
    through = linear(hidden, wide) if family.gated_outputs else thin
    return total((
        linear(hidden, 3 * wide), conv(3 * wide, kernel), norm(wide, heads, head_dim), linear(hidden, heads),
        through * 2, linear(wide, hidden), scan(3, heads, head_dim, head_dim), Part(kept=hidden + 4 * wide),
    ))  # fmt: skip


def short_conv(section: Section, family: Family, kind: str) -> Part:
    """A gated short convolution (LFM2)."""
    hidden, bias = section.count("hidden_size"), section.flag("conv_bias", False)
    return total((
        linear(hidden, 3 * hidden, bias), conv(hidden, section.count("conv_L_cache", 3), bias),
        linear(hidden, hidden, bias), Part(kept=5 * hidden),
    ))  # fmt: skip
