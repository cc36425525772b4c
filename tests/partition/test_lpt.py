"""LPT against its definition, its guarantee, and its two kernels against each other."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers._heap import group_bits
from solvers.partitioning import lpt as lpt_function
from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.lpt import _lpt_rounds, _lpt_wide, assign_lpt

KERNELS = {
    "rounds": lambda costs, m, out: _lpt_rounds(costs, m, group_bits(m), out),
    "wide": _lpt_wide,
}

problems = st.tuples(
    st.one_of(
        st.lists(st.integers(0, 5), max_size=60),
        st.lists(st.integers(0, 10**6), max_size=60),
        st.lists(st.integers(1, 10).map(lambda k: 2**k), max_size=60),
    ),
    st.integers(1, 12) | st.sampled_from([63, 64, 65, 200]),
)


@given(problem=problems)
def test_plan_is_the_oracles(problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    assert solvers.lpt(costs, num_groups).group_of_item.tolist() == oracles.lpt(costs, num_groups)


@given(problem=problems)
def test_plan_with_quotas_is_the_oracles(problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    result = solvers.lpt(costs, num_groups, equal_counts=True)
    assert result.group_of_item.tolist() == oracles.lpt_with_quotas(costs, num_groups)


@given(costs=st.lists(st.integers(0, 30), min_size=1, max_size=8), num_groups=st.integers(1, 4))
def test_grahams_guarantee(costs: list[int], num_groups: int) -> None:
    optimum = oracles.optimal_makespan(costs, num_groups)
    assert 3 * num_groups * solvers.lpt(costs, num_groups).makespan <= (4 * num_groups - 1) * optimum


def test_grahams_worst_case() -> None:
    """2m + 1 items on which LPT is exactly 4/3 - 1/(3m) times the optimum."""
    m = 4
    costs = [*range(2 * m - 1, m, -1), *range(2 * m - 1, m, -1), m, m, m]
    assert solvers.lpt(costs, m).makespan == 4 * m - 1
    assert solvers.auto(costs, m).makespan == 3 * m


@pytest.mark.parametrize(
    ("count", "num_groups"), [(1, 1), (1, 300), (50, 1), (600, 5), (63, 64), (700, 64), (1500, 65), (900, 512)]
)
@pytest.mark.parametrize("kind", ["lognormal", "few values", "long tail", "all equal", "powers of two"])
def test_kernels_agree(kind: str, count: int, num_groups: int) -> None:
    rng = np.random.default_rng(count)
    costs = {
        "lognormal": lambda: rng.lognormal(6, 1, count).astype(np.int64) + 1,
        "few values": lambda: rng.integers(1, 4, count),
        "long tail": lambda: (rng.pareto(0.5, count).clip(0, 1e9) + 1).astype(np.int64),
        "all equal": lambda: np.full(count, 5),
        "powers of two": lambda: 2 ** rng.integers(0, 40, count),
    }[kind]()
    costs = np.sort(costs)[::-1].copy()
    costs.flags.writeable = False
    found = {}
    for name, kernel in KERNELS.items():
        found[name] = np.full(count, -1, dtype=np.int32)
        kernel(costs, num_groups, found[name])
    expected = oracles.lpt(costs.tolist(), num_groups)
    assert {name: groups.tolist() for name, groups in found.items()} == dict.fromkeys(KERNELS, expected)


def used_kernel(monkeypatch: pytest.MonkeyPatch, costs: list[int], num_groups: int) -> str:
    import sys

    module = sys.modules[lpt_function.__module__]
    used = []
    for name in ("_lpt_rounds", "_lpt_wide"):

        def spy(*arguments: object, name: str = name, kernel: object = getattr(module, name)) -> None:
            used.append(name)
            kernel(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(module, name, spy)
    problem = PartitionProblem.prepare(costs, num_groups, False)
    assert assign_lpt(problem).tolist() == [oracles.lpt(costs, num_groups)[i] for i in problem.order]
    monkeypatch.undo()
    assert len(used) == 1
    return used[0]


def test_which_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wide heap from the very load on that does not fit a packed key; see that the load just below does."""
    assert used_kernel(monkeypatch, [5, 4, 3], 2) == "_lpt_rounds"
    for num_groups, bits in ((64, 6), (200, 8)):
        capacity = 2 ** (63 - bits) - 1  # the largest load that fits beside a group number
        fits = next(
            c for c in range(capacity * num_groups // (num_groups + 1) + 2, 0, -1) if c + c // num_groups <= capacity
        )
        assert used_kernel(monkeypatch, [fits], num_groups) == "_lpt_rounds"
        assert used_kernel(monkeypatch, [fits + 1], num_groups) == "_lpt_wide"
        assert used_kernel(monkeypatch, [2**62, 9, 8, 8, 1], num_groups) == "_lpt_wide"


@given(
    st.lists(st.integers(2**54, 2**55) | st.integers(0, 9), min_size=65, max_size=120),
    st.integers(0, 2**62 - 1),
)
def test_loads_near_the_end_of_int64(costs: list[int], giant: int) -> None:
    costs = [*costs, giant]
    result = solvers.lpt(costs, 64)
    assert result.group_of_item.tolist() == oracles.lpt(costs, 64)
    assert result.makespan == max(oracles.loads_of(costs, result.group_of_item.tolist(), 64))
