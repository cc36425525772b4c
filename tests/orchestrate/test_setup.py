"""What all steps of a run have in common: what it refuses before any step, and that a plan file tells it again."""

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer import MicroBatches, Phase, Topology, orchestrate
from balancer.problem.cuts.in_slots import ENCODERS, OVER_LONG
from balancer.problem.settings import METHODS, MODES, PlanSettings
from balancer.problem.setup import Setup, as_topology
from solvers import InfeasibleError
from solvers.errors import ContradictionError
from solvers.packing import SYNCS

COLUMNS = st.sampled_from(["text", "text+image", "a b", "é+ü"])
LISTS = st.sampled_from(["images", "qwen2vl_patches(widths,heights)"])
COSTS = st.sampled_from(["linear", "linear:a=3", "quadratic:a=24576,b=1", "padded", "convolution:a=9,b=1,c=40,p=1"])
EPS = st.floats(0, 0.99, allow_subnormal=False) | st.fractions(0, Fraction(99, 100)) | st.just(0)
CUTS = st.builds(
    MicroBatches, st.integers(1, 10**12), st.sampled_from(SYNCS),
    count=st.none() | st.integers(1, 9) | st.just("fewest"),
    at_least=st.just(1), multiple_of=st.just(1), pipeline_stages=st.just(1), allow_empty=st.booleans(),
    over_long=st.sampled_from(OVER_LONG), encoders=st.sampled_from(ENCODERS),
)  # fmt: skip


@st.composite
def plan_settings(draw):
    placement = draw(st.sampled_from(["relocate", "rearrange", "any"]))
    cut, group_size = draw(st.none() | CUTS), None
    if cut is None:
        group_size = draw(st.none() | st.sampled_from([1, 2, 4]))
    method = "auto" if cut is not None else draw(st.sampled_from(METHODS))
    budget = draw(st.floats(1e-6, 10, allow_subnormal=False))
    return PlanSettings(method, placement, draw(EPS), budget, draw(st.sampled_from(MODES)), group_size, cut)


@st.composite
def phases_of(draw, ranks):
    """A phase or several with any constraints that a phase of that cost takes."""
    phases = []
    for name in draw(st.lists(st.sampled_from(["vision", "audio", "speech"]), unique=True, max_size=3)):
        items = draw(COLUMNS | LISTS)
        outputs = draw(st.none() | (LISTS if "(" in items else COLUMNS))
        phases.append(Phase(name, items, outputs=outputs, bytes_in=draw(st.integers(1, 99)), **_kept(draw, ranks)))
    last = draw(st.sampled_from(["llm", "all"]) if not phases else st.just("llm"))
    own = draw(st.none() | COLUMNS | LISTS)
    return (*phases, Phase(last, draw(COLUMNS), draw(COSTS), own=own))


def _kept(draw, ranks):
    per_rank = {"min_size": ranks, "max_size": ranks}
    return {
        "equal_counts": draw(st.booleans()),
        "max_tokens_per_rank": draw(st.none() | st.integers(1, 2**40)),
        "every_rank_nonempty": draw(st.booleans()),
        "min_samples_per_rank": draw(st.integers(0, 3)),
        "max_samples_per_rank": draw(st.none() | st.integers(3, 9)),
        "keep_together": draw(st.none() | st.sampled_from(["book", "écrit"])),
        "caps": draw(st.dictionaries(COLUMNS | LISTS, st.integers(1, 2**50), max_size=2)),
        "allowed_ranks": draw(st.none() | st.just("ranks")),
        "initial_loads": draw(st.none() | st.lists(st.integers(0, 2**40), **per_rank)),
        "rank_speeds": draw(st.none() | st.lists(st.integers(1, 9), **per_rank)),
    }


# --- told again by a plan file ---------------------------------------------------------------------------------------


@given(plan_settings())
@settings(max_examples=examples(20))
def test_plan_settings_are_what_their_json_says(settings):
    told = json.loads(json.dumps(settings.to_json()))
    again = PlanSettings.from_json(told)
    assert again == settings
    assert type(again.eps) is type(settings.eps)  # 1/3 and 0.1 stay what they are: which one plans by, decides
    assert again.to_json() == told


@given(st.data())
@settings(max_examples=examples(15))
def test_a_setup_is_what_its_json_says(data):
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    phases = data.draw(phases_of(sum(sizes)))
    setup = Setup(Topology(sizes), phases)
    told = json.dumps(setup.to_json())
    again = Setup.from_json(json.loads(told))
    assert again == setup
    assert json.dumps(again.to_json()) == told


def test_settings_that_another_release_wrote_are_refused():
    told = PlanSettings(cut=MicroBatches(9)).to_json()
    for wrong in (
        told | {"pieces": True},
        told | {"eps": "a third"},
        told | {"cut": {"kind": "micro_batches", "tokens": 9, "pieces": 3}},
        told | {"cut": {"kind": "shares", "tokens": 9}},
        told | {"cut": {"tokens": 9}},
        told | {"cut": 9},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            PlanSettings.from_json(wrong)


# --- refused before any step -----------------------------------------------------------------------------------------

VISION, LLM = Phase("vision", "images"), Phase("llm", "text")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "best"}, "method must be one of auto, lpt, .*, got 'best'"),
        ({"placement": "home"}, "placement must be one of relocate, rearrange, any, got 'home'"),
        ({"eps": float("nan")}, "eps must be a share >= 0, such as .*, got nan"),
        ({"time_budget": 0}, "time_budget must be"),
        ({"mode": "both"}, "mode must be one of separate, joint, got 'both'"),
        ({"group_size": 0}, "group_size must be a whole number >= 1, got 0"),
        ({"cut": 9}, r"cut must be one of balancer's cuts, such as MicroBatches\(8192\), got 9"),
        ({"cut": MicroBatches(9), "method": "lpt"}, "method 'lpt' makes no micro-batches; use 'auto'"),
        (
            {"cut": MicroBatches(9), "group_size": 2},
            "cut.tokens cannot be combined with group_size: .* one number of micro-batches",
        ),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PlanSettings(**settings)


