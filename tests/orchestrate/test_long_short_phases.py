"""Encoders whose long items ranks share: what is where, what arrives, what is proven, files, and what is refused."""

import itertools
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_files import tamper
from step_cases import moved

import balancer
import solvers
from balancer import MicroBatches, ModuleLayout, Phase, Ragged, SequenceGroups, Topology, orchestrate
from balancer.cost import CostModel, Sharing
from balancer.described import as_dict
from balancer.errors import PlanError
from balancer.problem.constraints import Constraints
from balancer.problem.cuts.sequence_groups import LongShort
from balancer.problem.phases import CONSTRAINTS
from balancer.simulate import CLUSTERS, PhaseModel, step_time
from balancer.strategies import plan_with
from solvers.errors import CertificateError, InfeasibleError, SolverError

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "long_samples.md"
MODELS = {"vision": "qwen2-vl-vit", "llm": "qwen2-7b"}
COST = CostModel(3, 1, sharing=Sharing(0, ((2, 4), (4, 6)), overhead=40))


def phases(size, multiple=2, **more):
    images = Phase(
        "vision", "images", COST, outputs="made", bytes_in=3, bytes_out=5, sequence_parallel=size,
        share_multiple_of=multiple, **more,
    )  # fmt: skip
    return [images, Phase("llm", "tokens", own="text", bytes_in=7)]


def batch_of(images, text, multiple=2):
    """Columns of samples, given the outputs that each image makes, each of so many elements."""
    return {
        "images": Ragged.of([[multiple * made for made in row] for row in images]),
        "made": Ragged.of([list(row) for row in images]),
        "text": np.array(text, dtype=np.int64),
        "tokens": np.array([sum(row) + own for row, own in zip(images, text, strict=True)], dtype=np.int64),
    }


@st.composite
def asked(draw):
    """A batch, ranks and settings that can be planned."""
    nodes, node, size = draw(st.sampled_from([(1, 2, 2), (1, 4, 2), (2, 4, 4), (3, 4, 2), (2, 2, 4), (1, 6, 6)]))
    n = draw(st.integers(0, 8))
    made = st.integers(0, 12) | st.integers(0, 150)
    images = draw(st.lists(st.lists(made, max_size=3), min_size=n, max_size=n))
    text = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    homes = draw(st.lists(st.integers(0, nodes * node - 1), min_size=n, max_size=n))
    placement = draw(st.sampled_from(["relocate", "rearrange", "any"]))
    shared = draw(st.sampled_from([None, None, SequenceGroups((1, 2), encoders="step")]))
    return images, text, nodes * node, node, size, homes, {"placement": placement, "cut": shared}


def planned(case, **more):
    images, text, ranks, node, size, homes, given_settings = case
    return orchestrate(
        batch_of(images, text), phases(size, **more), Topology.uniform(ranks, node), home_rank=homes, time_budget=0.001,
        **given_settings,
    )  # fmt: skip


