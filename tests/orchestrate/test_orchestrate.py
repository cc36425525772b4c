"""`orchestrate`: every part arrives where its sample is, once, in order, by one exchange after its encoder."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
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


def parts_of_sample(case: Case, sample: int) -> list:
    parts = [(name, sample, j) for name, lists in case.encoders.items() for j in range(len(lists[sample]))]
    return parts + [("text", sample, 0)] * (case.text[sample] > 0)


options = st.fixed_dictionaries(
    {"mode": st.sampled_from(["separate", "joint"]), "cut": st.none() | st.just(MicroBatches(
        10**6, allow_empty=True))}
)  # fmt: skip


# --- every part arrives ----------------------------------------------------------------------------------------------


@given(cases(), options)
def test_every_part_arrives_once_in_order_at_the_rank_of_its_sample(case, chosen):
    plan = planned(case, **chosen)
    after_encoders = []
    for name in case.encoders:
        labels = labels_of(case, name)
        stream = plan.streams[f"{name}:in"]
        at_home = labelled(plan.home.lifted(np.array([s for _, s, _ in labels], dtype=np.int64)), labels)
        encoded = travel(stream, at_home)
        assert encoded == labelled(plan[name].target, labels), "raw items arrive at their encoder"
        after_encoders.append(encoded)
    text = [("text", s, 0) for s in range(plan.num_samples) if case.text[s]]
    after_encoders.append(labelled(plan.home.lifted(np.array([s for _, s, _ in text], dtype=np.int64)), text))
    held = [[label for stage in after_encoders for label in stage[rank]] for rank in range(plan.num_ranks)]
    arrived = travel(plan.inputs_of("llm"), held)
    for rank in range(plan.num_ranks):
        expected = [part for s in plan["llm"].samples_on_rank(rank).tolist() for part in parts_of_sample(case, s)]
        assert arrived[rank] == expected


@given(cases(), options)
def test_the_composed_exchange_is_the_two_exchanges_one_after_the_other(case, chosen):
    plan = planned(case, **chosen)
    for name in case.encoders:
        stream, labels = plan.streams[f"{name}:out"], labels_of(case, name)
        home = plan[name].home
        by_way_of_home = balancer.plan.stream.Stream("", stream.source, home, stream.lengths, stream.bytes_of_item)
        on_to_llm = balancer.plan.stream.Stream("", home, stream.target, stream.lengths, stream.bytes_of_item)
        encoded = labelled(stream.source, labels)
        assert travel(stream, encoded) == travel(on_to_llm, travel(by_way_of_home, encoded))


@given(cases(), options)
def test_backward_of_forward_is_the_identity(case, chosen):
    plan = planned(case, **chosen)
    for stream in [*plan.streams.values(), plan.inputs_of("llm")]:
        held = labelled(stream.source, list(range(len(stream.lengths))))
        assert travel(stream.inverse(), travel(stream, held)) == held


@given(cases())
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
def test_each_phase_is_as_even_as_it_would_be_by_itself(case):
    plan = planned(case, placement="any")
    for name, lists in case.encoders.items():
        lengths = [length for items in lists for length in items]
        alone = balancer.balance(lengths, plan.num_ranks)
        assert plan[name].makespan == alone.makespan
        assert plan[name].lower_bound <= plan[name].makespan


@given(cases(most_samples=4))
def test_joint_balances_the_sum(case):
    plan = planned(case, mode="joint", time_budget=0.1)
    lengths = [length for lists in case.encoders.values() for items in lists for length in items]
    if not case.encoders or len(lengths) > 7:
        return
    summed = sum(plan[name].loads for name in case.encoders)
    best = oracles.optimal_makespan(lengths, plan.num_ranks, False)
    if len(case.encoders) > 1:
        assert summed.max() == best


@given(cases(), st.data())
def test_groups_exchange_nothing_with_each_other(case, data):
    ranks = case.topology.num_ranks
    size = data.draw(st.sampled_from([g for g in range(1, ranks + 1) if ranks % g == 0]))
    plan = planned(case, group_size=size)
    for stream in plan.streams.values():
        assert (stream.source.rank_of_sample // size == stream.target.rank_of_sample // size).all()


@given(cases())
def test_idle_ranks_hold_nothing_and_all_others_something(case):
    for name, phase in planned(case).phases.items():
        ranks = range(case.topology.num_ranks)
        assert phase.idle_ranks.tolist() == [rank for rank in ranks if not len(phase.plan.samples_on_rank(rank))], name
        assert phase.plan.empty_ranks(0).tolist() == phase.idle_ranks.tolist()


@given(cases(every_rank_nonempty=True))
def test_no_rank_is_left_empty_where_there_are_enough_items(case):
    plan = planned(case)
    for name, lists in case.encoders.items():
        if sum(map(len, lists)) >= plan.num_ranks:
            assert len(plan[name].empty_ranks(0)) == 0


@given(cases())
def test_micro_batches_put_items_in_the_slot_of_their_sample(case):
    plan = planned(case, cut=MicroBatches(10**6, count=2, allow_empty=True))
    for name in case.encoders:
        slots = plan[name].slot_of_sample
        assert slots.tolist() == plan["llm"].slot_of_sample[plan.phases[name].items.sample_of_item].tolist()
        assert plan[name].num_slots == plan["llm"].num_slots == plan.num_slots == 2
    for phase in plan.phases.values():  # who runs a module everywhere runs a dummy on the empty ranks, and no other
        for slot in range(plan.num_slots):
            held = [len(phase.plan.samples_in_slot(rank, slot)) for rank in range(plan.num_ranks)]
            assert phase.plan.empty_ranks(slot).tolist() == [rank for rank, count in enumerate(held) if not count]


def test_the_same_batch_gives_the_same_digest():
    batch = {"a": [5, 3, 9, 1], "b": [2, 2, 2, 8]}
    first, second = (orchestrate(batch, {"vision": "a", "llm": "b"}, 2) for _ in range(2))
    other = orchestrate(batch | {"a": [5, 3, 9, 50]}, {"vision": "a", "llm": "b"}, 2)
    assert first.digest() == second.digest() != other.digest()


# --- corners ---------------------------------------------------------------------------------------------------------


def test_a_phase_with_no_items():
    plan = orchestrate({"image": [0, 0, 0], "text": [5, 6, 7]}, {"vision": "image", "llm": "text"}, 2)
    assert plan["vision"].num_samples == 0
    assert plan["vision"].empty_ranks(0).tolist() == [0, 1]
    assert plan.inputs_of("llm").lengths.tolist() == [5, 6, 7]


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


def test_an_empty_batch():
    plan = orchestrate({"image": [], "text": []}, {"vision": "image", "llm": "text"}, 2)
    assert plan.num_samples == 0
    assert plan["llm"].imbalance_ratio == 1.0


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
    ("batch", "phases", "options", "message"),
    [
        (BATCH, {"vision": "images", "llm": "text"}, {}, "no column 'images'; columns there are: image, text, lists"),
        (BATCH, {"vision": "image+lists", "llm": "text"}, {}, "column 'lists' holds a list for each sample"),
        (BATCH, {"vision": "image", "llm": "lists"}, {}, "phase 'llm' computes whole samples"),
        (BATCH, {}, {}, "at least one phase"),
        (BATCH, [Phase("a", "image"), Phase("a", "text")], {}, "different names, got a, a"),
        (BATCH, [Phase("a", "image", own="text"), Phase("llm", "text")], {}, "phase 'a': own is for the last phase"),
        (BATCH | {"image": [1]}, {"v": "image", "llm": "text"}, {}, "one length: 'image' has 1 samples, 'text' 3"),
        (BATCH | {"image": [1, -2, 3]}, {"v": "image", "llm": "text"}, {}, r"image of sample 1 must be >= 0, got -2"),
        (BATCH, {"v": "image", "llm": "text"}, {"mode": "both"}, "mode must be one of separate, joint"),
        (BATCH, {"v": "image", "llm": "text"}, {"group_size": 3}, "group_size must divide the 2 ranks, got 3"),
        (BATCH, [Phase("v", "lists", outputs="image"), Phase("llm", "text")], {}, "'v': sample 1 has 2 items"),
        (BATCH, CAPPED, {}, r"'v': item 1 \(of sample 2\) has length 9"),
    ],
)  # fmt: skip
def test_bad_input(batch, phases, options, message):
    with pytest.raises((ValueError, InputError, balancer.planner.solvers.SolverError), match=message):
        orchestrate(batch, phases, Topology([2]), **options)
