"""Models by name and by config.json: published parameters, and what cannot be read says which key."""

import json

import pytest
from published import PUBLISHED

import balancer
from balancer.cost import MODELS, flops, module, parse_cost, read_config
from balancer.cost.hf_config import MODEL_TYPES, modules_of
from balancer.cost.hf_families import ENCODERS, FAMILIES, WHOLE


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_ones(name):
    assert module(name).parameters == pytest.approx(PUBLISHED[name], rel=0.002)


def test_parameters_are_those_of_the_released_weights():
    """Counted in the weight files, to the last one."""
    exact = {"qwen2-7b": 7_615_616_512, "qwen2-72b": 72_706_203_648}
    exact |= {"llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496}
    for name, parameters in exact.items():
        assert module(name).parameters == parameters


def test_training_flops_are_near_six_a_parameter_and_token():
    for name in ("qwen2-7b", "qwen2-72b", "llama-3-8b", "llama-3-70b"):
        shape = module(name)
        embedding = shape.hidden * shape.vocabulary  # looked up, not multiplied
        assert flops(name).a == pytest.approx(6 * (shape.parameters - embedding), rel=1e-4)


def test_names_in_any_case_and_unknown_ones():
    assert module("Qwen2-7B") == module("qwen2-7b")
    with pytest.raises(balancer.InputError, match="unknown model 'llama'; known are qwen2-7b, qwen2-72b, llama-3-8b"):
        module("llama")


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}
# Parameters as Hugging Face's own classes count them for these configurations (transformers 5.23).
SMALL = {**CONFIG, "num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": 1000}
COUNTED = [
    ({**SMALL, "model_type": "llama"}, 220_608),
    ({**SMALL, "model_type": "gemma", "head_dim": 256}, 709_568),
    ({"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 1000}, 222_272),
    ({**SMALL, "model_type": "gpt_neox"}, 216_160),
    (
        {
            "model_type": "clip_vision_model",
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "patch_size": 14,
            "image_size": 56,
        },
        139_456,
    ),
]


@pytest.mark.parametrize(("config", "parameters"), COUNTED, ids=lambda value: str(value)[:40])
def test_parameters_as_the_library_counts_them(config, parameters):
    (shape,) = modules_of(config).values()
    assert shape.parameters == pytest.approx(parameters, rel=1e-3)  # norms of queries and keys are left out


LLM = {**SMALL, "model_type": "qwen2"}
SEVERAL = {
    "qwen2_vl": ({**LLM, "model_type": "qwen2_vl", "vision_config": {"depth": 2}}, {"vision": 85_435_904}),
    "qwen2_5_vl": (
        {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": {**LLM, "model_type": "qwen2_5_vl_text"}},
        {"llm": 220_992},
    ),
    "llava": (
        {"model_type": "llava", "vision_config": dict(COUNTED[-1][0]), "text_config": {"model_type": "llama"}},
        {"vision": 139_456 + 64 * 4096 + 4096 + 4096 * 4096 + 4096, "llm": 6_738_415_616},
    ),
    "internvl_chat": (
        {"model_type": "internvl_chat", "vision_config": MODELS["internvit-300m"], "llm_config": LLM},
        {"vision": 304_012_288 + 2 * 4096 + 4096 * 64 + 64 + 64 * 64 + 64},
    ),
    "qwen2_audio": (
        {
            "model_type": "qwen2_audio",
            "text_config": LLM,
            "audio_config": {**MODELS["whisper-large-v3-encoder"], "model_type": "qwen2_audio_encoder"},
        },
        {"audio": 636_968_960 + 1280 * 64 + 64},
    ),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_models_of_several_modules(kind, tmp_path):
    config, parameters = SEVERAL[kind]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    modules = read_config(path)
    assert len(modules) == 2
    for part, count in parameters.items():
        assert modules[part].parameters == count
        assert module(f"{path}#{part}") == modules[part]
    with pytest.raises(balancer.InputError, match="has several modules; add one of #"):
        module(str(path))
    with pytest.raises(balancer.InputError, match="no module 'smell'"):
        module(f"{path}#smell")


def test_a_config_gives_costs(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODELS["llama-3-8b"]))
    assert flops(str(path)) == flops("llama-3-8b")
    plan = balancer.balance([5, 6, 7], 2, cost=f"flops:{path}")
    assert plan.makespan == balancer.balance([5, 6, 7], 2, cost="flops:llama-3-8b").makespan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 0}, "key 'hidden_size' must be an integer >= 1, got 0"),
        ({"hidden_size": 4 * 10**200}, "key 'hidden_size' must be <= 2147483647, got 4000"),
        ({"hidden_size": "64"}, "key 'hidden_size' must be an integer"),
        ({"hidden_size": 62}, "key 'num_attention_heads' must divide hidden_size 62, got 4"),
        ({"tie_word_embeddings": 1}, "key 'tie_word_embeddings' must be true or false, got 1"),
        ({"model_type": "internvl_chat", "vision_config": 3}, "key 'vision_config' must be an object, got 3"),
        ({"model_type": "internvl_chat"}, "key 'vision_config' is missing"),
        (
            {"model_type": "llava", "vision_config": {"model_type": "vit"}, "text_config": {"model_type": "llama"}},
            "key 'vision_config.hidden_size' is missing, which model_type 'vit' needs; others call it n_embd, d_model",
        ),
        (
            {"model_type": "qwen2_audio", "audio_config": {}, "text_config": LLM},
            "key 'audio_config.d_model' is missing",
        ),
    ],
)
def test_bad_configs(change, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(balancer.InputError, match=words) as caught:
        read_config(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such file"), ("{", "cannot be read as JSON"), ("[]", "must hold one JSON object"), ("\xff", "JSON")],
)
def test_files_that_are_no_config(content, words, tmp_path):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(balancer.InputError, match=words):
        read_config(path)


def test_every_type_is_tested():
    covered = {config["model_type"] for config, _ in COUNTED} | set(SEVERAL)
    covered |= {model["model_type"] for model in MODELS.values()}
    spelled_otherwise = {"internlm2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_vl_vision", "qwen2_audio_encoder"}
    elsewhere = set(FAMILIES) | set(WHOLE) | set(ENCODERS)  # test_families.py, test_vision.py
    assert set(MODEL_TYPES) == covered | spelled_otherwise | elsewhere


def test_a_file_that_changes_is_another_cost(tmp_path):
    """A cost names a file, whose contents count: a notebook may write it anew, or a run go to another folder."""
    path, found = tmp_path / "config.json", []
    shape = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
             "intermediate_size": 128, "vocab_size": 100}  # fmt: skip
    for layers in (1, 2):
        path.write_text(json.dumps(shape | {"num_hidden_layers": layers}))
        cost = parse_cost(f"flops:{path}")
        found.append((cost.exact(1000) - cost.constant) * cost.flops_of_unit)
    assert found[0] < found[1]