def held_by(plan, rank):
    """What a rank has of the encoder's items: its outputs, slot by slot, from the pieces that the plan shows."""
    found = []
    for slot in range(plan.num_slots):
        pieces = plan.pieces_on_rank(rank, slot)
        for item, start, stop in zip(pieces.sample.tolist(), pieces.start.tolist(), pieces.stop.tolist(), strict=True):
            stop = min(stop, int(plan.lengths[item]))
            found += [(item, element // 2) for element in range(start, stop, 2)]
    return found


@settings(max_examples=examples(10), deadline=None)
@given(asked())
def test_items_arrive_in_pieces_and_their_outputs_in_order(case):
    step = planned(case)
    vision, llm, items = step["vision"], step["llm"], step.phases["vision"].items
    elements = [[(item, e) for e in range(length)] for item, length in enumerate(vision.lengths.tolist())]
    arrived = moved(step.streams["vision:in"], [
        [e for item in vision.home.samples_on_rank(rank).tolist() for e in elements[item]]
        for rank in range(step.num_ranks)
    ])  # fmt: skip
    made = [held_by(vision, rank) for rank in range(step.num_ranks)]
    for rank in range(step.num_ranks):  # a rank has the elements that its outputs are made of, in their order
        assert arrived[rank] == [(item, 2 * out + half) for item, out in made[rank] for half in (0, 1)]
    assert sorted(itertools.chain(*made)) == [(i, out) for i, count in enumerate(items.outputs) for out in range(count)]
    own = [[("own", s, e) for s in step.home.samples_on_rank(rank).tolist() for e in range(case[1][s])]
           for rank in range(step.num_ranks)]  # fmt: skip
    inputs = moved(step.inputs_of("llm"), [mine + other for mine, other in zip(made, own, strict=True)])
    for rank in range(step.num_ranks):
        wanted = []
        pieces = llm.pieces_on_rank(rank)
        for sample, start, stop in zip(pieces.sample, pieces.start, pieces.stop, strict=True):
            mine = np.flatnonzero(items.sample_of_item == sample).tolist()
            whole = [(item, out) for item in mine for out in range(items.outputs[item])]
            whole += [("own", int(sample), e) for e in range(case[1][sample])]
            wanted += whole[start:stop]
        assert inputs[rank] == wanted
    assert step.streams["vision:out"].traffic(step.topology).total == 5 * int(items.outputs.sum())


@settings(max_examples=examples(10), deadline=None)
@given(case=asked())
def test_loads_files_and_words_are_those_of_the_plan(case, tmp_path_factory):
    step = planned(case)
    plan, size = step["vision"], case[4]
    loads, shares = np.zeros(step.num_ranks, dtype=np.int64), np.zeros(step.num_ranks, dtype=bool)
    table = plan.group_table
    times = {d: COST.sharing.on_degree(3 * plan.lengths, plan.lengths**2, plan.lengths, d) for d in (1, 2, 3, 4, 6)}
    for item, group in enumerate(table.group_of_sample.tolist()):
        first, degree = int(table.first_rank[group]), int(table.degree[group])
        assert first % degree == 0
        loads[first : first + degree] += times[degree][item]
        shares[first // size * size :][:size] |= degree > 1
    loads += COST.sharing.overhead * shares
    assert plan.loads.tolist() == loads.tolist()
    assert plan.makespan == loads.max()
    assert plan.lower_bound <= plan.makespan
    path = tmp_path_factory.mktemp("plans") / "plan.parquet"
    step.save(path)
    assert balancer.load_plan(path).digest() == step.digest()
    assert pickle.loads(pickle.dumps(step)).digest() == step.digest()  # noqa: S301 (our own)


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 300))
def test_nothing_is_faster_than_the_bound_nor_crosses_nodes_with_less(lengths, overhead):
    """On two groups of two ranks, every way to put four items is tried."""
    cost = replace(COST, sharing=replace(COST.sharing, overhead=overhead))
    columns = {"images": lengths, "tokens": lengths}
    for ranks in (2, 4):
        asked_for = [Phase("v", "images", cost, sequence_parallel=2), Phase("llm", "tokens")]
        step = orchestrate(columns, asked_for, Topology.uniform(ranks, 2), home_rank=[0] * len(lengths))
        array, moved = np.array(lengths), []
        alone, shared = (cost.sharing.on_degree(3 * array, array**2, array, d) for d in (1, 2))
        best = None
        places = [[rank] for rank in range(ranks)] + [[rank, rank + 1] for rank in range(0, ranks, 2)]
        for chosen in itertools.product(places, repeat=len(lengths)):
            loads = np.zeros(ranks, dtype=np.int64)
            for item, on in enumerate(chosen):
                loads[on] += alone[item] if len(on) == 1 else shared[item]
            for group in {on[0] for on in chosen if len(on) > 1}:
                loads[group : group + 2] += overhead
            best = int(loads.max()) if best is None else min(best, int(loads.max()))
            if loads.max() <= step["v"].makespan:
                moved.append(sum(length for length, on in zip(lengths, chosen, strict=True) if on[0] > 1))
        assert step["v"].lower_bound <= best <= step["v"].makespan
        assert step["v"].inter_node_bound <= min(moved)


def share_of(what, length, blocks, degree, multiple=2):
    """What each of so many ranks has of an item."""
    tokens = -(-length // (multiple * degree)) * multiple
    return {"max_tokens_per_rank": tokens, "max_samples_per_rank": 1, "caps": -(-blocks // degree)}[what]


def checked(plan, cost, size, **caps):
    """Hold a phase's plan against the checker, which shares no code with what made it."""
    alone, *shared = (cost.sharing.on_degree(3 * plan.lengths, plan.lengths**2, plan.lengths, d)
                      for d in sorted(plan.cut.degrees))  # fmt: skip
    table = plan.group_table
    rules = {"num_ranks": plan.num_ranks, "group_size": size, "degrees": sorted(plan.cut.degrees)[1:],
             "overhead": cost.sharing.overhead, "makespan": plan.makespan, "lower_bound": plan.lower_bound}  # fmt: skip
    places = table.degree_of_sample, table.first_rank[table.group_of_sample]
    solvers.check_long_short_groups(alone, shared, *places, **rules | caps)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 39), st.integers(0, 8)), min_size=1, max_size=4),
    st.sampled_from([(2, 2), (4, 2), (4, 4)]),
    st.sampled_from([("max_tokens_per_rank", 3, 40), ("max_samples_per_rank", 1, 3), ("caps", 2, 11)]),
    st.sampled_from(["relocate", "rearrange", "any"]),
    st.data(),
)
def test_caps_are_kept_and_no_plan_that_keeps_them_undercuts_the_bound(items, shape, cap, placement, data):
    """Against all places of all items: an infeasible batch is one, and a bound is one under the cap."""
    (ranks, size), what, limit = shape, cap[0], data.draw(st.integers(*cap[1:]))
    lengths, blocks = np.array([length for length, _ in items]), np.array([more for _, more in items])
    places = [range(first, first + d) for d in (1, 2, 4) if d <= size for first in range(0, ranks, d)]
    held = {d: [share_of(what, *item, d) for item in items] for d in (1, 2, 4)}
    times = {d: COST.sharing.on_degree(3 * lengths, lengths**2, lengths, d) for d in (1, 2, 4)}
    best = None
    for chosen in itertools.product(places, repeat=len(items)):
        loads, room = np.zeros((2, ranks), dtype=np.int64)
        for item, on in enumerate(chosen):
            loads[on], room[on] = loads[on] + times[len(on)][item], room[on] + held[len(on)][item]
        for group in {on[0] // size for on in chosen if len(on) > 1}:
            loads[group * size : (group + 1) * size] += COST.sharing.overhead
        if room.max() <= limit:
            best = int(loads.max()) if best is None else min(best, int(loads.max()))
    how = {what: {"blocks": limit} if what == "caps" else limit}
    asked_for = [Phase("v", "images", COST, sequence_parallel=size, share_multiple_of=2, **how), Phase("llm", "images")]
    try:
        plan = orchestrate({"images": lengths, "blocks": blocks}, asked_for, ranks, placement=placement)["v"]
    except SolverError as error:
        refused, plan = error, None
    if plan is None:
        assert best is None or not isinstance(refused, InfeasibleError)
        return
    assert plan.lower_bound <= best <= plan.makespan
    degrees = sorted(plan.cut.degrees)
    checked(plan, COST, size, shares=[[held[d] for d in degrees]], caps=[limit])


def test_a_cap_shares_what_time_alone_would_not():
    cost = replace(COST, sharing=replace(COST.sharing, overhead=10**6))
    columns, free = {"images": [88, 32, 20, 12], "tokens": [1] * 4}, Phase("v", "images", cost, sequence_parallel=4)
    loose, tight = (orchestrate(columns, [phase, Phase("llm", "tokens")], 4, home_rank=[0] * 4)["v"]
                    for phase in (free, replace(free, max_tokens_per_rank=45)))  # fmt: skip
    assert (loose.group_table.degree_of_sample == 1).all()
    assert tight.group_table.degree_of_sample[0] > 1
    assert tight.lower_bound > loose.lower_bound  # 88 on a rank is no plan
    assert tight.shares.lengths.sum() == 152
    assert max(np.bincount(tight.shares.place.rank_of_sample, tight.shares.lengths)) <= 45


def test_a_cap_goes_with_items_that_stay_together_groups_and_the_command_to_stay_home():
    batch = batch_of(*LONG) | {"page": np.array([0, 1, 2, 0, 4, 5, 6, 7])}
    for more, how in (({"keep_together": "page"}, {}), ({}, {"group_size": 4}), ({}, {"home_rank": np.arange(8)})):
        asked_for = phases(4, max_tokens_per_rank=90, max_samples_per_rank=6, caps={"made": 45}, **more)
        plan = orchestrate(batch, asked_for, Topology.uniform(8, 4), **how)["vision"]
        held, rank = plan.shares.lengths, plan.shares.place.rank_of_sample
        assert np.bincount(rank, held).max() <= 90
        assert np.bincount(rank).max() <= 6
        assert plan.makespan < 2 * plan.lower_bound


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"max_tokens_per_rank": 20},
            r"image 0 \(of sample 0\), shared by 4 ranks, is 40 tokens on each, 20 more than",
        ),
        (
            {"max_tokens_per_rank": 43},
            r"the batch has 352 tokens, shared or not, 8 more than 8 ranks hold with max_tok",
        ),
        (
            {"max_samples_per_rank": 1},
            "the batch has 11 items, shared or not, 3 more than 8 ranks hold with max_samples",
        ),
        ({"caps": {"made": 21}}, r"has 176 'made', shared or not, 8 more than 8 ranks hold with the cap"),
    ],
)
def test_a_cap_that_cannot_be_kept_says_by_how_much(how, message):
    with pytest.raises(InfeasibleError, match=message.replace("image", "item")):
        orchestrate(batch_of(*LONG), phases(4, **how), Topology.uniform(8, 4))


