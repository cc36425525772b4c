"""Every strategy goes through one contract: every part arrives; what is named a baseline does what its name says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from shares_oracles import cut as naive_cut
from step_cases import Case, cases, labelled, travel

import balancer
from balancer import MicroBatches, Phase, Topology
from balancer.plan.stream import Stream
from balancer.problem.cuts.in_slots import ENCODERS
from balancer.problem.settings import MODES
from balancer.strategies import STRATEGIES, plan_with
from solvers.errors import InfeasibleError

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)
BASELINES = [name for name in STRATEGIES if name != "orchestrated"]
MICRO_BATCHES = st.builds(
    MicroBatches,
    st.integers(1, 200),
    st.sampled_from(["micro_batch", "step"]),
    at_least=st.integers(1, 3),
    multiple_of=st.integers(1, 3),
    allow_empty=st.just(True),
    over_long=st.just("own"),
    encoders=st.sampled_from(ENCODERS),
)


def planned(strategy: str, case: Case, **options):
    return plan_with(strategy, case.batch, case.phases, case.topology, home_rank=case.home_rank, **options)


def labels_of(case: Case, name: str) -> list:
    return [(name, s, j) for s, lists in enumerate(case.encoders[name]) for j in range(len(lists))]


def through(stream: Stream, held: list, labels: list) -> list:
    """Send labels through a stream, from where it says they lie; what arrives must be where it says too."""
    assert labelled(stream.source, labels) == held, "a stream starts where the one before ended"
    arrived = travel(stream, held)
    assert arrived == labelled(stream.target, labels)
    return arrived


# --- the contract ----------------------------------------------------------------------------------------------------


@EVERY_STRATEGY
@given(case=cases(), cut=st.none() | MICRO_BATCHES, mode=st.sampled_from(MODES))
@settings(max_examples=examples(20))
def test_every_part_arrives_once_in_order_at_the_rank_of_its_sample(strategy, case, cut, mode):
    plan = planned(strategy, case, cut=cut, mode=mode)
    ready = []
    for name in case.encoders:
        labels = labels_of(case, name)
        at_home = labelled(plan.home.lifted(np.array([s for _, s, _ in labels], dtype=np.int64)), labels)
        held = through(plan.streams[f"{name}:in"], at_home, labels)
        assert held == labelled(plan[name].target, labels), "raw items arrive at their encoder"
        if f"{name}:home" in plan.streams:
            held = through(plan.streams[f"{name}:home"], held, labels)
            assert held == at_home
        ready.append(held)
    text = [("text", s, 0) for s in range(plan.num_samples) if case.text[s]]
    ready.append(labelled(plan.home.lifted(np.array([s for _, s, _ in text], dtype=np.int64)), text))
    arrived = travel(plan.inputs_of("llm"), [[x for part in ready for x in part[r]] for r in range(plan.num_ranks)])
    for rank in range(plan.num_ranks):
        expected = []
        for s in plan["llm"].samples_on_rank(rank).tolist():
            expected += [(name, s, j) for name, lists in case.encoders.items() for j in range(len(lists[s]))]
            expected += [("text", s, 0)] * (case.text[s] > 0)
        assert arrived[rank] == expected


@EVERY_STRATEGY
@given(case=cases())
@settings(max_examples=examples(15))
def test_numbers_are_those_of_the_placement(strategy, case):
    plan = planned(strategy, case)
    assert plan.strategy == strategy
    assert plan.digest() == planned(strategy, case).digest()
    for phase in plan.phases.values():
        found, items = phase.plan, phase.items
        loads = [0] * plan.num_ranks
        for rank, length in zip(found.rank_of_sample.tolist(), items.lengths.tolist(), strict=True):
            loads[rank] += length
        assert found.loads.tolist() == loads
        assert found.makespan == max(loads) >= found.lower_bound
        assert found.home.rank_of_sample.tolist() == plan.home.rank_of_sample[items.sample_of_item].tolist()


@EVERY_STRATEGY
@given(case=cases(), data=st.data())
@settings(max_examples=examples(12))
def test_groups_exchange_nothing_with_each_other(strategy, case, data):
    ranks = case.topology.num_ranks
    size = data.draw(st.sampled_from([g for g in range(1, ranks + 1) if ranks % g == 0]))
    plan = planned(strategy, case, group_size=size)
    for stream in plan.streams.values():
        assert (stream.source.rank_of_sample // size == stream.target.rank_of_sample // size).all()


@EVERY_STRATEGY
def test_an_empty_batch_and_a_phase_with_no_items(strategy):
    phases = {"vision": "image", "llm": "text"}
    assert plan_with(strategy, {"image": [], "text": []}, phases, 2).num_samples == 0
    plan = plan_with(strategy, {"image": [0, 0], "text": [3, 4]}, phases, 2)
    assert plan["vision"].empty_ranks(0).tolist() == [0, 1]


# --- micro-batches ---------------------------------------------------------------------------------------------------


@EVERY_STRATEGY
@given(case=cases(), cut=MICRO_BATCHES)
@settings(max_examples=examples(10))
def test_micro_batches_keep_to_their_rules(strategy, case, cut):
    plan = planned(strategy, case, cut=cut)
    llm = plan["llm"]
    ranks, slots, lengths = llm.rank_of_sample, llm.slot_of_sample, llm.lengths
    assert cut.violation(lengths, ranks, slots, plan.num_ranks, llm.num_slots) is None
    cells = [[0] * llm.num_slots for _ in range(plan.num_ranks)]
    for rank, slot, length in zip(ranks.tolist(), slots.tolist(), lengths.tolist(), strict=True):
        cells[rank][slot] += length  # IndexError: a slot out of range
    taken = max(map(sum, cells)) if cut.sync == "step" else sum(map(max, zip(*cells, strict=True)))
    assert llm.makespan == taken >= llm.lower_bound
    for phase in plan.phases.values():
        assert phase.plan.num_slots == llm.num_slots
        early = cut.encoders == "step" and phase is not plan.phases["llm"]
        expected = np.zeros_like(phase.plan.slot_of_sample) if early else slots[phase.items.sample_of_item]
        assert phase.plan.slot_of_sample.tolist() == expected.tolist()
        for rank in range(plan.num_ranks):  # a rank's items are in order of slots
            held = phase.plan.slot_of_sample[phase.plan.target.samples_on_rank(rank)]
            assert (np.diff(held) >= 0).all()
    assert plan.digest() == planned(strategy, case, cut=cut).digest()


@pytest.mark.parametrize("strategy", BASELINES)
@given(case=cases(), cut=MICRO_BATCHES)
@settings(max_examples=examples(15))
def test_baselines_settle_ranks_as_without_micro_batches_and_cut_them_one_by_one(strategy, case, cut):
    plan, whole = (planned(strategy, case, cut=micro_batches) for micro_batches in (cut, None))
    llm, lengths = plan["llm"], case.batch["llm"]
    assert llm.rank_of_sample.tolist() == whole["llm"].rank_of_sample.tolist()
    slots, count = naive_cut(
        lengths, lengths, llm.rank_of_sample.tolist(), plan.num_ranks, cut.tokens, min_slots=cut.at_least,
        slots_multiple_of=cut.multiple_of, allow_empty=True, over_long="own",
    )  # fmt: skip
    assert (llm.slot_of_sample.tolist(), llm.num_slots) == (slots, count)
    for name in case.encoders:
        assert plan[name].rank_of_sample.tolist() == whole[name].rank_of_sample.tolist()


@given(case=cases(), cut=MICRO_BATCHES, mode=st.sampled_from(MODES))
@settings(max_examples=examples(10))
def test_encoders_that_compute_before_the_micro_batches_are_as_even_as_without(case, cut, mode):
    plan = planned("orchestrated", case, mode=mode, cut=replace(cut, encoders="step"))
    whole = planned("orchestrated", case, mode=mode)
    for name in case.encoders:
        assert plan[name].makespan == whole[name].makespan
        assert plan[name].rank_of_sample.tolist() == whole[name].rank_of_sample.tolist()
        assert plan[name].slot_loads[:, 1:].sum() == 0
    other = planned("orchestrated", case, cut=replace(cut, encoders="slot"))
    assert other["llm"].digest() == plan["llm"].digest()


@given(case=cases(most_samples=16), cap=st.integers(1, 200))
@settings(max_examples=examples(20))
def test_what_balances_ranks_leaves_no_micro_batch_empty_unless_it_may(case, cap):
    cut = MicroBatches(cap, over_long="own")
    try:
        llm = planned("llm_only", case, cut=cut)["llm"]
    except InfeasibleError as error:
        assert "allow_empty=True permits empty micro-batches" in str(error)  # noqa: PT017
        few = planned("llm_only", case, cut=MicroBatches(cap, over_long="own", allow_empty=True))["llm"]
        counts = np.bincount(few.rank_of_sample, minlength=few.num_ranks)
        assert counts.min() < few.num_slots
        return
    bins = llm.rank_of_sample * llm.num_slots + llm.slot_of_sample
    assert np.bincount(bins, minlength=llm.num_ranks * llm.num_slots).min() > 0


def test_a_rank_that_would_leave_micro_batches_empty_gets_more_samples():
    lengths = [90, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    free = plan_with("llm_only", {"t": lengths}, {"llm": "t"}, 2, cut=MicroBatches(90, allow_empty=True))
    assert sorted(np.bincount(free["llm"].rank_of_sample).tolist()) == [1, 9]
    assert free.num_slots == 1
    free = plan_with("llm_only", {"t": lengths}, {"llm": "t"}, 2, cut=MicroBatches(90, count=2, allow_empty=True))
    assert (free["llm"].slot_loads.min(), free.num_slots) == (0, 2)
    full = plan_with("llm_only", {"t": lengths}, {"llm": "t"}, 2, cut=MicroBatches(90, count=2))
    assert full["llm"].slot_loads.min() > 0
    assert full["llm"].fell_back == ""


def test_what_stays_where_it_is_may_leave_micro_batches_empty():
    """As it breaks other constraints: nothing is planned that could keep to them."""
    plan = plan_with("as_sampled", {"t": [9, 9, 9]}, {"llm": "t"}, 2, cut=MicroBatches(9))
    assert plan["llm"].slot_loads.tolist() == [[9, 9], [9, 0]]
    assert plan["llm"].cut.allow_empty


# --- what each of them is --------------------------------------------------------------------------------------------


@given(case=cases())
@settings(max_examples=examples(25))
def test_nothing_moves_without_balancing(case):
    plan = planned("as_sampled", case)
    assert plan.home.rank_of_sample.tolist() == plan["llm"].rank_of_sample.tolist() == case.home_rank
    for stream in plan.streams.values():
        assert stream.source == stream.target
        traffic = stream.traffic(plan.topology)
        assert (traffic.inter_node, traffic.intra_node, traffic.largest_send) == (0, 0, 0)


@given(cases())
@settings(max_examples=examples(20))
def test_llm_only_balances_the_last_phase_and_encoders_follow(case):
    plan = planned("llm_only", case)
    for name in case.encoders:
        samples = plan.phases[name].items.sample_of_item
        assert plan[name].rank_of_sample.tolist() == plan["llm"].rank_of_sample[samples].tolist()
        assert plan.streams[f"{name}:out"].source == plan.streams[f"{name}:out"].target
    alone = balancer.balance(case.batch["llm"], plan.num_ranks)
    assert plan_with("llm_only", case.batch, case.phases, case.topology, home_rank=case.home_rank, placement="any")[
        "llm"
    ].makespan == (alone.makespan)


def test_what_stays_at_home_breaks_constraints_and_what_is_planned_keeps_them():
    phases = [Phase("vision", "image", max_tokens_per_rank=9, every_rank_nonempty=True), Phase("llm", "text")]
    batch = {"image": [8, 9, 0, 0], "text": [1, 1, 1, 1]}
    idle = plan_with("as_sampled", batch, phases, 2, home_rank=[0, 0, 1, 1])
    assert idle["vision"].loads.tolist() == [17, 0]
    assert idle["vision"].empty_ranks(0).tolist() == [1]
    even = plan_with("orchestrated", batch, phases, 2, home_rank=[0, 0, 1, 1])
    assert max(even["vision"].loads) == 9


def test_raw_inputs_move_by_their_bytes():
    """What is balanced first travels first: llm_only moves raw inputs, the others outputs."""
    phases = [Phase("vision", "image", outputs="tokens", bytes_in=10, bytes_out=3), Phase("llm", "llm", own="text")]
    batch = {"image": [4, 8], "tokens": [1, 2], "text": [5, 6], "llm": [6, 8]}
    plan = plan_with("llm_only", batch, phases, Topology([1, 1]), home_rank=[0, 0])
    moved = plan.streams["vision:in"].traffic(plan.topology).inter_node
    assert moved in (40, 80)
    assert plan.streams["vision:out"].traffic(plan.topology).inter_node == 0


def test_the_costliest_micro_batches_of_all_ranks_meet():
    batch = {"t": [9, 1, 2, 8]}
    plan = plan_with("as_sampled", batch, {"llm": "t"}, 2, cut=MicroBatches(9))
    assert plan["llm"].slot_loads.tolist() == [[9, 1], [8, 2]]
    assert plan["llm"].makespan == 9 + 2


# --- bad input -------------------------------------------------------------------------------------------------------


def test_an_unknown_strategy_names_those_there_are():
    with pytest.raises(ValueError, match="unknown strategy 'best'; known strategies are as_sampled, llm_only"):
        plan_with("best", {"a": [1]}, {"llm": "a"}, 1)


@EVERY_STRATEGY
def test_micro_batches_that_cannot_be(strategy):
    said = "phase 'llm': sample 2 of length 9 is longer than cut.tokens = 4; leave it out beforehand .lengths <= 4., "
    with pytest.raises(
        InfeasibleError, match=said + "raise the cap, over_long='own' gives it a micro-batch of its own$"
    ):
        plan_with(strategy, {"t": [1, 2, 9, 3, 4, 4]}, {"llm": "t"}, 2, cut=MicroBatches(4))


@pytest.mark.parametrize("name", ["bytes_in", "bytes_out"])
def test_bytes_that_do_not_fit(name):
    phases = [Phase("vision", "a", **{name: 2**22}), Phase("llm", "b")]
    with pytest.raises(ValueError, match=rf"'vision': {name} = 4194304 makes about 9.22e\+18 bytes"):
        plan_with("orchestrated", {"a": [2**40, 2**40], "b": [1, 3]}, phases, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name must be text, not empty, without ':' and '=', got ''"),
        ({"length": " "}, "phase 'v': length must be text, got ' '"),
        ({"outputs": 5}, "outputs must be text, got 5"),
        ({"max_tokens_per_rank": 0}, "phase 'v': max_tokens_per_rank must be a whole number >= 1, got 0"),
        ({"min_samples_per_rank": "one"}, "phase 'v': min_samples_per_rank must be a whole number >= 0, got 'one'"),
        ({"allowed_ranks": [0]}, "allowed_ranks must be text, got \\[0\\]"),
        ({"caps": ["a"]}, "caps must be a table of columns, such as patches or text.image, each with .*, got .'a'."),
        ({"caps": {"a": 0}}, "phase 'v': caps must map columns to whole numbers >= 1; 'a' has 0, got"),
        ({"rank_speeds": ["fast"]}, "phase 'v': rank_speeds must be a list of whole numbers >= 1, got \\['fast'\\]"),
    ],
)
def test_bad_phases(fields, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Phase(**{"name": "v", "length": "a"} | fields)


GOOD = {"batch": {"a": [5, 4, 3, 8], "b": [1, 0, 2, 2]}, "phases": {"v": "b", "l": "a+b"}, "topology": Topology((2, 1))}
HOSTILE = {
    "strategy": ["", "best", None, 7, [], b"orchestrated"],
    "batch": [
        None, {}, [], 7, {"a": [5, 4, 3, 8]}, {"a": [5, 4, 3, 8], "b": [1]}, {"a": None, "b": [1]}, {"a": 7, "b": 7},
        {"a": "text", "b": "text"}, *({"a": [one] * 4, "b": [1, 0, 2, 2]} for one in (
            -3, 5.5, float("nan"), float("inf"), 2**62, 2**63, 2**70, "x", None, [1], True
        )), {"a": np.zeros((4, 2), int), "b": [1, 2, 3, 4]},
    ],
    "phases": [
        None, [], {}, 7, "v", [None], [7, 8], [Phase("v", "b")] * 2, {"v": "no"}, {"v": 7}, {"v": "b+"}, {"": "b"},
    ],
    "topology": [None, "x", (2, 1), 0, -1, 1.5, 2**40],
    "home_rank": [7, "x", [], [0, 1, 2], [0, 1, 2, 3], [0, -1, 0, 0], [0.5] * 4, [None] * 4, [2**70] * 4, [[0]] * 4],
    "cut": [7, "x", {}], "method": ["best", None, 7, []], "mode": ["best", None, 7],
    "time_budget": [0, -1, float("nan"), float("inf"), "x", None, 10**400], "placement": ["best", None, 7],
    "group_size": [0, -1, 2, "x", 1.5, 10**12],
    "eps": [-1, float("nan"), float("inf"), "x", None, 10**400],
}  # fmt: skip
"""Arguments of `plan_with` that cannot be."""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("argument", HOSTILE)
def test_every_strategy_refuses_what_cannot_be_planned_in_a_line(argument, strategy):
    for value in HOSTILE[argument]:
        given = {"strategy": strategy, **GOOD, argument: value}
        with pytest.raises((ValueError, TypeError)) as caught:
            plan_with(given.pop("strategy"), given.pop("batch"), given.pop("phases"), given.pop("topology"), **given)
        text = str(caught.value)
        assert 10 < len(text) < 600, value
        assert "\n" not in text
        assert not any(raw in text for raw in ("object is not", "has no len", "NoneType", "unhashable")), text