IN_SLOTS = {"cut": MicroBatches(9)}
BEFORE = {"cut": MicroBatches(9, encoders="step")}


@pytest.mark.parametrize(
    ("phases", "settings", "message"),
    [
        ((), {}, "there must be at least one phase"),
        ((LLM, LLM), {}, "phases must have different names, got llm, llm"),
        ((Phase("llm", "qwen2vl_patches(w,h)"),), {}, "phase 'llm' computes whole samples"),
        ((Phase("v", "images", own="text"), LLM), {}, "phase 'v': own is for the last phase, which the others feed"),
        ((Phase("v", "images", "padded"), LLM), {"method": "lpt"}, "method 'lpt' does not take cost 'padded'"),
        ((VISION, LLM), {"method": "padded"}, "method 'padded' takes padded costs, not cost 'linear'"),
        ((VISION, Phase("llm", "text", "padded")), IN_SLOTS, "phase 'llm': .* cannot be combined with cost 'padded'"),
        (
            (VISION, Phase("llm", "text", rank_speeds=(1, 2))),
            IN_SLOTS,
            "phase 'llm': cut.tokens cannot be combined with rank_speeds: .*; leave one of them out",
        ),
        (
            (Phase("v", "images", max_samples_per_rank=3), LLM),
            IN_SLOTS,
            "phase 'v': cut.tokens cannot be combined with max_samples_per_rank .*; use encoders='step'",
        ),
        (
            (Phase("v", "images", "padded", max_samples_per_rank=1), LLM),
            {},
            "phase 'v': cost 'padded' does not take max_samples_per_rank; with padding only equal_counts, max_tokens_"
            "per_rank and min_samples_per_rank can be kept",
        ),
        ((VISION, LLM), {"group_size": 3}, "group_size must divide the 2 ranks, got 3"),
        (
            (Phase("v", "images", equal_counts=True), LLM),
            {"group_size": 1},
            "equal_counts of phase 'v' cannot be combined with group_size: groups hold unequal numbers",
        ),
        (
            (VISION, Phase("llm", "text", keep_together="key")),
            {"group_size": 2},
            "keep_together of phase 'llm' cannot be combined with group_size: samples with one key may lie in",
        ),
        (
            (VISION, Phase("audio", "audio", "padded"), LLM),
            {"mode": "joint"},
            "cost 'padded' of phase 'audio' cannot be combined with balancing encoders jointly; use mode='separate'",
        ),
        (
            (VISION, Phase("audio", "audio", caps={"text": 3}), LLM),
            {"mode": "joint"},
            "caps of phase 'audio' cannot be combined with balancing encoders jointly; use mode='separate'",
        ),
        ((Phase("v", "images", rank_speeds=(1,)), LLM), {}, "phase 'v': rank_speeds must have a number for each of 2"),
        ((Phase("v", "images", caps={"f(x)": 3}), LLM), {}, "unknown function of items 'f'"),
        ((VISION, Phase("llm", "text", caps={"qwen2vl_patches(w,h)": 3})), {}, "phase 'llm' computes whole samples"),
    ],
)
def test_what_no_step_can_be_planned_by_is_refused_with_a_reason(phases, settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Setup(as_topology(2), phases, PlanSettings(**settings))


@pytest.mark.parametrize(
    ("phases", "settings"),
    [
        ((Phase("v", "images", max_samples_per_rank=3, keep_together="key"), LLM), BEFORE),
        ((Phase("v", "images", allowed_ranks="ranks"), LLM), IN_SLOTS),
        ((Phase("v", "images", every_rank_nonempty=True), LLM), IN_SLOTS),
        ((Phase("v", "images", "padded", rank_speeds=None), LLM), {}),
        ((VISION, LLM), {"group_size": 2}),
        ((Phase("v", "images", max_samples_per_rank=9, rank_speeds=(1, 3)), LLM), {"group_size": 1}),
    ],
)
def test_what_can_be_planned_is_not_refused(phases, settings):
    assert Setup(as_topology(2), phases, PlanSettings(**settings)).phases == phases


def test_what_contradicts_itself_is_refused_before_any_step_by_who_plans_many():
    from balancer.step_planner import rehearse

    setup = Setup(as_topology(2), (Phase("all", "text", min_samples_per_rank=3, max_samples_per_rank=2),))
    with pytest.raises(ContradictionError, match="min_samples_per_rank = 3 contradicts max_samples_per_rank = 2"):
        rehearse(setup)
    with pytest.raises(InfeasibleError, match="phase 'v': min_samples_per_rank = 3 contradicts"):
        orchestrate(
            {"images": [1, 2], "text": [1, 2]},
            [Phase("v", "images", min_samples_per_rank=3, max_samples_per_rank=2), LLM], 2,
        )  # fmt: skip