def test_caps_are_as_large_as_numbers_get():
    three = {"images": [5] * 3, "tokens": [1] * 3, "blocks": [2**60] * 3}
    llm, most = Phase("llm", "tokens"), Phase("v", "images", sequence_parallel=4, max_samples_per_rank=1)
    plan = orchestrate(three, [replace(most, max_tokens_per_rank=2**62), llm], 4)["v"]  # four times that is 0 in int64
    assert plan.shares.lengths.tolist() == [5] * 3
    with pytest.raises(ValueError, match=f"all 'blocks' together must be below .*, got {3 * 2**60}"):
        orchestrate(three, [replace(most, caps={"blocks": 2**62}), llm], 4)


@pytest.mark.parametrize(
    ("name", "limit", "lower", "message"),
    [
        ("max_tokens_per_rank", 90, 45, "holds [0-9]+ tokens, cap 45"),
        ("max_samples_per_rank", 6, 1, "holds [0-9]+ samples, cap 1"),
    ],
)
def test_a_file_that_breaks_a_cap_is_refused(tmp_path, name, limit, lower, message):
    asked_for, path = phases(4, **{name: limit}), tmp_path / "plan.parquet"
    orchestrate(batch_of(*LONG), asked_for, Topology.uniform(8, 4)).save(path)
    balancer.load_plan(path)
    tamper(path, description=lambda description: description["phases"][0].update({name: lower}))
    with pytest.raises(PlanError, match=message):
        balancer.load_plan(path)


