"""Layouts: what they refuse, what a file holds, and memory beside published figures."""

import json

import numpy as np
import pytest

from balancer.cost import module
from balancer.cost.hf_config import modules_of
from balancer.cost.memory import kept_bytes, state_bytes
from balancer.errors import InputError
from balancer.layout_choice.memory import memory_of_devices
from balancer.layouts.layout import ModuleLayout, StepLayout, read_layout

LLM = ModuleLayout(tp=8, pp=3, dp=16)


def gpt(hidden, layers, heads):
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 2048}
    return modules_of({"model_type": "gpt2", "vocab_size": 51200, **sizes})["llm"]


def test_states_as_the_zero_paper_has_them():
    """Figure 1 of Rajbhandari et al. 2020: 7.5 billion parameters, 64 ranks, in GB."""
    found = [round(state_bytes(7.5e9, stage, 64) / 1e9, 1) for stage in range(4)]
    assert found == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(("hidden", "layers", "heads", "stages"), [(6144, 48, 64, 1), (12288, 96, 96, 8)])
def test_activations_as_published_less_dropout(hidden, layers, heads, stages):
    """Korthikanti et al. 2022, tables 2 and 3 (22B and 175B): ``s b h L 34 / t``; its masks take 2 of the 34.

    The first stage holds as many micro-batches as there are stages, so all L layers' worth.
    """
    model = gpt(hidden, layers, heads)
    layout = StepLayout({"llm": ModuleLayout(tp=8, pp=stages)})
    first = memory_of_devices(layout, {"llm": model}).kept["llm"][0]
    head = kept_bytes(model, recompute=False).head / 8 * (stages == 1)
    assert (first - head) * stages * 8 == pytest.approx(hidden * layers * (34 - 2))
    assert kept_bytes(model, recompute=True).per_layer == 2 * hidden  # the paper's full recomputation


def test_states_are_those_of_all_parameters():
    models = {"vision": module("internvit-6b"), "llm": module("qwen2-72b")}
    layout = StepLayout({"vision": ModuleLayout(pp=2, dp=64), "llm": ModuleLayout(tp=4, pp=8, dp=16, chunks=1)})
    found = memory_of_devices(layout, models)
    assert found.parameters["vision"].sum() == pytest.approx(models["vision"].parameters)
    assert found.parameters["llm"].sum() * 4 == pytest.approx(models["llm"].parameters)
    assert found.kept["vision"][2:].sum() == found.kept["llm"][:2].sum() == 0
    frozen = memory_of_devices(layout, models, frozen=["vision"])
    assert frozen.states[0] == 2 * found.parameters["vision"][0]
    assert not frozen.kept["vision"].any()
    assert np.array_equal(frozen.states[2:], found.states[2:])


