"""Families by config.json: parameters and FLOPs against the library's classes, areas against the masks it builds."""

import json
from itertools import pairwise

import numpy as np
import pytest

import balancer
from balancer.cost import SaturatingThroughput, flops, module, parse_cost
from balancer.cost.areas import area
from balancer.cost.hf_config import MODEL_TYPES, modules_of
from balancer.cost.hf_families import FAMILIES, WHOLE
from balancer.cost.memory import kept_bytes
from balancer.layout_choice.memory import memory_of_devices
from balancer.layouts.layout import ModuleLayout, StepLayout
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.simulate.cluster import CLUSTERS
from balancer.simulate.phase_model import PhaseModel

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "intermediate_size": 96, "max_position_embeddings": 512,
}  # fmt: skip
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
       "num_key_value_heads": 4}  # fmt: skip
KDA = {**MLA, "q_lora_rank": None, "num_experts": 8, "pad_token_id": 0, **MOE}
GROUPS = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, **MLA, **MOE}
DSA = {"index_topk": 8, "index_head_dim": 16, "index_n_heads": 4, **GROUPS}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_d_head": 16}
WINDOW = {"sliding_window": 8, "head_dim": 24}
OLD_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
SMALL = {
    "mistral": WINDOW,
    "ministral": WINDOW,
    "mixtral": {"sliding_window": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": OLD_WINDOW,
    "qwen2_moe": {**OLD_WINDOW, "num_experts": 8, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1], **MOE},
    "qwen3": {**OLD_WINDOW, "head_dim": 24},
    "qwen3_moe": {"head_dim": 24, "num_experts": 8, "mlp_only_layers": [1], **OLD_WINDOW, **MOE},
    "qwen3_next": {"num_experts": 8, "mlp_only_layers": [1], "shared_expert_intermediate_size": 40, "head_dim": 24,
                   **DELTA, **MOE},
    "qwen3_5_text": {"head_dim": 24, **DELTA},
    "qwen3_5_moe_text": {"num_experts": 8, "shared_expert_intermediate_size": 40, "head_dim": 24, **DELTA, **MOE},
    "phi3": {"sliding_window": 8, "pad_token_id": 0},
    "gemma2": WINDOW,
    "gemma3_text": WINDOW,
    "gemma4_text": {**WINDOW, "global_head_dim": 32, "hidden_size_per_layer_input": 8, "attention_k_eq_v": True,
                    "num_global_key_value_heads": 1, "vocab_size_per_layer_input": 1000},
    "gpt_oss": {**WINDOW, "num_local_experts": 8, "num_experts_per_tok": 2},
    "olmo3": {"sliding_window": 8, "pad_token_id": 0},
    "olmo_hybrid": {**DELTA, "linear_num_key_heads": 4, "pad_token_id": 0},
    "cohere2": {"sliding_window": 8, "sliding_window_pattern": 3},
    "llama4_text": {"attention_chunk_size": 8, "head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 1,
                    "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128, "pad_token_id": 0},
    "smollm3": {"pad_token_id": 0},
    "seed_oss": {"head_dim": 24},
    "exaone4": WINDOW,
    "ernie4_5": {"head_dim": 24},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2},
    "hy_v3": {"head_dim": 24, "num_experts": 8, "num_shared_experts": 1, **MOE},
    "afmoe": {**WINDOW, "num_experts": 8, "num_shared_experts": 2, **MOE},
    "minimax_m2": {"head_dim": 24, "num_local_experts": 8, "num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 1, "attention_bias": True,
                 "use_qk_norm": True, **MOE},
    "mimo_v2_flash": {**WINDOW, "v_head_dim": 16, "n_routed_experts": 8, **MOE},
    "deepseek_v2": {**GROUPS, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "deepseek_v3": {**GROUPS, "first_k_dense_replace": 2},
    "deepseek_v32": DSA,
    "glm_moe_dsa": {**DSA, "index_topk_freq": 2},
    "glm4_moe_lite": GROUPS,
    "mistral4": {**GROUPS, "first_k_dense_replace": 1},
    "longcat_flash": {"num_layers": 3, "n_routed_experts": 8, "zero_expert_num": 0, "head_dim": 8, "moe_topk": 2,
                      "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, **MLA},
    "kimi_linear": {**KDA, "linear_head_dim": 8, "linear_num_heads": 4, "n_shared_experts": 1},
    "bailing_hybrid": {**KDA, "head_dim": 16, "n_shared_experts": 1, "layer_group_size": 3, "n_group": 2,
                       "topk_group": 1},
    "jamba": {"num_experts": 8, "num_experts_per_tok": 2, "attn_layer_period": 3, "attn_layer_offset": 1,
              "mamba_d_state": 8, "use_mamba_kernels": False},
    "granitemoehybrid": {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
                         "layer_types": ["mamba", "mamba", "attention"] * 2, **MAMBA},
    "falcon_h1": {"head_dim": 24, "mamba_d_ssm": 128, **MAMBA},
    "nemotron_h": {"hybrid_override_pattern": "M*E-M*", "head_dim": 24, "mamba_num_heads": 8, "mamba_head_dim": 16,
                   "ssm_state_size": 16, "n_groups": 2, "n_routed_experts": 8, "n_shared_experts": 1,
                   "moe_shared_expert_intermediate_size": 40, **MOE},
    "lfm2": {"full_attn_idxs": [1, 4], "block_multiple_of": 16},
    "lfm2_moe": {"num_experts": 8, "layer_types": ["conv", "full_attention", "conv"] * 2, **MOE},
}  # fmt: skip
SAME_AS = {"qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "qwen3_omni_moe_text": "qwen3_moe"}
SCANS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear", "bailing_hybrid", "jamba",
         "granitemoehybrid", "falcon_h1", "nemotron_h")  # fmt: skip


def given(kind):
    sizes = {key: value for key, value in SIZES.items() if kind != "longcat_flash" or key != "num_hidden_layers"}
    return {**sizes, **SMALL[kind]}


def library_model(kind, device, keys):
    transformers = pytest.importorskip("transformers")
    import torch

    torch.set_num_threads(1)  # several would wait for each other longer than these sizes take
    config = transformers.CONFIG_MAPPING[kind](**keys)
    with torch.device(device):
        if kind == "mistral4":  # which the library has no automatic class for
            config._attn_implementation = config._experts_implementation = "eager"
            return config, transformers.Mistral4ForCausalLM(config).eval()
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        )
        return config, model.eval()


def test_every_family_is_tried():
    # Five are tried by test_named_models.py.
    assert set(SMALL) | set(SAME_AS) | {"llama", "internlm2", "gemma", "gpt2", "gpt_neox"} == set(FAMILIES)
    assert set(FAMILIES) | set(WHOLE) <= set(MODEL_TYPES)


DEFAULTS = {
    "ministral": {"head_dim": 128, "num_key_value_heads": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "longcat_flash": {"zero_expert_num": 0},
}
"""Keys beside those by default: of configurations that the library cannot build, or gives idle experts weights."""


@pytest.mark.parametrize("kind", SMALL)
def test_parameters_are_those_of_the_library(kind):
    """To 0.1 %, at default sizes, as the library saves them."""
    keys = DEFAULTS.get(kind, {})
    config, model = library_model(kind, "meta", keys)
    assert modules_of(as_saved(config))["llm"].parameters == pytest.approx(parameters_of(model), rel=1e-3)


def as_saved(config):
    return json.loads(json.dumps(config.to_dict(), default=str))


def parameters_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_types_of_parts_are_read_as_those_alone():
    for kind, like in SAME_AS.items():
        plain = {key: value for key, value in given(like).items() if key not in OLD_WINDOW}
        shape, same = (modules_of({**plain, "model_type": each})["llm"] for each in (kind, like))
        assert shape.parameters == same.parameters
        assert shape.flops().areas == (("full", 2 * same.flops().b),)


def counted_flops(model, tokens):
    """FLOPs of products with weights, and of those between tokens."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(tokens)[None] % 1000, use_cache=False)
    each = counter.get_flop_counts()["Global"].items()
    between = sum(count for product, count in each if "bmm" in str(product))
    return sum(count for _, count in each) - between, between


@pytest.mark.parametrize("kind", SMALL)
def test_parameters_and_flops_are_those_of_the_library(kind):
    """Tiny ones, where the norms left out are more, as saved and as given; of those that scan, weights beside scans.

    Eager attention counts every pair whatever the mask: the numbers of all masks together are seen, as squares.
    """
    config, model = library_model(kind, "cpu", given(kind))
    typed = {**given(kind), "model_type": kind}
    for values in (as_saved(config), typed):
        assert modules_of(values)["llm"].parameters == pytest.approx(parameters_of(model), rel=0.015)
    found = modules_of(typed)["llm"].flops(backward=False)
    scans = kind in SCANS
    lengths = (64, 128) if scans else (8, 16, 24)
    weights, between = zip(*(counted_flops(model, tokens) for tokens in lengths), strict=True)
    each = [(b - a) / (lengths[1] - lengths[0]) for a, b in pairwise(weights)]
    if scans:
        per_state = {
            "jamba": 4 * 128 * 8 * 4, "nemotron_h": 4 * 8 * 16 * 16 * 2, "granitemoehybrid": 4 * 8 * 16 * 16 * 4,
            "falcon_h1": 4 * 8 * 16 * 16 * 6, "olmo_hybrid": 6 * 4 * 16 * 8 * 5, "kimi_linear": 6 * 4 * 8 * 8 * 5,
            "bailing_hybrid": 6 * 4 * 16 * 16 * 4,
        }  # fmt: skip
        assert each == [found.a - per_state.get(kind, 6 * 4 * 16 * 8 * 5)]
        return
    routed = 3 * 2 * 3 * 64 * 96 if kind == "llama4_text" else 0  # whose experts the library runs as one, on all tokens
    assert each == [found.a - routed] * 2
    square = (between[2] - 2 * between[1] + between[0]) / (2 * 8 * 8)
    assert square == sum(value for _, value in found.areas) + 2 * found.b


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gemma3_text", {"full": 1, "window8": 5}),
        ("gpt_oss", {"full": 3, "window8": 3}),
        ("cohere2", {"full": 2, "window8": 4}),
        ("olmo3", {"full": 1, "window8": 5}),
        ("llama4_text", {"full": 1, "chunk8": 5}),
        ("qwen2", {"full": 2, "window8": 4}),
        ("mistral", {"window8": 6}),
        ("mimo_v2_flash", {"full": 2, "window8": 4}),
    ],
)
def test_layers_see_what_their_masks_keep(kind, expected):
    found = dict(modules_of({**given(kind), "model_type": kind})["llm"].flops(backward=False).areas)
    whole = found["full"] // expected["full"] if "full" in expected else found["window8"] // 6
    assert {name: value // whole for name, value in found.items()} == expected


@pytest.mark.parametrize("tokens", [7, 8, 9, 24])
@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss", "llama4_text", "mistral"])
def test_areas_are_those_of_the_masks_that_the_library_builds(kind, tokens):
    transformers = pytest.importorskip("transformers")
    import torch
    from transformers import masking_utils

    config = transformers.CONFIG_MAPPING[kind](**given(kind))
    config._attn_implementation = "eager"
    chunked = kind == "llama4_text"
    make = masking_utils.create_chunked_causal_mask if chunked else masking_utils.create_sliding_window_causal_mask
    embeds = torch.zeros(1, tokens, 64)
    for build, name in ((make, "chunk8" if chunked else "window8"), (masking_utils.create_causal_mask, "full")):
        mask = build(config=config, inputs_embeds=embeds, attention_mask=None, past_key_values=None,
                     position_ids=torch.arange(tokens)[None])  # fmt: skip
        assert int((mask == 0).sum()) == area(name, tokens)


def test_a_sparse_layer_looks_at_all_and_attends_to_the_top():
    found = dict(modules_of({**given("deepseek_v32"), "model_type": "deepseek_v32"})["llm"].flops(backward=False).areas)
    assert found == {"full": 6 * 2 * 4 * 17, "topk8": 6 * 2 * 4 * (12 + 8 + 16)}
    every_second = {**given("glm_moe_dsa"), "model_type": "glm_moe_dsa", "index_topk_freq": 3}
    indexers = dict(modules_of(every_second)["llm"].flops(backward=False).areas)["full"] / (2 * 4 * 17)
    assert indexers == 3  # the first two, and the fifth


def test_experts_that_do_nothing_cost_nothing():
    config = {**given("longcat_flash"), "model_type": "longcat_flash"}
    plain, idle = (modules_of({**config, "zero_expert_num": zero})["llm"] for zero in (0, 8))
    router = 3 * 2 * 64 * 8
    assert plain.flops(backward=False).a - (idle.flops(backward=False).a - router) == 3 * 2 * 3 * 64 * 32
    assert idle.active_parameters < plain.active_parameters + 3 * 64 * 8


def test_a_config_with_windows_makes_plans(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**given("gemma3_text"), "model_type": "gemma3_text"}))
    cost = parse_cost(f"flops:{path}")
    assert [name for name, _ in cost.areas] == ["full", "window8"]
    assert parse_cost(str(cost)) == cost
    assert balancer.balance([100, 90, 8, 60, 40], 2, cost=cost).gap >= 0
    assert flops(str(path)).integer_cost().rounding == 0
    nested = tmp_path / "nested.json"
    nested.write_text(json.dumps({"model_type": "gemma3", "text_config": given("gemma3_text")}))
    assert module(str(nested)).parameters == module(str(path)).parameters


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (
            "gemma3_text",
            {"layer_types": ["full_attention"] * 5},
            "'layer_types' must be a list of 6, one a layer",
        ),
        ("gemma3_text", {"layer_types": ["dream"] * 6}, "'layer_types' must be of full_attention, .*got \"dream\""),
        ("gemma3_text", {"sliding_window": 0}, "'sliding_window' must be an integer >= 1, got 0"),
        ("gemma3_text", {"sliding_window": None}, "'sliding_window' is missing"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' must be absent or False"),
        ("deepseek_v3", {"num_experts_per_tok": None}, "'num_experts_per_tok' is missing"),
        ("deepseek_v3", {"num_experts_per_tok": 9}, "'num_experts_per_tok' must be <= 8 experts, got 9"),
        ("deepseek_v3", {"num_experts": 7}, "'n_routed_experts' must be the 7 of 'num_experts', got 8"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "'moe_layer_freq' must be absent or 1"),
        (
            "glm_moe_dsa",
            {"layer_types": ["full_attention"] * 6},
            "'layer_types' must be of indexed_attention,",
        ),
        ("kimi_linear", {"linear_attn_config": 3}, "'linear_attn_config' must be an object, got 3"),
        ("gemma4_text", {"num_kv_shared_layers": 3}, "'num_kv_shared_layers' must be absent or 0"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "MXE-M*"},
            "'hybrid_override_pattern' must be of full_attention, .*, M, E, .* got \"X\"",
        ),
        ("minimax_m2", {"attn_type_list": [1, 0, 1, 1, 1, 1]}, "'attn_type_list' must be absent or 1"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 1]}, "'hybrid_layer_pattern' must be a list of 6"),
        ("olmo3", {"num_key_value_heads": 3}, "'num_key_value_heads' must divide num_attention_heads 4, got 3"),
    ],
)
def test_bad_keys_are_named(kind, change, words):
    values = {**(given(kind) if kind in SMALL else SIZES), "model_type": kind, **change}
    with pytest.raises(balancer.InputError, match=words) as caught:
        modules_of(values)
    assert "\n" not in str(caught.value)


def test_a_family_that_was_not_checked_is_read_with_a_line_that_says_so():
    """Keys alone tell windows, chunks, experts, and MLPs of two matrices by their activation."""
    plain = {**SIZES, "model_type": "dream", "sliding_window": 8, "hidden_act": "gelu"}
    with pytest.warns(
        UserWarning, match="config: model_type 'dream' was not checked: .* 0.000276 G parameters; compare"
    ):
        (shape,) = modules_of(plain).values()
    assert shape.flops().areas == (("window8", 3 * 6 * 4 * 64),)
    assert shape.parameters == 6 * (2 * 64 * 96 + 3 * 64 * 64 + 2 * 64) + 2 * 64 * 1000 + 64
    experts = {**plain, "sliding_window": None, "num_experts": 8, "hidden_act": "silu", **MOE}
    nested = {"model_type": "dream_vl", "text_config": experts, "vision_config": {}}
    with pytest.warns(UserWarning, match=r"config: text_config.model_type 'dream' was not checked"):
        (shape,) = modules_of(nested).values()
    assert shape.parameters == 6 * (8 * 3 * 64 * 32 + 64 * 8 + 3 * 64 * 64 + 2 * 64) + 2 * 64 * 1000 + 64
    scans = {**plain, "full_attention_interval": 3, **DELTA}
    with pytest.warns(UserWarning, match="'dream' was not checked"):
        assert modules_of(scans)["llm"].flops(backward=False).areas == (("full", 2 * 4 * 64),)
    with pytest.raises(
        balancer.InputError, match="key 'num_hidden_layers' is missing, which model_type None needs; others"
    ):
        modules_of({})


def test_keys_of_one_layer():
    """Layers are numbered as text, with zeros before or without."""
    base = {**given("gemma4_text"), "model_type": "gemma4_text", "attention_k_eq_v": False, "global_head_dim": None}
    for number in ("5", "05"):
        shape = modules_of({**base, "per_layer_config": {number: {"head_dim": 48}}})["llm"]
        assert dict(shape.flops(backward=False).areas) == {"full": 4 * 4 * 48, "window8": 5 * 4 * 4 * 24}


def test_what_classes_fill_in():
    """Glm4Moe rounds heads down, and DeepSeek-V2's class says no number of active experts: those published are 6."""
    glm = {**given("glm4_moe"), "model_type": "glm4_moe", "num_attention_heads": 6, "head_dim": None}
    assert modules_of(glm)["llm"].attention.head_dim == 10
    shape = modules_of({**given("deepseek_v2"), "model_type": "deepseek_v2", "num_experts_per_tok": None})["llm"]
    assert shape.parameters - shape.active_parameters == 5 * 2 * 3 * 64 * 32


def test_stages_differ_as_their_layers_do():
    """Gemma's full layer is in the last of two stages; a mean layer of the other is cheaper at 4,096 tokens."""
    shape = modules_of({**given("gemma3_text"), "model_type": "gemma3_text"})["llm"]
    stages = PipelineStages.of({"llm": 3}, {"llm": shape})
    first, second, _ = stages.forward["llm"]
    windowed, full = shape.unlike[0].flops(4096), shape.unlike[5].flops(4096)
    assert first == second
    head = 2 * 64 * 1000 * 4096
    assert stages.forward["llm"][2] / first == pytest.approx((windowed + full + head) / (2 * windowed), rel=0.05)
    cost = parse_cost(stages.costs["llm"])
    assert {name for name, _ in cost.areas} == {"full", "window8"}


def test_memory_of_stages_is_that_of_their_layers():
    shape = modules_of({**given("deepseek_v3"), "model_type": "deepseek_v3"})["llm"]  # two dense layers, then experts
    held = memory_of_devices(StepLayout({"llm": ModuleLayout(pp=3)}), {"llm": shape}).parameters["llm"]
    ends = 64 * 1000
    layers = [sum(layer.parameters for layer in shape.unlike[i : i + 2]) for i in (0, 2, 4)]
    assert held.tolist() == [layers[0] + ends, layers[1], layers[2] + ends]
    assert kept_bytes(shape, recompute=False).per_layer == 2 * sum(layer.kept for layer in shape.unlike) / 6


def test_simulated_flops_are_those_of_the_layers():
    shape = modules_of({**given("gpt_oss"), "model_type": "gpt_oss"})["llm"]
    model = PhaseModel.of(shape, SaturatingThroughput(1e12))
    lengths = np.array([0, 5, 8, 9, 400])
    assert model.useful_flops(lengths).tolist() == [shape.flops().exact(x) if x else 0 for x in lengths.tolist()]
    assert model.cost_model() == shape.flops().cost_model()


def test_a_ring_is_refused_for_windows():
    shape = modules_of({**given("gpt_oss"), "model_type": "gpt_oss"})["llm"]
    cost = shape.flops().integer_cost()
    assert CLUSTERS["h100"].shared_cost(cost, shape, [1, 2]).areas == cost.model.areas
    with pytest.raises(ValueError, match="exchange must be 'ulysses' for a model with window8"):
        CLUSTERS["h100"].shared_cost(cost, shape, [1, 2], exchange="ring")
