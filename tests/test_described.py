"""What one declared line is seen in: Python, tables, --set, JSON, the schema, the list that docs are made of."""

import json
import pydoc
import tomllib
from dataclasses import fields
from typing import Annotated, Any

import numpy as np
import pytest

import balancer
from balancer import MicroBatches, Phase
from balancer.cli.said import as_tables
from balancer.described import Amount, Flag, Text, as_dict, by_kind, described, key, keys_of, partly, read, schema_of
from balancer.errors import InputError
from balancer.problem.constraints import CONSTRAINTS, KeptArguments
from balancer.problem.cuts.cut import WholeShares
from balancer.problem.phases import CONSTRAINTS as OF_PHASES
from balancer.problem.settings import PlanSettings


@described
class PhaseWithMore(Phase):
    keep_apart: Text | None = key("Rows with equal values in this column run on different ranks.", default=None)


@described
class CutWithMore(MicroBatches):
    rest: Amount = key("Tokens of a micro-batch that stay free.", default=0, kw_only=True)


@described
class SettingsWithMore(PlanSettings):
    patient: Flag = key("Search on where a plan is good enough.", default=False)


OfPhase: Any = partly(PhaseWithMore, keeps="name")
OfCut: Any = partly(CutWithMore, "micro_batches", "Micro-batches.")
OfWhole: Any = partly(WholeShares, "whole_shares", "Whole shares.")
OfPlan: Any = partly(SettingsWithMore)


@described
class StepWithMore:
    phase: tuple[OfPhase, ...] = key("The phases, in order.", default=())
    cut: Annotated[OfCut | OfWhole, *by_kind(lambda said: None)] | None = key("How a step is cut.", default=None)
    plan: OfPlan = key("How it is planned.", default=OfPlan())


SAID = {"phase": [{"name": "llm", "keep_apart": "prompt"}], "cut": {"tokens": 9, "rest": 2}, "plan": {"patient": True}}
TYPED = [("phase.llm.keep_apart", "prompt"), ("cut.tokens", "9"), ("cut.rest", "2"), ("plan.patient", "true")]
MORE = ("phase.NAME.keep_apart", "cut.rest", "plan.patient")


def test_a_line_is_a_keyword_of_python():
    assert PhaseWithMore("llm", "text", keep_apart="prompt").keep_apart == "prompt"
    assert CutWithMore(9, "step", rest=np.int32(2)).rest == 2
    assert SettingsWithMore(patient=np.True_).patient is True
    with pytest.raises(TypeError, match="phase 'llm': keep_apart must be text, got 5"):
        PhaseWithMore("llm", "text", keep_apart=5)
    with pytest.raises(ValueError, match=r"cut\.rest must be a whole number >= 0, got -1"):
        CutWithMore(9, rest=-1)
    with pytest.raises(TypeError, match="patient must be true or false, got 'no'"):
        SettingsWithMore(patient="no")


def test_a_line_is_a_key_of_a_file_and_of_set():
    in_file = tomllib.loads(
        "[[phase]]\nname = 'llm'\nkeep_apart = 'prompt'\n[cut]\ntokens = 9\nrest = 2\n[plan]\npatient = true\n"
    )
    assert in_file == as_tables({}, TYPED) == SAID
    in_file["cut"]["kind"] = "micro_batches"
    said = read(StepWithMore, in_file)
    assert (said.phase[0].keep_apart, said.cut.rest, said.plan.patient) == ("prompt", 2, True)
    in_file["cut"]["rest"] = 1.5
    with pytest.raises(InputError, match=r"^step\.toml: cut\.rest must be a whole number >= 0, got 1\.5$"):
        read(StepWithMore, in_file, "step.toml: ")
    in_file["plan"] = {"pateint": True}
    in_file["cut"]["rest"] = 1
    with pytest.raises(InputError, match=r"plan\.pateint: there is no such key \(did you mean 'patient'\?\)"):
        read(StepWithMore, in_file)


def test_a_line_comes_back_from_json():
    for said in (
        PhaseWithMore("llm", "text", "quadratic:a=7,b=1", keep_apart="prompt", caps={"images": 3}, rank_speeds=[1, 2]),
        CutWithMore(9, "step", rest=2, count="fewest"),
        SettingsWithMore(patient=True, eps="1/3", stop_at=0, group_size=4),
    ):
        told = json.loads(json.dumps(as_dict(said)))
        assert type(said)(**told) == said
        assert type(said)(**as_dict(said, all_keys=True)) == said
    assert as_dict(SettingsWithMore()) == {}  # what is as by default is not said
    assert as_dict(PhaseWithMore("llm", "text"))["name"] == "llm"


def test_a_line_is_in_the_schema_and_in_the_list_of_keys_that_docs_show():
    known = {each.path: each.about for each in keys_of(StepWithMore)}
    assert [known[path].partition(" ")[0] for path in MORE] == ["Rows", "Tokens", "Search"]
    tables = schema_of(StepWithMore)["$defs"]
    assert tables["PhaseWithMore"]["properties"]["keep_apart"]["description"].startswith("Rows")
    assert tables["CutWithMore"]["properties"]["rest"]["minimum"] == 0
    assert tables["SettingsWithMore"]["properties"]["patient"]["type"] == "boolean"


def test_what_ranks_keep_to_has_one_name_in_balance_and_in_phases():
    """One line of a phase, one of the TypedDict that types the keywords of `balance`, and how its values are read."""
    of_phases = {each.name for each in fields(Phase)}
    assert set(KeptArguments.__annotations__) == {*CONSTRAINTS, "prefix_length"}
    assert set(KeptArguments.__annotations__) <= of_phases
    assert set(OF_PHASES) == {*KeptArguments.__annotations__, "every_rank_nonempty"}
    with pytest.raises(TypeError, match=r"there is no argument 'max_sample_per_rank' \(did you mean 'max_samples_per_"):
        balancer.balance([1, 2], 2, max_sample_per_rank=1)


def test_help_shows_the_rule_of_a_field():
    shown = pydoc.render_doc(balancer.ContextShards.__init__, renderer=pydoc.plaintext)
    assert "a whole number >= 1" in shown
    assert "<function" not in shown
