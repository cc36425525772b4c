"""The parts of a pipeline's schedule by themselves: the ramp, its flow in integers, items by targets, exchanges."""

import numpy as np
import pytest
from pipeline_oracles import ends_by_events, fluid_by_scipy, most_held

from solvers.groups import read_only
from solvers.pipeline import PipelineRequest, gpipe, interleaved, one_f_one_b
from solvers.pipeline._cells import Cells, Rules, fill, fit, over_all
from solvers.pipeline._exchange import Lanes, _begin, _exchanged, _learn, _length, _unopposed, exchange
from solvers.pipeline._flight import FlightSets
from solvers.pipeline.ramp import Program, polish, volume, whole_flow
from solvers.pipeline.run import Pipe, all_ends
from solvers.pipeline.solver import (
    PipelineProblem,
    lanes_of,
    loads_of,
    makespans_of,
    schedule_pipeline,
    started,
    targets_of,
)


def problem_of(stages, slots, replicas=2, seed=0, each=8, **rules):
    """Long-tailed work of an encoder in the first third of the stages and a model in the others."""
    rng, n, first = np.random.default_rng(seed), slots * replicas * each, max(1, stages // 3)
    work = np.stack([rng.lognormal(6, 0.9, n) * (rng.random(n) < 0.6), rng.lognormal(6.5, 0.7, n)], axis=1).astype(int)
    unit = np.zeros((2, stages), dtype=np.int64)
    unit[0, :first], unit[1, first:] = 1, 1
    return PipelineProblem.from_request(PipelineRequest(work, unit, 2 * unit, replicas, slots, **rules))


def program_of(problem):
    return Program.of(problem)


ORDERS = [(4, 12, one_f_one_b(12, 4)), (3, 9, gpipe(9, 3)), (6, 9, interleaved(9, 3, 2)), (8, 5, one_f_one_b(5, 8))]


@pytest.mark.parametrize(("stages", "slots", "order"), ORDERS)
def test_a_ramp_is_nearly_the_best(stages, slots, order):
    problem = problem_of(stages, slots, 1, order=order, hop=3)
    program, totals, half = program_of(problem), problem.items.sum(axis=1), problem.merged.num_stages
    ramp, unit = program.ramp(), problem.merged.unit
    assert ramp.share.min() >= 0
    assert ramp.share.sum(axis=0) == pytest.approx(1)
    lists = [order.ops_of(d) for d in range(order.num_devices)]
    loads = np.rint(ramp.share * totals).astype(int).tolist()
    ends = ends_by_events(lists, loads, unit[:, :half].tolist(), unit[:, half:].tolist(), 3)
    best = fluid_by_scipy(totals, unit[:, :half].tolist(), unit[:, half:].tolist(), lists, slots, hop=3)
    assert 0.999 * best <= max(ends.values()) <= 1.005 * best


def test_a_ramp_around_what_lies_in_slots_already():
    problem = problem_of(4, 12)
    program, base = program_of(problem), np.zeros((12, 2))
    base[5] = 0.3, 0.2
    ramp, free = program.ramp(base), program.ramp()
    assert (ramp.share >= base - 1e-12).all()
    assert ramp.share.sum(axis=0) == pytest.approx(1)
    assert 1.02 * free.length < ramp.length < 1.5 * free.length


@pytest.mark.parametrize("order", [one_f_one_b(12, 4), gpipe(12, 4)])
def test_a_ramp_and_its_bound_are_close_with_hops_and_much_in_slots_already(order):
    program = program_of(problem_of(4, 12, order=order))
    pipe, base = program.pipe, np.zeros((12, 2))
    base[5] = 0.3 * program.totals
    hop = int(2**16 * program.totals.sum() / 40)  # as long as the ops of half a slot
    loads, flow = np.tile(0.7 * program.totals / 12, (12, 1)), np.zeros((2, pipe.graph.shape[1]))
    rest = read_only(program.totals - base.sum(axis=0))
    length, proven = volume(pipe._replace(hop=hop), rest, read_only(base), 3_000, loads, flow)
    assert 0.997 * length < proven <= length
    assert loads.sum(axis=0) == pytest.approx(rest)
    without, _ = volume(pipe, rest, read_only(base), 300, loads, flow)
    assert without + 5 * hop < length


@pytest.mark.parametrize(
    ("stages", "slots", "order", "most"),
    [
        (4, 12, one_f_one_b(12, 4), {"cap": 1.1}),
        (4, 12, one_f_one_b(12, 4), {"in_flight_cap": 1.05}),
        (4, 12, one_f_one_b(12, 4), {"cap": 1.4, "in_flight_cap": 1.2}),
        (6, 9, interleaved(9, 3, 2), {"in_flight_cap": 1.02}),
    ],
)
def test_a_ramp_within_caps_is_nearly_the_best_of_these(stages, slots, order, most):
    """Sizes are the model's work, which is then what caps limit; an op of a stage of its own counts on its device."""
    sizes = problem_of(stages, slots, 1).items[1]
    mean = int(sizes.sum()) / slots
    lists = [order.ops_of(d) for d in range(order.num_devices)]
    flight = most_held(lists, np.full((1, slots), mean))
    rules = {name: int(share * (mean if name == "cap" else flight)) for name, share in most.items()}
    rules["cap"] = max(rules.get("cap", 0), int(sizes.max())) if "cap" in rules else int(sizes.sum())
    problem = problem_of(stages, slots, 1, order=order, sizes=sizes, **rules)
    totals, unit, half = problem.items.sum(axis=1), problem.merged.unit, problem.merged.num_stages
    ramp, free = program_of(problem).ramp(), program_of(problem_of(stages, slots, 1, order=order)).ramp()
    held = ramp.share[:, 1] * sizes.sum()
    assert held.max() <= 1.005 * rules["cap"]
    assert most_held(lists, held[None]) <= 1.005 * rules.get("in_flight_cap", np.inf)
    assert np.abs(ramp.share - free.share).max() > 2e-3
    assert (ramp.cut.from_device == free.cut.from_device).all()
    ones = np.zeros((slots, 2))
    limits = [(ones + np.outer(np.arange(slots) == k, [0, 1]), rules["cap"]) for k in range(slots)]
    for ops in lists if "in_flight_cap" in rules else []:
        now = np.zeros((slots, 2))
        for slot, _, back in ops:
            now[slot, 1] += -1 if back else 1
            limits.append((now.copy(), rules["in_flight_cap"]))
    best = fluid_by_scipy(totals, unit[:, :half].tolist(), unit[:, half:].tolist(), lists, slots, limits=limits)
    loads = np.rint(ramp.share * totals).astype(int).tolist()
    ends = ends_by_events(lists, loads, unit[:, :half].tolist(), unit[:, half:].tolist())
    assert max(ends.values()) <= 1.01 * best


def test_sizes_are_taken_for_work_of_the_module_that_is_most_like_them():
    work = problem_of(4, 12).items
    for like in (0, 1):
        sizes = np.minimum(work[like] + work[1 - like] // 9, 3_000) + 1
        limits = program_of(problem_of(4, 12, sizes=sizes, cap=3_001 + int(sizes.sum()) // 24)).limits
        assert limits.weights.shape == (12, 12, 2)
        assert (limits.weights.argmax(axis=2).max(axis=1) == like).all()
        assert limits.weights.sum() == pytest.approx(12 * sizes.sum() / 2 / (3_001 + int(sizes.sum()) // 24))


def test_limits_that_nothing_can_break_are_left_out():
    sizes = problem_of(4, 12).items[1] + 1
    whole, mean = int(sizes.sum()), int(sizes.sum()) // 24
    assert len(program_of(problem_of(4, 12, sizes=sizes, cap=whole)).limits.most) == 0
    # a slot's cap, and windows of four slots: 12 and 9, but where each slot alone keeps within its window's cap
    both = {"sizes": sizes, "cap": int(max(sizes.max(), 2 * mean)), "in_flight_cap": 5 * mean}
    assert len(program_of(problem_of(4, 12, **both)).limits.most) == 12 + 9
    assert len(program_of(problem_of(4, 12, **both | {"cap": 5 * mean})).limits.most) == 9
    by_stage = np.repeat(sizes[:, None], 4, axis=1)
    assert len(program_of(problem_of(4, 12, sizes=by_stage, in_flight_cap=5 * mean)).limits.most) == 9


@pytest.mark.parametrize(("chunks", "by_stage"), [(1, False), (1, True), (2, False), (2, True)])
def test_sets_in_flight_are_where_an_order_holds_most(chunks, by_stage):
    """Whatever slots hold, a device's fullest set is as full as the device ever is."""
    order, rng = interleaved(9, 3, chunks) if chunks > 1 else one_f_one_b(9, 3), np.random.default_rng(5)
    columns = order.num_stages if by_stage else 1
    for device in range(3):
        caps = np.where(np.arange(3) == device, 40, 10**6)
        sets = FlightSets.of(order, caps, columns)
        slots, each = np.repeat(np.arange(9), np.diff(sets.first)), sets.entries
        for _ in range(40):
            held, sums = rng.integers(0, 20, (9, columns)), np.zeros(len(sets.caps), dtype=np.int64)
            np.add.at(sums, each["number"], held[slots, each["column"]] * each["times"])
            now, most = 0, 0
            for slot, stage, back in order.ops_of(device):
                now += (-1 if back else 1) * int(held[slot, stage if by_stage else 0])
                most = max(most, now)
            assert sums[sets.caps == 40].max() == most
    assert len(FlightSets.of(order, None, columns).caps) == 0


def test_no_set_in_flight_is_part_of_another():
    """The first of three devices holds three slots in turn, and the others fewer of these."""
    assert len(FlightSets.of(one_f_one_b(9, 3), np.array([40, 40, 40]), 1).caps) == 7
    assert len(FlightSets.of(one_f_one_b(9, 3), np.array([40, 30, 40]), 1).caps) == 7 + 8


def test_polish_goes_down_to_a_level_and_no_further():
    problem = problem_of(4, 12)
    program = program_of(problem)
    length = program.ramp().length
    loads = np.tile(program.totals / 12, (12, 1))
    given = program.pipe, program.totals, read_only(np.zeros((12, 2))), program.limits
    even = polish(*given, 1, 0.0, loads.copy())
    met = polish(*given, 2_000, 1.02 * length, loads)
    assert 1.015 * length < met <= 1.02 * length < even
    assert loads.sum(axis=0) == pytest.approx(program.totals)
    assert loads.min() >= 0


@pytest.mark.parametrize("order", [each[-1] for each in ORDERS])
def test_a_flow_in_integers_is_a_flow(order):
    """An average of paths that are walked at random, from any last op back to a first one."""
    rng, graph = np.random.default_rng(1), order.graph
    flow = np.zeros((2, graph.shape[1]))
    for _ in range(40):
        op = int(rng.integers(graph.shape[1]))
        while op >= 0:
            side = graph[2, op] >= 0 and (graph[1, op] < 0 or rng.random() < 0.5)
            flow[int(side), op] += 1 / 40
            op = graph[2, op] if side else graph[1, op]
    along, across = (np.empty(graph.shape[1], dtype=np.int64) for _ in range(2))
    whole_flow(graph, read_only(flow), 1 << 20, along, across)
    assert min(along.min(), across.min()) >= 0
    assert along[graph[1] < 0].sum() == 1 << 20
    left = along + across
    for row, part in ((graph[1], along), (graph[2], across)):
        np.subtract.at(left, row[row >= 0], part[row >= 0])
        assert (part[(row < 0) & (graph[1] >= 0)] == 0).all()
    assert left.min() >= 0
    assert np.abs(along / 2**20 - flow[0]).max() < 1e-4
    assert np.abs(across / 2**20 - flow[1]).max() < 1e-4


def distance(rules, cells, targets, weights):
    loads = np.zeros_like(targets)
    np.add.at(loads, cells.cell_of, rules.work)
    return (((loads - targets) * weights) ** 2).sum()


def is_booked(rules, cells, num_cells):
    """Whether what is known of cells is what their items sum up to."""
    again = Cells.of(rules, cells.cell_of, num_cells)
    return all((one == other).all() for one, other in zip(cells, again, strict=True))


def test_items_come_closer_to_targets():
    problem = problem_of(4, 12)
    rules, weights = Rules.of(problem), read_only(np.array([1e-4, 2e-4]))
    targets, nowhere = targets_of(problem, program_of(problem), program_of(problem).ramp())
    filled = Cells.of(rules, nowhere, 24)
    order = np.argsort(-problem.items.sum(axis=0), kind="stable")
    fill(read_only(order), read_only(targets), weights, rules, filled)
    dealt = Cells.of(rules, np.arange(len(order)) % 24, 24)
    before = distance(rules, filled, targets, weights)
    assert before < 0.2 * distance(rules, dealt, targets, weights)
    fit(np.array([1]), 20_000, read_only(targets), weights, rules, filled)
    assert distance(rules, filled, targets, weights) < 0.5 * before
    assert is_booked(rules, filled, 24)
    assert filled.counts.min() > 0


@pytest.mark.parametrize("rule", ["cap", "in_flight_cap"])
def test_caps_that_are_broken_are_mended(rule):
    rng = np.random.default_rng(2)
    sizes, most = rng.integers(1, 9, 192), {"cap": 60, "in_flight_cap": 190}[rule]
    problem = problem_of(4, 12, sizes=sizes, **{rule: most})
    rules, weights = Rules.of(problem), read_only(np.array([1e-4, 2e-4]))
    targets = read_only(np.tile(problem.items.mean(axis=1) * 8, (24, 1)))
    cells = Cells.of(rules, rng.integers(0, 12, 192), 24)  # one replica holds all
    before = over_all(rules, cells)
    fit(np.array([1]), 40_000, targets, weights, rules, cells)
    assert before > 0 == over_all(rules, cells)
    assert is_booked(rules, cells, 24)


def placed(sizes, most, start, order, targets=(10.0, 9.0), **rules):
    """Fill two cells that want so much work with items of 4, from where some are; return where all are."""
    problem = PipelineProblem.from_request(
        PipelineRequest([[4]] * len(sizes), [[1]], [[2]], 1, 2, sizes=sizes, cap=most, **rules)
    )
    rules, wanted = Rules.of(problem), read_only(np.array(targets)[:, None])
    cells = Cells.of(rules, np.array(start), 2)
    fill(read_only(np.array(order)), wanted, read_only(np.ones(1)), rules, cells)
    assert is_booked(rules, cells, 2)
    return cells.cell_of.tolist()


def test_items_go_where_most_is_left_and_caps_allow_it():
    assert placed([1, 1, 1], 9, [-1, -1, -1], [0, 1, 2]) == [0, 1, 0]
    assert placed([1, 1, 1], 9, [-1, -1, -1], [0, 1, 2], (30.0, 1.0)) == [0, 0, 1]  # no slot stays empty
    assert placed([1, 1, 1], 9, [-1, -1, -1], [0, 1, 2], (30.0, 1.0), allow_empty=True) == [0, 0, 0]
    assert placed([1, 1, 1], 9, [0, -1, -1], [1, 2], allow_empty=True) == [0, 1, 0]
    assert placed([2, 2, 2], 3, [0, 1, -1], [2], allow_empty=True) == [0, 1, 0]  # over by 1 on either: by targets
    assert placed([3, 1, 2], 3, [0, 1, -1], [2]) == [0, 1, 1]
    assert placed([1, 2, 2], 3, [1, 0, -1], [2]) == [1, 0, 1]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("capped", [False, True])
def test_exchanges_keep_the_rules_and_end_at_the_goal(tied, capped):
    rules = {}
    if capped:
        sizes = problem_of(4, 8, 3, each=5).items[1]
        mean = int(sizes.sum()) / 24
        rules = {"sizes": sizes, "cap": int(max(2 * mean, sizes.max())), "in_flight_cap": int(5.5 * mean)}
    problem = problem_of(4, 8, 3, each=5, tied=tied, **rules)
    program, rule = program_of(problem), Rules.of(problem)
    begun = started(problem, rule, problem.merged.unit.sum(axis=1), *targets_of(problem, program, program.ramp()), 0)
    longest = int(makespans_of(problem, begun.cell_of).max())
    pipe = Pipe(problem.merged.unit, problem.merged.fixed, problem.order.graph, problem.merged.hop)

    def exchanged(goal, work):
        cells = Cells(*(each.copy() for each in begun))
        left = exchange(
            np.array([1]), work, goal, pipe, rule, cells, *lanes_of(problem, loads_of(problem, cells.cell_of))
        )
        assert is_booked(rule, cells, 24)
        assert over_all(rule, cells) == 0
        assert cells.counts.min() > 0
        return left, int(makespans_of(problem, cells.cell_of).max())

    left, met = exchanged(0, 3_000_000)
    assert left <= 0
    assert met < 0.98 * longest
    mets = [exchanged(0, work)[1] for work in range(100_000, 3_000_000, 150_000)]
    assert mets == sorted(mets, reverse=True)  # jumps make the longest lane longer, but not what is returned
    goal = (longest + met) // 2
    left, nearer = exchanged(goal, 3_000_000)
    assert left > 0
    assert met <= nearer <= goal
    assert exchanged(longest, 1_000)[1] == longest


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("order", [one_f_one_b(6, 3), gpipe(6, 3)])
def test_an_exchange_is_made_exactly_if_both_lanes_end_in_time(order, tied):
    """Whatever paths were kept before: what they rule out is too long, and they are as long as they are said to be."""
    replicas, count, rng = 1 if tied else 2, 6, np.random.default_rng(3)
    problem = problem_of(3, 6, 2, each=3, tied=tied, order=order, hop=300)
    rules, unit, graph = Rules.of(problem), problem.merged.unit, problem.order.graph
    pipe = Pipe(unit, problem.merged.fixed, graph, 300)
    cells = Cells.of(rules, rng.permutation(np.arange(36) % 12), 12)
    size, rows = 12 // replicas, np.empty((12, unit.shape[1]), dtype=np.int64)
    durations = np.empty((1, 6, unit.shape[1]), dtype=np.int64) if tied else rows.reshape(2, 6, -1)
    lanes = Lanes(
        np.empty((12, 2), dtype=np.int64), rows, durations, np.empty(replicas, dtype=np.int64),
        np.zeros((replicas, size, count, 2), dtype=np.int64),
        *(np.zeros((replicas, count), dtype=np.int64) for _ in range(2)), np.zeros(replicas, dtype=np.int64),
        np.empty((replicas, graph.shape[1]), dtype=np.int64), np.empty(graph.shape[1], dtype=np.int64),
        np.array([np.flatnonzero(graph[0] // unit.shape[1] == k)[0] for k in range(6)]), np.empty(2, dtype=np.int64),
    )  # fmt: skip
    _begin(pipe, rules.work, cells.cell_of, lanes)
    for lane in range(replicas):
        all_ends(graph, lanes.durations[lane], 300, lanes.ends)
        _learn(lane, 0, pipe, lanes)
        lanes.lengths[lane, 0] = _length(lane, 0, lanes)
        assert lanes.lengths[lane, 0] == lanes.makespans[lane] == lanes.ends.max()
    ruled, made, refused = 0, 0, 0
    for _ in range(300):
        i, j = rng.integers(36, size=2)
        a, b = cells.cell_of[[i, j]].tolist()
        if a == b:
            continue
        limit = int(lanes.makespans.max() * rng.uniform(0.97, 1.05))
        swapped = cells.cell_of.copy()
        swapped[i], swapped[j] = b, a
        ends = makespans_of(problem, swapped)
        one, two = a // size, b // size
        in_time = max(ends[one], ends[two]) < limit
        lanes.more[:] = rules.work[i] - rules.work[j]
        given = limit, lanes.more, lanes.slopes, lanes.lengths, lanes.hints
        for lane, cell, other, sign in ((one, a, b if one == two else -1, 1), (two, b, -1, -1))[: 1 + (one != two)]:
            inside = cell - lane * size, other - lane * size if other >= 0 else -1
            if _unopposed(lane, *inside, sign, *given) < count:
                ruled += 1
                assert not in_time
        done, _ = _exchanged(i, j, a, b, limit, pipe, rules, cells, lanes)
        assert done == in_time
        made, refused = made + done, refused + (not done)
        assert (cells.cell_of == (swapped if done else cells.cell_of)).all()
        assert lanes.makespans.tolist() == makespans_of(problem, cells.cell_of)[:replicas].tolist()
        assert (lanes.loads == loads_of(problem, cells.cell_of)).all()
        assert all(lanes.lengths[lane, p] == _length(lane, p, lanes) for lane in (one, two) for p in range(count))
    assert min(ruled, made, refused) > 20


def test_slots_are_fitted_and_exchanges_shorten():
    problem = problem_of(4, 12)
    program = program_of(problem)
    ramp = program.ramp()
    rules, aims = Rules.of(problem), targets_of(problem, program, ramp)
    cells = started(problem, rules, problem.merged.unit.sum(axis=1), *aims, 1 << 30)
    longest = makespans_of(problem, cells.cell_of).max()
    found = schedule_pipeline(problem.work, [[1, 0, 0, 0], [0, 1, 1, 1]], [[2, 0, 0, 0], [0, 2, 2, 2]], 2, 12)
    assert found.makespan < longest < 1.1 * found.lower_bound
