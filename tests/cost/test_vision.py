"""Vision encoders of 2025's models against the library's classes: parameters, and FLOPs of every product."""

import json

import pytest

import balancer
from balancer.cost import module
from balancer.cost.hf_config import modules_of

QWEN_3 = {
    "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 80, "patch_size": 4,
    "num_position_embeddings": 64, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
DEEP = {**QWEN_3, "deepstack_visual_indexes": [1, 2]}
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "image_size": 32, "patch_size": 4, "vision_use_head": False,
}  # fmt: skip
TEXT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "intermediate_size": 96, "head_dim": 16, "sliding_window": 8,
}  # fmt: skip
GEMMA_3 = {"model_type": "gemma3", "text_config": TEXT, "vision_config": SIGLIP, "mm_tokens_per_image": 16}


def counted(call):
    """Return FLOPs of products with weights, and of those between tokens."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    each = counter.get_flop_counts()["Global"].items()
    between = sum(count for product, count in each if "bmm" in str(product))
    return sum(count for _, count in each) - between, between


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("qwen3_vl_vision", DEEP),
        ("qwen3_vl_moe_vision", DEEP),
        ("qwen3_5_vision", QWEN_3),
        ("qwen3_5_moe_vision", QWEN_3),
    ],
)
def test_qwen_3_has_no_windows_and_mergers_of_inner_layers(kind, sizes):
    transformers = pytest.importorskip("transformers")
    import torch

    config = transformers.CONFIG_MAPPING[kind](**sizes)
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config).eval()
    shape = modules_of({"model_type": kind, **sizes})["vision"]
    saved = json.loads(json.dumps(config.to_dict(), default=str))
    assert shape.parameters == modules_of(saved)["vision"].parameters == sum(p.numel() for p in model.parameters())
    flops = shape.flops(backward=False)
    for rows in (4, 8, 12):
        patches, grid = 4 * rows, torch.tensor([[1, rows, 4]])
        found = counted(lambda n=patches, grid=grid: model(torch.zeros(n, 3 * 2 * 16), grid_thw=grid))
        assert found == (flops.a * patches, flops.b * patches**2)


def test_gemma_3_pools_squares_of_patches():
    transformers = pytest.importorskip("transformers")
    import torch

    config = transformers.Gemma3Config(**{key: GEMMA_3[key] for key in GEMMA_3 if key != "model_type"})
    config._attn_implementation = "eager"
    model = transformers.Gemma3ForConditionalGeneration(config).eval().model
    parts = model.vision_tower, model.multi_modal_projector
    modules = modules_of(json.loads(json.dumps(config.to_dict(), default=str)))
    assert modules["vision"].parameters == sum(p.numel() for part in parts for p in part.parameters())
    flops = modules["vision"].flops(backward=False)
    found = counted(lambda: parts[1](parts[0](torch.zeros(1, 3, 32, 32)).last_hidden_state))
    assert found == (flops.a * 64, flops.b * 64**2)


@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "gemma3"])
def test_a_model_of_two_parts_is_read_as_two(kind, tmp_path):
    whole = GEMMA_3 if kind == "gemma3" else {
        "model_type": kind, "vision_config": {"depth": 3}, "text_config": _text_of(kind)}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(whole))
    assert module(f"{path}#vision").layers == 3
    with pytest.raises(balancer.InputError, match="has several modules; add one of #vision, #llm"):
        module(str(path))
    del (alone := dict(whole))["vision_config"]
    path.write_text(json.dumps(alone))
    assert module(str(path)).layers == 2


def _text_of(kind):
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
               "shared_expert_intermediate_size": 40}  # fmt: skip
    scans = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
             "linear_value_head_dim": 16}  # fmt: skip
    sizes = {key: value for key, value in TEXT.items() if key != "sliding_window"}
    return sizes | (experts if kind.endswith("moe") else {}) | (scans if kind.startswith("qwen3_5") else {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vision_config": {**SIGLIP, "vision_use_head": True}}, "'vision_config.vision_use_head' must be false"),
        ({"mm_tokens_per_image": 15}, "'mm_tokens_per_image' must be 8 x 8 patches in squares, got 15"),
        ({"vision_config": {**SIGLIP, "image_size": 3}}, "'mm_tokens_per_image' must be 0 x 0 patches in squares"),
        ({"mm_tokens_per_image": 256}, "'mm_tokens_per_image' must be 8 x 8 patches in squares, got 256"),
        ({"vision_config": {"model_type": "dream"}}, "'vision_config.image_size' is missing, which model_type 'dream'"),
    ],
)
def test_keys_that_change_the_cost_are_refused_by_name(change, words):
    with pytest.raises(balancer.InputError, match=words):
        modules_of({**GEMMA_3, **change})
    with pytest.raises(balancer.InputError, match="'deepstack_visual_indexes' must be a list, got 3"):
        modules_of({"model_type": "qwen3_vl_vision", **QWEN_3, "deepstack_visual_indexes": 3})
