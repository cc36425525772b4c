"""`orchestrate`: every part arrives where its sample is, once, in order, by one exchange after its encoder."""

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from step_cases import Case, cases, labelled, travel

import balancer
from balancer import InputError, MicroBatches, Phase, Ragged, Topology, orchestrate

OMNI = [
    Phase("vision", "image_patches", outputs="image_tokens"),
    Phase("audio", "audio_frames", outputs="audio_tokens"),
    Phase("llm", "text_tokens+image_tokens+audio_tokens"),
]


def planned(case: Case, **options):
    return orchestrate(case.batch, case.phases, case.topology, home_rank=case.home_rank, **options)


def labels_of(case: Case, name: str) -> list:
    return [(name, s, j) for s, lists in enumerate(case.encoders[name]) for j in range(len(lists))]


options = st.fixed_dictionaries(
    {"mode": st.sampled_from(["separate", "joint"]), "cut": st.none() | st.just(MicroBatches(
        10**6, allow_empty=True))}
)  # fmt: skip


# --- what moves ------------------------------------------------------------------------------------------------------


@given(cases(), options)
@settings(max_examples=examples(25))
def test_the_composed_exchange_is_the_two_one_after_the_other_and_the_way_back_undoes_any(case, chosen):
    plan = planned(case, **chosen)
    for name in case.encoders:
        stream, labels = plan.streams[f"{name}:out"], labels_of(case, name)
        home = plan[name].home
        by_way_of_home = balancer.plan.stream.Stream("", stream.source, home, stream.lengths, stream.bytes_of_item)
        on_to_llm = balancer.plan.stream.Stream("", home, stream.target, stream.lengths, stream.bytes_of_item)
        encoded = labelled(stream.source, labels)
        assert travel(stream, encoded) == travel(on_to_llm, travel(by_way_of_home, encoded))
    for stream in [*plan.streams.values(), plan.inputs_of("llm")]:
        held = labelled(stream.source, list(range(len(stream.lengths))))
        assert travel(stream.inverse(), travel(stream, held)) == held


@given(cases())
@settings(max_examples=examples(20))
def test_bytes_that_move_are_those_of_the_items_that_move(case):
    plan = planned(case)
    node = plan.topology.node_of_rank
    for name in case.encoders:
        inter = intra = 0
        for item, (_, sample, j) in enumerate(labels_of(case, name)):
            source, target = plan[name].rank_of_sample[item], plan["llm"].rank_of_sample[sample]
            volume = 3 * case.encoders[name][sample][j]
            inter += volume * (node[source] != node[target])
            intra += volume * (node[source] == node[target] and source != target)
        traffic = plan.streams[f"{name}:out"].traffic(plan.topology)
        assert (traffic.inter_node, traffic.intra_node) == (inter, intra)


# --- what is balanced ------------------------------------------------------------------------------------------------


@given(cases())
@settings(max_examples=examples(20))
def test_each_phase_is_as_even_as_it_would_be_by_itself(case):
    plan = planned(case, placement="any")
    for name, lists in case.encoders.items():
        lengths = [length for items in lists for length in items]
        alone = balancer.balance(lengths, plan.num_ranks)
        assert plan[name].makespan == alone.makespan
        assert plan[name].lower_bound <= plan[name].makespan


@given(cases(most_samples=4))
@settings(max_examples=examples(25))
def test_joint_balances_the_sum(case):
    plan = planned(case, mode="joint", time_budget=0.1)
    lengths = [length for lists in case.encoders.values() for items in lists for length in items]
    if not case.encoders or len(lengths) > 7:
        return
    summed = sum(plan[name].loads for name in case.encoders)
    best = oracles.optimal_makespan(lengths, plan.num_ranks, False)
    if len(case.encoders) > 1:
        assert summed.max() == best


@given(cases(every_rank_nonempty=True))
@settings(max_examples=examples(20))
def test_no_rank_is_left_empty_where_there_are_enough_items(case):
    plan = planned(case)
    for name, lists in case.encoders.items():
        if sum(map(len, lists)) >= plan.num_ranks:
            assert len(plan[name].empty_ranks(0)) == 0


@given(cases(), st.sampled_from([None, MicroBatches(10**6, count=2, allow_empty=True)]))
@settings(max_examples=examples(30))
def test_items_are_in_the_slot_of_their_sample_and_ranks_that_hold_nothing_are_named(case, cut):
    plan = planned(case, cut=cut)
    for name in case.encoders:
        slots = plan[name].slot_of_sample
        assert slots.tolist() == plan["llm"].slot_of_sample[plan.phases[name].items.sample_of_item].tolist()
        assert plan[name].num_slots == plan["llm"].num_slots == plan.num_slots == (2 if cut else 1)
    ranks = range(plan.num_ranks)
    for name, phase in plan.phases.items():  # who runs a module everywhere runs a dummy on these ranks, and no other
        assert phase.idle_ranks.tolist() == [rank for rank in ranks if not len(phase.plan.samples_on_rank(rank))], name
        for slot in range(plan.num_slots):
            held = [len(phase.plan.samples_in_slot(rank, slot)) for rank in ranks]
            assert phase.plan.empty_ranks(slot).tolist() == [rank for rank in ranks if not held[rank]], name


