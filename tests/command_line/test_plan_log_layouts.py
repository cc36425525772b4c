"""What ``balancer plan`` does by a layout, by models of stages and behind a plan, ``plan_log`` does in Python."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_files import description_of
from typed_words import keys, typed

import balancer

PATCHES = [(i * 37) % 50 for i in range(48)]
COLUMNS = {"patches": PATCHES, "tokens": [each + 20 for each in PATCHES]}
PHASES = {"vision": "patches", "llm": "tokens"}
OPTIONS = (*keys("phase.vision.length=patches", "phase.llm.length=tokens"), "--ranks-per-node", 2)
STEP = """
ranks = {ranks}
ranks_per_node = 2
batch_per_rank = 2
{layout}
[[phase]]
name = "vision"
length = "patches"
{vision}
[[phase]]
name = "llm"
length = "tokens"
{llm}
"""
LAYOUTS = {
    "gpus": (8, {"mode": "before", "modules": {"vision": {"dp": 8}, "llm": {"tp": 2, "cp": 2, "dp": 2}}}),
    "replicas": (
        2, {"mode": "stages", "modules": {"vision": {"dp": 2}, "llm": {"pp": 3, "dp": 2}}, "micro_batch_tokens": 200}
    ),
    "first": (
        2, {"mode": "before", "modules": {"vision": {"dp": 4}, "llm": {"pp": 2, "dp": 2}}, "micro_batch_tokens": 200}
    ),
}  # fmt: skip


@pytest.fixture
def log(tmp_path, command):
    pq.write_table(pa.table(COLUMNS), tmp_path / "log.parquet")
    return "log.parquet"


def digest(name):
    return description_of(name)["digest"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_planned_alike_by_option_by_file_and_by_keyword(name, command, log, tmp_path):
    ranks, layout = LAYOUTS[name]
    (tmp_path / "layout.json").write_text(json.dumps(layout))
    (tmp_path / "step.toml").write_text(STEP.format(ranks=ranks, layout='layout = "layout.json"', vision="", llm=""))
    asked = ("--ranks", ranks, "--batch-per-rank", 2, *OPTIONS, *keys("layout=layout.json"))
    assert command("plan", log, *asked, "--out", "a.parquet").err == ""
    assert command("plan", log, "--step", "step.toml", "--out", "b.parquet").err == ""
    assert description_of("a.parquet") == description_of("b.parquet")
    assert command("report", "a.parquet", "--step", "step.toml").code == 0
    keywords = {"num_ranks": ranks, "ranks_per_node": 2, "batch_per_rank": 2, "phases": PHASES}
    balancer.plan_log(log, "step.toml", out="c.parquet")
    balancer.plan_log(log, out="d.parquet", layout="layout.json", **keywords)
    balancer.plan_log(log, out="e.parquet", layout=balancer.StepLayout.from_json(layout), **keywords)
    assert {digest(f"{each}.parquet") for each in "abcde"} == {digest("a.parquet")}
    fewer = dict(layout, micro_batch_tokens=None)
    cut = balancer.MicroBatches(200) if "micro_batch_tokens" in layout else None
    balancer.plan_log(log, out="f.parquet", layout=balancer.StepLayout.from_json(fewer), cut=cut, **keywords)
    assert digest("f.parquet") == digest("a.parquet")


def test_what_a_layout_does_not_go_with_is_told_in_python_words(command, log, tmp_path):
    _, layout = LAYOUTS["replicas"]
    (tmp_path / "layout.json").write_text(json.dumps(layout))
    asked = {"batch_per_rank": 2, "layout": "layout.json"}
    with pytest.raises(ValueError, match=r"ranks must be 2, the replicas of layout.json, got 4"):
        balancer.plan_log(log, num_ranks=4, phases=PHASES, **asked)
    with pytest.raises(
        ValueError, match=r"^layout.json: layout must be of the phases all in this order, got vision, llm"
    ):
        balancer.plan_log(log, num_ranks=2, length="tokens", **asked)
    (tmp_path / "step.toml").write_text("[cut]\ndegrees = [1, 2]")
    with pytest.raises(ValueError, match=r"^step.toml: cut.degrees cannot be combined with layout"):
        balancer.plan_log(log, "step.toml", num_ranks=2, phases=PHASES, **asked)


def test_another_cut_beside_a_file_is_in_place_of_its_own(command, log, tmp_path):
    text = 'ranks = 2\nbatch_per_rank = 4\n[[phase]]\nlength = "tokens"\n'
    (tmp_path / "step.toml").write_text(text + '[cut]\ntokens = 90\nsync = "step"')
    assert (
        command("plan", log, *typed("--step step.toml cut.kind=sequence_groups cut.degrees=[1,2] --out a.parquet")).err
        == ""
    )
    (tmp_path / "step.toml").write_text(text + "[cut]\ndegrees = [1, 2]")
    assert command("plan", log, "--step", "step.toml", "--out", "b.parquet").err == ""
    assert description_of("a.parquet") == description_of("b.parquet")


def test_what_is_left_of_a_plan_is_planned_in_python(command, log):
    asked = ("--batch-per-rank", 2, "--length", "tokens")
    assert command("plan", log, "--ranks", 4, *asked, *keys("epochs=2", "shuffle=3"), "--out", "plan.parquet").err == ""
    left = ("--continue", "plan.parquet", "--at-step", 5)
    assert command("plan", log, "--ranks", 2, *asked, *left, "--out", "a.parquet").err == ""
    keywords = {"num_ranks": 2, "batch_per_rank": 2, "length": "tokens", "continued": "plan.parquet"}
    balancer.plan_log(log, at_step=5, out="b.parquet", **keywords)
    assert digest("a.parquet") == digest("b.parquet")
    with pytest.raises(ValueError, match=r"^at_step must be within 0..11, got 12: nothing is left behind the last$"):
        balancer.plan_log(log, at_step=12, **keywords)
    told = "balancer: --at-step must be within 0..11, got 12: nothing is left behind the last\n"
    assert command("plan", log, "--ranks", 2, *asked, *left[:3], 12).err == told
    with pytest.raises(ValueError, match=r"^continued and at_step, .*, need each other$"):
        balancer.plan_log(log, **keywords)
    with pytest.raises(ValueError, match=r"^epochs cannot be combined with continued"):
        balancer.plan_log(log, at_step=5, epochs=2, **keywords)


def test_python_tells_where_a_step_file_is_wrong(log, tmp_path):
    (tmp_path / "step.toml").write_text('ranks = 4\nbatch_per_rank = 2\n[[phase]]\nlength = "tokens"\nrank_speeds=[1]')
    with pytest.raises(ValueError, match=r"^step.toml: rank_speeds must have a number for each of 4"):
        balancer.plan_log(log, "step.toml")