def test_pieces_that_break_a_cap_or_part_what_stays_together_are_found():
    plan = planned((*LONG, 8, 4, 4, np.arange(8), {}))["vision"]
    count, ranks_and_slots = len(plan.lengths), (plan.num_ranks, plan.num_slots)
    blocks = np.where(plan.group_table.degree_of_sample > 1, 9, 0)  # of which each of four ranks has three
    for limit, message in ((2, "holds 3 blocks, cap 2"), (3, None)):
        kept = Constraints.from_given(count, 8, caps={"blocks": (blocks[:], limit)})
        found = plan.group_table.broken(kept, plan.lengths, plan.cut, *ranks_and_slots)
        assert (found is None) == (message is None)
        assert message is None or message in found
    kept = Constraints.from_given(count, 8, keep_together=np.zeros(count))
    found = plan.group_table.broken(kept, plan.lengths, plan.cut, *ranks_and_slots)
    assert "have one keep_together key" in found


def test_the_checker_finds_what_is_wrong_with_a_plan():
    plan = planned((*LONG, 8, 4, 4, np.arange(8), {}))["vision"]
    checked(plan, COST, 4)
    table = plan.group_table

    def with_groups(**changes):
        return replace(plan, group_table=replace(table, **changes))

    for wrong, message in (
        (replace(plan, makespan=plan.makespan - 1), "makespan is"),
        (replace(plan, lower_bound=plan.makespan + 1), "exceeds makespan"),
        (with_groups(first_rank=table.first_rank + 1), "starts at rank"),
        (with_groups(degree=np.where(table.degree > 1, 3, 1)), "none of"),
        (with_groups(degree=np.ones_like(table.degree)), "makespan is"),
        (with_groups(first_rank=np.full_like(table.first_rank, 8)), "starts at rank 8"),
    ):
        with pytest.raises(CertificateError, match=message):
            checked(wrong, COST, 4)
    shares = np.full((1, 3, len(plan.lengths)), 2)
    with pytest.raises(CertificateError, match=r"holds \d+ of quantity 0, cap 3"):
        checked(plan, COST, 4, shares=shares, caps=[3])
    for ranks in (2, 4):  # one group, and two
        loose = [Phase("v", "images", COST, sequence_parallel=2), Phase("llm", "images")]
        plan = orchestrate({"images": [5] * (ranks + 1)}, loose, ranks)["v"]
        assert plan.lower_bound < plan.makespan
        checked(plan, COST, 2)
        with pytest.raises(CertificateError, match="does not prove it"):
            checked(replace(plan, lower_bound=plan.lower_bound + 1), COST, 2)


