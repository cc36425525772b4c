"""The parts of a pipeline's schedule by themselves: the ramp, its flow in integers, items by targets, exchanges."""

import numpy as np
import pytest
from pipeline_oracles import ends_by_events, fluid_by_scipy

from solvers.groups import read_only
from solvers.pipeline import PipelineRequest, gpipe, interleaved, one_f_one_b
from solvers.pipeline._cells import Cells, Rules, fill, fit, over_all
from solvers.pipeline.ramp import Program, polish, whole_flow
from solvers.pipeline.solver import PipelineProblem, makespans_of, schedule_pipeline, started, targets_of


def problem_of(stages, slots, replicas=2, seed=0, each=8, **rules):
    """Long-tailed work of an encoder in the first third of the stages and a model in the others."""
    rng, n, first = np.random.default_rng(seed), slots * replicas * each, max(1, stages // 3)
    work = np.stack([rng.lognormal(6, 0.9, n) * (rng.random(n) < 0.6), rng.lognormal(6.5, 0.7, n)], axis=1).astype(int)
    unit = np.zeros((2, stages), dtype=np.int64)
    unit[0, :first], unit[1, first:] = 1, 1
    return PipelineProblem.from_request(PipelineRequest(work, unit, 2 * unit, replicas, slots, **rules))


def program_of(problem):
    return Program.of(problem.items.sum(axis=1), problem.merged, problem.order, problem.num_replicas)


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


def test_polish_goes_down_to_a_level_and_no_further():
    problem = problem_of(4, 12)
    program = program_of(problem)
    length = program.ramp().length
    loads = np.tile(program.totals / 12, (12, 1))
    even = polish(program.pipe, program.totals, read_only(np.zeros((12, 2))), 1, 0.0, loads.copy())
    met = polish(program.pipe, program.totals, read_only(np.zeros((12, 2))), 2_000, 1.02 * length, loads)
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


def test_slots_are_fitted_and_exchanges_shorten():
    problem = problem_of(4, 12)
    program = program_of(problem)
    ramp = program.ramp()
    rules, aims = Rules.of(problem), targets_of(problem, program, ramp)
    cells = started(problem, rules, problem.merged.unit.sum(axis=1), *aims, 1 << 30)
    longest = makespans_of(problem, cells.cell_of).max()
    found = schedule_pipeline(problem.work, [[1, 0, 0, 0], [0, 1, 1, 1]], [[2, 0, 0, 0], [0, 2, 2, 2]], 2, 12)
    assert found.makespan < longest < 1.1 * found.lower_bound