def test_the_same_batch_gives_the_same_digest():
    batch = {"a": [5, 3, 9, 1], "b": [2, 2, 2, 8]}
    first, second = (orchestrate(batch, {"vision": "a", "llm": "b"}, 2) for _ in range(2))
    other = orchestrate(batch | {"a": [5, 3, 9, 50]}, {"vision": "a", "llm": "b"}, 2)
    assert first.digest() == second.digest() != other.digest()


# --- corners ---------------------------------------------------------------------------------------------------------


def test_a_sample_with_no_text_and_one_with_nothing():
    phases = [Phase("vision", "image"), Phase("llm", "image+text")]
    plan = orchestrate({"image": [4, 0, 9], "text": [0, 0, 7]}, phases, 2)
    assert plan.streams["llm:own"].lengths.tolist() == [7]
    assert sorted(plan.inputs_of("llm").lengths.tolist()) == [4, 7, 9]


def test_a_sample_with_ten_thousand_images():
    images = Ragged.of([[1] * 10_000, [500], []])
    phases = [Phase("vision", "images"), Phase("llm", "tokens")]
    plan = orchestrate({"images": images, "tokens": [10_000, 500, 40]}, phases, 4)
    assert plan["vision"].gap <= balancer.planner.EPS
    assert plan["vision"].imbalance_ratio < 1.001


IMAGES = [[5, 3], [], [0, 7, 2]]


@pytest.mark.parametrize(
    "images", [IMAGES, Ragged.of(IMAGES), np.array([np.array(row) for row in IMAGES], dtype=object)],
    ids=["lists", "Ragged", "arrays"],
)  # fmt: skip
def test_each_number_of_a_list_is_an_item(images):
    batch = {"images": images, "made": [[1, 1], [], [0, 2, 1]], "pieces": [[4], [3, 2], []], "text": [6, 5, 3]}
    phases = [Phase("vision", "images", outputs="made"), Phase("llm", "text", own="pieces")]
    plan = orchestrate(batch, phases, 2)
    items = plan.phases["vision"].items
    assert items.lengths.tolist() == [5, 3, 0, 7, 2]
    assert (items.sample_of_item.tolist(), items.outputs.tolist()) == ([0, 0, 2, 2, 2], [1, 1, 0, 2, 1])
    assert plan.phases["llm"].items.own.to_lists() == [[4], [3, 2], []]


# --- bad input -------------------------------------------------------------------------------------------------------

CAPPED = [Phase("v", "image", max_tokens_per_rank=3), Phase("llm", "text")]
BATCH = {"image": [4, 0, 9], "text": [1, 2, 7], "lists": Ragged.of([[1], [2, 2], [3]])}


@pytest.mark.parametrize(
    ("batch", "phases", "message"),
    [
        (BATCH, {"vision": "images", "llm": "text"}, "no column 'images'; columns there are: image, text, lists"),
        (BATCH, {"vision": "image+lists", "llm": "text"}, "column 'lists' holds a list for each sample"),
        (BATCH, {"vision": "image", "llm": "lists"}, "phase 'llm' computes whole samples"),
        (BATCH | {"image": [1]}, {"v": "image", "llm": "text"}, "one length: 'image' has 1 samples, 'text' 3"),
        (BATCH | {"image": [1, -2, 3]}, {"v": "image", "llm": "text"}, r"image of sample 1 must be >= 0, got -2"),
        (BATCH, [Phase("v", "lists", outputs="image"), Phase("llm", "text")], "'v': sample 1 has 2 items"),
        (BATCH, CAPPED, r"'v': item 1 \(of sample 2\) has length 9"),
    ],
)  # fmt: skip
def test_bad_input(batch, phases, message):
    with pytest.raises((ValueError, InputError, balancer.planner.solvers.SolverError), match=message):
        orchestrate(batch, phases, Topology([2]))


def test_a_step_is_shown_by_its_ratios():
    batch = {"patches": [64, 0, 256, 64], "tokens": [90, 40, 80, 30]}
    plan = orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2)
    assert repr(plan).startswith("<StepPlan: 4 samples on 2 ranks, imbalance vision ")
    for shown in ("4 samples on 2 ranks", "vision", "llm", "imbalance ratio"):
        assert shown in plan._repr_html_()