LONG = ([[80, 3], [2, 4], [], [60], [1, 2, 3], [5], [7], [9]], [4, 0, 30, 2, 9, 9, 1, 5])


def test_long_items_are_shared_and_the_phase_ends_sooner():
    case = (*LONG, 8, 4, 4, np.arange(8), {})
    step, whole = planned(case), orchestrate(batch_of(*LONG), [replace(phases(4)[0], sequence_parallel=None,
        share_multiple_of=1), phases(4)[1]], Topology.uniform(8, 4))  # fmt: skip
    degree = step["vision"].group_table.degree_of_sample
    assert degree[[0, 4]].tolist() == [4, 4]
    assert 2 * step["vision"].makespan < whole["vision"].makespan
    assert "sequence_parallel" not in whole.setup.to_json()["phases"][0]
    compared = plan_with("as_sampled", batch_of(*LONG), phases(4), 8)
    assert compared["vision"].group_table is None


def test_an_item_that_fills_a_group_goes_where_least_moves_for_it():
    """Its own group has twice as much to move as it is long, another less; what has no room moves in any case."""
    images = [[300]] + [[100]] * 6 + [[20]] * 8
    homes = np.array([0] * 7 + [4] * 3 + [8] * 5)
    step = orchestrate(batch_of(images, [1] * 15), phases(4), Topology.uniform(16, 4), home_rank=homes)
    vision = step["vision"]
    node = vision.rank_of_sample // 4
    assert node[0] == 3
    assert (node[1:] == homes[1:] // 4).all()
    assert vision.makespan == vision.lower_bound


def test_groups_of_ranks_plan_by_themselves():
    case = (*LONG, 8, 4, 2, np.arange(8), {"group_size": 4})
    step = planned(case)
    assert (step["vision"].rank_of_sample // 4 == step["vision"].home.rank_of_sample // 4).all()
    assert (step["vision"].group_table.degree_of_sample > 1).any()


def test_items_with_one_key_are_in_one_place():
    batch = batch_of(*LONG) | {"page": np.array([0, 1, 2, 0, 4, 5, 6, 7])}
    step = orchestrate(batch, phases(4, keep_together="page"), Topology.uniform(8, 4))
    group = step["vision"].group_table.group_of_sample
    assert len({group[0], group[1], group[4]}) == 1


def test_before_the_micro_batches_of_the_last_phase():
    cut = MicroBatches(120, encoders="step", allow_empty=True)
    step = orchestrate(batch_of(*LONG), phases(4), Topology.uniform(8, 4), cut=cut)
    assert step["vision"].num_slots == 3
    assert step.num_slots == step["llm"].num_slots
    assert step["vision"].cut.in_words() == "long items shared by up to 4 ranks"


def test_a_file_with_a_group_that_is_none_is_refused(tmp_path):
    def aside(rows):
        shared = next(row["group"] for row in rows if row["phase"] == "vision" and (row["slot"], row["rank"]) == (0, 0))
        for row in rows:
            row["rank"] += row["phase"] == "vision" and row["group"] == shared

    path = tmp_path / "plan.parquet"
    planned((*LONG, 8, 4, 4, np.arange(8), {})).save(path)
    tamper(path, rows=aside)
    with pytest.raises(PlanError, match="phase 'vision': group 0 cannot be 4 ranks from 1"):
        balancer.load_plan(path)


@pytest.mark.parametrize(
    ("more", "ranks", "how", "message"),
    [
        ({"cost": "padded:a=1,b=0"}, 8, {}, "sequence_parallel cannot be combined with cost"),
        ({"cost": "linear"}, 6, {}, "sequence_parallel must divide the 6 ranks"),
        ({"cost": "flops:internvit-6b"}, 8, {}, "sequence_parallel = 4 shares items by 4, 2 ranks, .* the model's 25 "),
        ({}, 8, {"group_size": 2}, "group_size = 2 must be a multiple of sequence_parallel = 4"),
        ({}, 8, {"cut": MicroBatches(500)}, "in the slot of its sample is not planned"),
        ({}, 8, {"layouts": {"vision": ModuleLayout(dp=8), "llm": ModuleLayout(dp=8)}}, "combined with layouts"),
        ({}, Topology([4, 3, 1]), {}, "sequence_parallel needs nodes of equal size"),
        ({"sequence_parallel": 1}, 8, {}, "sequence_parallel must be a whole number >= 2, got 1"),
        ({"sequence_parallel": None}, 8, {}, "share_multiple_of needs sequence_parallel"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(more, ranks, how, message):
    fields = as_dict(phases(4)[0]) | {"cost": COST} | more
    with pytest.raises(ValueError, match=message):
        orchestrate(batch_of(*LONG), [Phase(**fields), phases(4)[1]], ranks, **how)


KEPT = {"keep_together", "max_tokens_per_rank", "max_samples_per_rank", "caps"}


@pytest.mark.parametrize("name", sorted(CONSTRAINTS))
def test_a_constraint_is_kept_or_its_refusal_says_what_it_would_mean_and_what_to_do(name):
    if name in KEPT:
        LongShort.from_size(4).check(COST, [name], Topology.uniform(8, 4))
        return
    with pytest.raises(ValueError, match=f"sequence_parallel cannot be combined with {name}: .*; ") as refused:
        LongShort.from_size(4).check(COST, [name], Topology.uniform(8, 4))
    assert "samples are on several ranks" not in str(refused.value)


def test_several_encoders_are_planned_separately():
    audio = Phase("audio", "text", sequence_parallel=2)
    step = orchestrate(batch_of(*LONG), [audio, phases(4)[0], replace(phases(4)[1], own=None)], Topology.uniform(8, 4))
    assert [step[name].num_slots for name in step.phases] == [2, 3, 1]
    with pytest.raises(ValueError, match="sequence_parallel of phase 'audio' cannot be combined with balancing"):
        orchestrate(batch_of(*LONG), [audio, *phases(4)], 8, mode="joint")


def test_the_last_phase_is_no_encoder():
    with pytest.raises(ValueError, match="phase 'llm': sequence_parallel is for encoders"):
        orchestrate(batch_of(*LONG), [phases(4)[0], replace(phases(4)[1], sequence_parallel=4)], 8)


def test_simulated_it_takes_what_its_slowest_rank_does():
    cut = MicroBatches(60, encoders="step", allow_empty=True, over_long="own")
    h100 = CLUSTERS["h100"]
    models = {name: PhaseModel.on(model, h100.peak_flops, efficiency=0.4) for name, model in MODELS.items()}
    step = orchestrate(batch_of(*LONG), phases(4), Topology.uniform(8, 4), cut=cut)
    found = step_time(step, models, h100)
    vision = found.phases["vision"]
    assert vision.compute_s + vision.waiting_s == pytest.approx(vision.rank_seconds.max())
    whole = step_time(plan_with("as_sampled", batch_of(*LONG), phases(4), 8, cut=cut), models, h100)
    assert vision.useful_flops == pytest.approx(whole.phases["vision"].useful_flops)
    assert vision.rank_seconds.max() < whole.phases["vision"].rank_seconds.max()
    assert found.num_slots == step["llm"].num_slots


def test_the_page_shows_what_comes_out():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(block, {})
