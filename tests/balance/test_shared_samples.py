"""Sequence groups in plans: pieces, exchanges, loads, files, and what is refused."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from plan_files import tamper
from step_cases import moved

import balancer
import solvers
from balancer import Phase, SequenceGroups, Topology, balance, orchestrate
from balancer.cost import CostModel, Sharing
from balancer.errors import PlanError
from solvers.grouping import SequenceGroupsResult

FEW = (1, 2, 4)


@st.composite
def asked(draw):
    """Lengths, ranks, homes and settings that can be planned."""
    nodes, node = draw(st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4), (3, 4), (2, 3)]))
    ranks = nodes * node
    lengths = draw(st.lists(st.integers(0, 60) | st.integers(0, 900), max_size=24))
    cap = draw(st.none() | st.integers(40, 300))
    degrees = draw(st.sampled_from([(1, 2, 4), (1, 2), (2, 1, 8), (1, 3), (1, 2, 3), (1,)]))
    cut = SequenceGroups(
        degrees, cap, multiple_of=draw(st.sampled_from([1, 2])), pad_to=draw(st.sampled_from([1, 2, 8])),
        order=draw(st.sampled_from(["contiguous", "zigzag"])),
    )  # fmt: skip
    if cap is not None:
        most = cap * max(degree for degree in degrees if degree <= ranks)
        lengths = [length for length in lengths if max(cut.padded(np.array([length]), d)[0] for d in degrees) <= most]
    homes = draw(st.none() | st.lists(st.integers(0, ranks - 1), min_size=len(lengths), max_size=len(lengths)))
    placement = draw(st.sampled_from(["relocate", "rearrange", "any"]))
    return lengths, ranks, node, homes, cut, placement


def planned(case, **more):
    lengths, ranks, node, homes, cut, placement = case
    more.setdefault("cost", CostModel(3, 1))
    return balance(lengths, ranks, node, homes, cut=cut, placement=placement, time_budget=0.002, **more)


@settings(max_examples=examples(20), deadline=None)
@given(asked())
def test_pieces_tile_every_sample(case):
    plan = planned(case)
    seen = [np.zeros(length, dtype=int) for length in plan.lengths]
    for rank in range(plan.num_ranks):
        for slot in range(plan.num_slots):
            here = plan.pieces_on_rank(rank, slot)
            at = 0
            for sample, start, stop, position in zip(*(part.tolist() for part in here), strict=True):
                assert position == at
                assert plan.slot_of_sample[sample] == slot
                at += stop - start
                seen[sample][start:stop] += 1
            assert (rank in plan.empty_ranks(slot)) == (len(plan.samples_in_slot(rank, slot)) == 0)
            ends = plan.cu_seqlens(rank, slot)
            assert ends[-1] == at
            assert len(ends) == len(plan.samples_in_slot(rank, slot)) + 1
    assert all((counts == 1).all() for counts in seen)


@settings(max_examples=examples(15), deadline=None)
@given(asked())
def test_exchange_moves_each_element_to_its_piece_and_back(case):
    plan = planned(case)
    elements = [[(sample, i) for i in range(length)] for sample, length in enumerate(plan.lengths.tolist())]
    stream, back = plan.stream, plan.stream.inverse()
    home = [[e for s in plan.home.samples_on_rank(r) for e in elements[s]] for r in range(plan.num_ranks)]
    there = moved(stream, home)
    for rank in range(plan.num_ranks):
        pieces = plan.pieces_on_rank(rank)
        wanted = [
            elements[sample][start:stop]
            for sample, start, stop in zip(*(part.tolist() for part in pieces[:3]), strict=True)
        ]
        assert there[rank] == [e for piece in wanted for e in piece]
        assert plan.exchange(rank) == stream.exchange(rank)
    assert moved(back, there) == home


@settings(max_examples=examples(15), deadline=None)
@given(case=asked())
def test_certificate_recomputed_from_scratch_and_saved(case, tmp_path_factory):
    plan = planned(case)
    _, ranks, _, _, cut, _ = case
    table, given_ = plan.group_table, plan.cost.degree_times(plan.lengths, cut.degrees, ranks)
    sizes = np.stack([cut.padded(plan.lengths, degree) for degree in cut.degrees])
    busy = plan.slot_loads
    result = SequenceGroupsResult(
        slot_of_item=plan.slot_of_sample, group_of_item=table.group_of_sample, degree_of_group=table.degree,
        slot_of_group=table.slot, first_rank_of_group=table.first_rank,
        group_times=np.array([group.load for k in range(plan.num_slots) for group in plan.groups(k)], dtype=np.int64),
        slot_times=np.sort(busy.max(axis=0))[::-1].copy(), makespan=plan.makespan, lower_bound=plan.lower_bound,
        bound_name=plan.bound_name, method="peeling", runtime_s=0.0,
        status=plan.status,
    )  # fmt: skip
    for array in (result.group_times, result.slot_times):
        array.flags.writeable = False
    if (np.diff(busy.max(axis=0)) <= 0).all():  # near home a slot may overtake the next, within eps
        rules = {"degrees": cut.degrees, "num_ranks": ranks, "cap": cut.tokens_per_rank}
        rules |= {"slots_multiple_of": cut.multiple_of, "overhead": given_.overhead}
        solvers.check_sequence_groups(given_.times, sizes, result, **rules)
    assert plan.makespan == busy.max(axis=0).sum()
    assert plan.loads.tolist() == busy.sum(axis=1).tolist()
    assert plan.lower_bound <= plan.makespan
    total, share = plan.perfect()
    assert total <= plan.lower_bound * share
    assert plan.inter_node_bound <= plan.inter_node_volume
    sets = list(plan.cut.rank_sets(plan.topology))
    assert all(group.ranks in sets for k in range(plan.num_slots) for group in plan.groups(k) if group.degree > 1)
    assert plan == planned(case)
    path = tmp_path_factory.mktemp("plan") / "plan.parquet"
    plan.save(path)
    assert balancer.load_plan(path) == plan


@pytest.mark.parametrize(
    ("length", "ranks", "node", "home", "fields", "crossing"),
    [
        (50, 2, 1, 0, {"pad_to": 7}, 22),  # the other rank has the padding
        (214, 2, 1, 1, {"order": "zigzag"}, 106),
        (2**39 + 1, 2, 1, 0, {}, 2**38),
    ],
)
def test_bound_on_crossing_knows_who_has_the_padding(length, ranks, node, home, fields, crossing):
    plan = balance([length], ranks, node, [home], cut=SequenceGroups((ranks,), **fields), cost="linear:loss=0")
    assert plan.inter_node_volume == crossing
    assert crossing - 1 <= plan.inter_node_bound <= crossing


def test_bound_on_crossing_of_groups_that_reach_over_the_end_of_a_node():
    """The last rank has the padding, though neither group has more ranks than a node."""
    cut = SequenceGroups((4,), count=1, pad_to=2)
    plan = balance([6, 7], 10, 5, [4, 2], cut=cut, cost="linear:loss=0")
    assert plan.group_table.first_rank.tolist() == [0, 4]
    assert plan.inter_node_bound <= plan.inter_node_volume == 4


@settings(max_examples=examples(10), deadline=None)
@given(asked())
def test_near_home_costs_no_more_than_eps(case):
    best, near = planned((*case[:5], "any")), planned((*case[:5], "relocate"), eps=0.01)
    assert near.makespan <= best.makespan * Fraction(101, 100)
    assert planned((*case[:5], "rearrange")).makespan == best.makespan
    assert near.lower_bound == best.lower_bound


def test_long_samples_get_more_ranks():
    plan = balance([8000, 900, 100, 500, 500], 4, cut=SequenceGroups(FEW, count=1))
    (wide, *others) = plan.groups(0)
    assert (wide.degree, wide.samples.tolist()) == (4, [0, 1, 2, 3, 4])
    assert not others
    assert plan.imbalance_ratio == pytest.approx(1 / 0.95**2, rel=2e-3)  # two doublings of 5 %
    assert plan.samples_on_rank(3).tolist() == [0, 1, 2, 3, 4]
    assert plan.pieces_on_rank(1, 0).start.tolist()[:2] == [2000, 225]


def test_zigzag_gives_a_rank_the_first_and_the_last():
    plan = balance([80], 4, cut=SequenceGroups((4,), order="zigzag", pad_to=2))
    assert [plan.pieces_on_rank(r).start.tolist() for r in range(4)] == [[0, 70], [10, 60], [20, 50], [30, 40]]
    assert plan.cu_seqlens(0, 0).tolist() == [0, 20]


def test_padding_lies_behind_the_sample():
    plan = balance([10, 3], 2, cut=SequenceGroups((2,), pad_to=4))
    assert plan.pieces_on_rank(0).stop.tolist() == [8, 4]
    assert plan.pieces_on_rank(1).stop.tolist() == [16, 8]
    assert plan.stream.lengths.tolist() == [8, 2, 3]  # of what is not padding


def test_samples_stay_together():
    keys = [0, 1, 0, 1, 2, 2]
    plan = balance([90, 10, 20, 70, 40, 50], 4, cut=SequenceGroups(FEW, 60), keep_together=keys)
    group = plan.group_table.group_of_sample
    assert all(len({int(group[i]) for i in range(6) if keys[i] == key}) == 1 for key in range(3))


def test_a_slot_costs_what_the_cost_says():
    cost = CostModel(sharing=Sharing(overhead=100))
    plan = balance([40, 40, 40, 40], 2, cost=cost, cut=SequenceGroups((1,), 40))
    assert (plan.num_slots, plan.makespan, plan.loads.tolist()) == (2, 280, [280, 280])
    assert plan.imbalance_ratio == 1.0


def test_what_is_no_cut_is_refused():
    with pytest.raises(TypeError, match=r"cut must be one of balancer's cuts, .* got \(1, 2\)"):
        balance([1], 1, cut=(1, 2))
    with pytest.raises(ValueError, match="method 'lpt' makes no sequence groups"):
        balance([1], 1, method="lpt", cut=SequenceGroups())
    with pytest.raises(ValueError, match=r"num_ranks \* cut.count must be <= 67108864 micro-batches"):
        balance([1], 1, cut=SequenceGroups(multiple_of=10**9))
    with pytest.raises(ValueError, match="cost 'padded'"):
        balance([1], 1, cost="padded", cut=SequenceGroups())
    for name, value in {"caps": {"images": ([1], 4)}, "max_tokens_per_rank": 50}.items():
        with pytest.raises(ValueError, match=name):
            balance([1], 1, cut=SequenceGroups(), **{name: value})


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"degrees": ()}, r"cut.degrees must be a list of whole numbers >= 1, got \(\)"),
        ({"degrees": None}, "cut.degrees must be a list of whole numbers >= 1, got None"),
        ({"degrees": (2, 2)}, "cut.degrees must be distinct"),
        ({"count": 2**31}, "cut.count must be <= "),
        ({"count": 3, "multiple_of": 2}, "cut.count = 3 contradicts cut.multiple_of = 2"),
        ({"exchange": "tree"}, "cut.exchange must be one of ulysses, ring, got 'tree'"),
        ({"order": "zag"}, "order must be one of"),
    ],
)
def test_settings_that_cannot_be(fields, rule):
    with pytest.raises((ValueError, TypeError), match=rule):
        SequenceGroups(**fields)


def test_a_sample_that_no_group_holds_is_named():
    with pytest.raises(solvers.InfeasibleError, match=r"sample 1: its size 500 is over 400, cut.tokens_per_rank = 100"):
        balance([10, 500], 4, cut=SequenceGroups(FEW, 100))
    with pytest.raises(
        solvers.InfeasibleError, match=r"sample 1 \(with all that stay together with it\): its size 452"
    ):
        balance([10, 150, 300], 4, cut=SequenceGroups(FEW, 100), keep_together=[0, 1, 1])
    with pytest.raises(ValueError, match=r"degrees\[3\] must divide the model's 28 attention heads"):
        balance([10], 8, cost="flops:qwen2-7b", cut=SequenceGroups())
    balance([10], 8, cost="flops:qwen2-7b", cut=SequenceGroups(exchange="ring"))


@pytest.mark.parametrize("lengths", [[], [0, 0, 0], [5]])
@pytest.mark.parametrize("ranks", [1, 6])
def test_small_and_empty(lengths, ranks):
    plan = balance(lengths, ranks, 3 if ranks > 1 else None, cut=SequenceGroups((1, 2, 8), 8))
    assert plan.makespan == plan.lower_bound
    assert plan.num_slots == 1


def test_nodes_must_be_alike():
    with pytest.raises(ValueError, match="nodes of equal size"):
        balance([1, 2], 5, topology=Topology([2, 3]), cut=SequenceGroups())
    assert balance([1, 2], 5, topology=Topology([3, 2]), cut=SequenceGroups()).num_ranks == 5


def changed(column, by):
    def change(rows):
        rows[0][column] += by

    return change


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (changed("stop", 1), "a piece has sample, item, start, stop"),
        (changed("rank", 1), "cannot be|a piece has|in 2 groups"),
        (lambda rows: rows.pop(), "pieces|cannot be|a piece has|does not hold"),
        (lambda rows: [row.update(slot=row["slot"] + 1) for row in rows], "2 slots, which is not what was asked for"),
        (lambda rows: [row.update(group=3 - row["group"]) for row in rows], "numbered by slot and rank"),
    ],
)
def test_files_changed_by_hand_are_refused(tmp_path, rows, told):
    lengths = [400, 30, 20, 30, 40, 50]
    plan = balance(lengths, 4, cut=SequenceGroups((1, 2, 3), count=1), placement="any")
    plan.save(tmp_path / "plan.parquet")
    tamper(tmp_path / "plan.parquet", rows=rows)
    with pytest.raises(PlanError, match=told):
        balancer.load_plan(tmp_path / "plan.parquet")


def test_a_file_of_a_slot_far_away_is_refused(tmp_path):
    balance([400, 30], 4, cut=SequenceGroups((1, 2))).save(tmp_path / "plan.parquet")
    tamper(tmp_path / "plan.parquet", rows=changed("slot", 10**9))
    with pytest.raises(PlanError, match="more slots than are planned"):
        balancer.load_plan(tmp_path / "plan.parquet")


PHASES = [Phase("vision", "image", bytes_out=2), Phase("llm", "tokens", bytes_in=3)]


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), max_size=16), st.sampled_from(["slot", "step"]))
def test_encoders_feed_pieces(samples, encoders):
    image, text = np.array(samples, dtype=np.int64).reshape(-1, 2).T
    cut = SequenceGroups(FEW, 100, order="zigzag", encoders=encoders)
    plan = orchestrate(
        {"image": image, "tokens": image + text}, PHASES, Topology.uniform(4, 2), cut=cut, time_budget=0.002
    )
    assert plan["vision"].group_table is None
    assert plan.strategy == "sequence_groups"
    vision, own = plan.streams["vision:out"], plan.streams["llm:own"]
    assert (vision.bytes_of_item.sum(), own.bytes_of_item.sum()) == (2 * image.sum(), 3 * text.sum())
    tokens = [[(s, i) for i in range(n)] for s, n in enumerate((image + text).tolist())]
    owner = plan.phases["vision"].items.sample_of_item
    put_out = [
        [t for i in plan["vision"].samples_on_rank(r) for t in tokens[owner[i]][: image[owner[i]]]]
        for r in range(plan.num_ranks)
    ]
    brought = [[t for s in plan.home.samples_on_rank(r) for t in tokens[s][image[s] :]] for r in range(plan.num_ranks)]
    stream = plan.inputs_of("llm")
    there = moved(stream, [a + b for a, b in zip(put_out, brought, strict=True)])
    for rank in range(plan.num_ranks):
        sample, start, stop, _ = plan["llm"].pieces_on_rank(rank)
        pieces = zip(sample.tolist(), start.tolist(), stop.tolist(), strict=True)
        assert there[rank] == [t for s, a, b in pieces for t in tokens[s][a:b]]
    alone = sorted(t for rank in moved(vision, put_out) for t in rank)
    assert alone == sorted(t for s in range(len(image)) for t in tokens[s][: image[s]])


def test_parts_must_make_up_the_sample():
    batch = {"image": [10, 20], "tokens": [15, 12]}
    with pytest.raises(ValueError, match="sample 1 has length 12, its parts 20"):
        orchestrate(batch, PHASES, 2, cut=SequenceGroups((1, 2)))


def test_way_back_is_the_streams():
    plan = balance([100, 1], 2, cut=SequenceGroups((1, 2)))
    with pytest.raises(ValueError, match=r"plan.stream.inverse\(\)"):
        plan.inverse()
    with pytest.raises(ValueError, match="no sequence groups"):
        balance([1], 1).groups(0)
    assert replace(plan, runtime_s=9.0) == plan


@pytest.mark.parametrize("together", [None, [0, 1, 2, 3, 4, 5, 4, 5]])
def test_samples_of_wide_groups_start_from_home(together):
    """No exchange of whole groups finds this, as those that are planned have samples of both nodes."""
    lengths, homes = [60, 60, 40, 40, 50, 50, 50, 50], [0, 4, 5, 1, 2, 6, 3, 7]
    asked = {"cut": SequenceGroups((2,), 50, count=1), "cost": "linear:loss=0", "keep_together": together}
    near, exchanged = (
        balance(lengths, 8, 4, homes, placement=placement, **asked) for placement in ("relocate", "rearrange")
    )
    assert near.makespan == exchanged.makespan == 50
    assert exchanged.inter_node_volume > 0
    assert (near.inter_node_volume, near.fell_back) == (0, "")


def test_samples_start_from_home_beside_wider_groups():
    """Two ranks share the long sample; what lies on them goes to single ranks of their node."""
    lengths, homes = [200, 50, 50, 60, 40, 30, 70, 100, 100], [0, 2, 3, 0, 1, 4, 4, 5, 6]
    plan = balance(lengths, 8, 4, homes, cut=SequenceGroups((1, 2), count=1), cost="linear:loss=0")
    assert plan.group_table.degree_of_sample.tolist() == [2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert (plan.makespan, plan.inter_node_volume) == (100, 0)


def test_samples_that_start_from_home_keep_the_cap_on_tokens():
    """The long sample takes so long that time alone would let one rank have all the others."""
    plan = balance([100] + [10] * 30, 4, 2, [0] + [2] * 30, cut=SequenceGroups((1,), 100), cost="quadratic:a=0,b=1")
    held = np.bincount(plan.group_table.group_of_sample, weights=plan.lengths)
    assert held.tolist() == [100] * 4
    assert plan.inter_node_volume == 100
