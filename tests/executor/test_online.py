"""Costs that follow measured times: plans get better, are the same on all ranks, and stay under noise."""

import pickle
import re

import numpy as np
import pytest

pytest.importorskip("torch")

import online_cases as cases
from ranks_of import ranks_of

from balancer import Phase, Pipelines, PipelineStages, SequenceGroups, Topology
from balancer.cost import OnlineCost
from balancer.executor.arguments import as_setup
from balancer.executor.gathered import Message
from balancer.executor.online import Correction, as_online

ranks = ranks_of(2)


@pytest.mark.parametrize(
    ("arguments", "overlap", "tells"),
    [
        ({}, None, (0, 1)),
        ({"planning": "broadcast"}, None, (1,)),  # who fits measures nothing itself
        ({}, True, (0, 1)),  # steps are made ahead of those measured
    ],
)
def test_plans_follow_the_cluster(ranks, arguments, overlap, tells):
    one, other = ranks.run(cases.follows, arguments, overlap, tells)
    assert [step[0] for step in one] == [step[0] for step in other]  # the same plans
    if overlap is not True:  # with a thread, what has been heard meanwhile is a matter of time
        assert [step[2] for step in one] == [step[2] for step in other]
    active, coefficients = one[-1][2]["all"]
    assert active
    if overlap is not True:
        np.testing.assert_allclose(coefficients[1:], cases.TRUE[1:], rtol=0.4)
    lengths = np.concatenate(cases.batches(0))
    np.testing.assert_allclose(cases.seconds_of(lengths, coefficients), cases.seconds_of(lengths), rtol=0.1)
    early, late = ([step[1] for step in part] for part in (one[:6], one[-6:]))
    assert np.mean(late) - 1 < 0.5 * (np.mean(early) - 1)


def test_phases_are_corrected_each_for_itself(ranks):
    one, other = ranks.run(cases.of_phases)
    assert one == other
    (vision, llm), costs = one[0].values(), one[1]
    assert vision[0]
    assert llm[0]
    assert vision[1][1] == pytest.approx(3e-4, rel=0.02)
    a, b = map(int, re.findall(r"\d+", costs[1])[:2])
    assert a / b == pytest.approx(llm[1][1] / llm[1][2], rel=1e-3)
    assert int(re.findall(r"\d+", costs[0])[0]) / a == pytest.approx(vision[1][1] / llm[1][1], rel=1e-3)  # one unit


def test_it_is_given_up_where_it_does_not_help_and_says_so(ranks):
    (active, told), (active_there, told_there) = ranks.run(cases.given_up)
    assert active == active_there
    assert max(active)
    assert not active[-1]
    assert "as it was given again" in told[0]
    assert told_there == []  # once for all ranks


def test_noise_changes_no_plan(ranks):
    (said, plans), (said_there, plans_there) = ranks.run(cases.noise_alone)
    assert said == said_there == {"all": (False, cases.TRUE)}
    assert plans == plans_there


def test_what_cannot_be_told_is_refused(ranks):
    for told in ranks.run(cases.misused):
        wanted = ("dispatch one before", "no cost is corrected", "got 0.0", "got nan", "'llm', whose cost is not")
        assert all(text in error for text, error in zip(wanted, told, strict=True))


PHASES = [Phase("vision", "patches"), Phase("llm", "tokens")]
ONE = OnlineCost(0.0, 1e-4, 1e-8)
BOTH = {"vision": OnlineCost(0.0, 1e-5, 0.0), "llm": ONE}


def corrected(phases, cost, **settings):
    setup = as_setup(Topology.uniform(4, None), phases, "linear", None, settings)
    return Correction(as_online(cost, phases), setup, True)


def piped(**stages):
    layout = PipelineStages.of({"vision": 1, "llm": 2}, **stages)
    return Pipelines(1_000, count=4, stages=layout)


def test_stages_take_corrected_costs_and_keep_what_their_parts_are():
    found = corrected(PHASES, BOTH, cut=piped())
    costs = found.setup.settings.cut.stages.costs
    vision, llm = (int(costs[name].split("a=")[1].split(",")[0]) for name in ("vision", "llm"))
    assert llm / vision == pytest.approx(10, rel=1e-6)  # as both take two units of time in all their stages
    models = piped(models={"vision": "internvit-6b", "llm": "qwen2-7b"})
    made = corrected(PHASES, BOTH, cut=models).setup.settings.cut.stages
    whole = {name: int(made.costs[name].split("a=")[1].split(",")[0]) * sum(made.forward[name]) for name in made.costs}
    assert whole["llm"] / whole["vision"] == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize(
    ("phases", "cost", "settings", "told"),
    [
        (PHASES, ONE, {}, "with phases map them"),
        (None, {"llm": ONE}, {}, "one OnlineCost without phases"),
        (PHASES, {"llm": "linear"}, {}, "cost['llm'] must be an OnlineCost"),
        (PHASES, {"audio": ONE}, {}, "cost is of phase 'audio'; phases are vision, llm"),
        (PHASES, {"llm": ONE}, {"cut": piped()}, "correct that of vision too"),
        (PHASES, BOTH, {"cut": piped(hop=3)}, "hop and overhead"),
        (None, ONE, {"initial_loads": [1, 2, 3, 4]}, "initial_loads are in units"),
        (None, ONE, {"cut": SequenceGroups((1, 2), 100)}, "sequence_groups"),
        (None, OnlineCost(1.0, 0.0, 0.0), {}, "a or b over 0"),
    ],
)
def test_what_does_not_go_together_is_refused(phases, cost, settings, told):
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        corrected(phases, cost, **settings)


def test_times_that_lengths_do_not_explain_change_no_plan():
    online = OnlineCost(1.0, 1e-3, 0.0, window=8)
    found = corrected(None, online)
    before = found.setup.phases[0].cost
    for total in (100, 900) * 8:  # longer ranks are faster
        found._waiting.append([0, float(total), float(total**2), 5 - total / 1000])
        found.take_in([found.message()])
    assert online.coefficients[0] > 0
    assert online.coefficients[1:] == (0.0, 0.0)
    assert found.take_in([found.message()]).phases[0].cost == before


def test_what_it_takes_to_say():
    """A message is longer by some 100 bytes of a phase measured, and by some 800 of the rank that fits."""
    found = corrected(None, ONE)
    plain = len(pickle.dumps(Message()))
    found._waiting.append([0, 123_456.0, 987_654_321.0, 1.2345678])
    assert len(pickle.dumps(Message(costs=found.message()))) - plain <= 1000
    found._fits = False
    found._waiting.append([0, 123_456.0, 987_654_321.0, 1.2345678])
    assert len(pickle.dumps(Message(costs=found.message()))) - plain <= 100


def test_slow_ranks_are_measured_as_the_fastest_would_be():
    class Step:
        @staticmethod
        def planned(_):
            return 1, np.array([3, 4])

    found = corrected(None, ONE, rank_speeds=[2, 1, 2, 2])
    found.observe(Step, 8.0)
    assert found.message()["observed"] == [[0, 7.0, 25.0, 4.0]]