def test_encoders_are_whole_where_they_are_no_stages():
    models = {"vision": module("internvit-6b"), "llm": module("qwen2-72b")}
    for mode, share in (("before", 1), ("multiplexed", 8)):
        layout = StepLayout({"vision": ModuleLayout(dp=512), "llm": ModuleLayout(tp=8, pp=4, dp=16)}, mode)
        found = memory_of_devices(layout, models)
        beside = memory_of_devices(StepLayout({"llm": layout.llm}), {"llm": models["llm"]})
        states = state_bytes(models["vision"].parameters, 1, 512)
        assert (found.states - beside.states).tolist() == pytest.approx([states] * 4)
        assert found.kept["vision"][0] == 45 * kept_bytes(models["vision"], recompute=False).per_layer / share


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 0}, "tp must be >= 1, got 0"),
        ({"zero_stage": 4}, "zero_stage must be 0, 1, 2 or 3, got 4"),
        ({"recompute": "yes"}, "recompute must be true or false, got 'yes'"),
    ],
)
def test_a_module_is_refused_by_name(fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ModuleLayout(**fields)


@pytest.mark.parametrize(
    ("vision", "mode", "message"),
    [
        (ModuleLayout(dp=24), "stages", r"modules\['vision'\].dp must be a multiple of 16, the replicas of 'llm'"),
        (ModuleLayout(pp=2, dp=192), "before", r"modules\['vision'\].pp must be 1 with mode 'before'"),
        (ModuleLayout(dp=16), "multiplexed", r"modules\['vision'\] must be on the 384 GPUs of 'llm'"),
        (ModuleLayout(dp=384, zero_stage=3), "multiplexed", "to gather parameters, all devices would have to"),
        (ModuleLayout(dp=16), "behind", "unknown mode 'behind'; known are stages, before, multiplexed"),
    ],
)
def test_a_step_is_refused_by_name(vision, mode, message):
    with pytest.raises(ValueError, match=message):
        StepLayout({"vision": vision, "llm": LLM}, mode)


def test_generators_are_last_stages():
    vision, speech = ModuleLayout(dp=16), ModuleLayout(pp=2, dp=32)
    layout = StepLayout({"vision": vision, "llm": LLM, "speech": speech}, generators=["speech"])
    assert (layout.llm_name, layout.num_gpus, layout.num_devices) == ("llm", 16 + 384 + 64, 1 + LLM.pp + 2)
    assert layout.stage_counts == {"vision": 1, "llm": LLM.pp, "speech": 2}
    assert StepLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
    models = {"vision": module("internvit-300m"), "llm": module("qwen2-72b"), "speech": module("qwen2-7b")}
    frozen = memory_of_devices(layout, models, ["llm", "speech"]).kept
    assert frozen["speech"][-1] > 0 == frozen["speech"][:-2].max()  # the encoder's gradient comes through both
    assert memory_of_devices(layout, models, ["vision", "llm"]).kept["llm"].max() == 0
    for mode in ("before", "multiplexed"):
        with pytest.raises(ValueError, match=f"mode '{mode}' has no place for generators.*; use mode 'stages'"):
            StepLayout({"vision": vision, "llm": LLM, "speech": speech}, mode, generators=["speech"])
    with pytest.raises(ValueError, match=r"'speech'\].dp must be a multiple of 16, the replicas of 'llm'"):
        StepLayout({"llm": LLM, "speech": ModuleLayout(dp=8)}, generators="speech")
    for names, message in ((["llm"], "must be the last of the phases"), (["voice"], "must be of the phases vision")):
        with pytest.raises(ValueError, match=message):
            StepLayout({"vision": vision, "llm": LLM, "speech": speech}, generators=names)


def test_a_model_that_cannot_be_cut_so():
    models = {"vision": module("internvit-6b"), "llm": module("qwen2-72b")}
    layout = StepLayout({"vision": ModuleLayout(tp=2, dp=16), "llm": LLM})
    with pytest.raises(ValueError, match=r"tp \* sp = 2 does not divide its 25 heads .*; take 1, 5, 25, or give"):
        layout.check_models(models, 8)
    with pytest.raises(ValueError, match="tp 8 is more than the 4 GPUs of a node"):
        StepLayout({"llm": LLM}).check_models(models, 4)


def test_a_file(tmp_path):
    layout = StepLayout({"vision": ModuleLayout(dp=384), "llm": LLM}, "before", 8, 4096)
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({**layout.to_json(), "found": {"seconds": 3}}))
    assert read_layout(path) == layout
    path.write_text('{"modules": {"llm": {"ep": 8}}}')
    with pytest.raises(InputError, match=r"layout.json: .*expert parallelism \(ep\) is not planned: which expert"):
        read_layout(path)
    path.write_text('{"modules": {"llm": {"tpp": 8}}}')
    with pytest.raises(InputError, match="unknown field 'tpp'; known are tp, pp"):
        read_layout(path)
    with pytest.raises(InputError, match="no such file"):
        read_layout(tmp_path / "none.json")
