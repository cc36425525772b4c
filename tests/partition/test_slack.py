"""SLACK against its definition."""

import oracles
from hypothesis import given
from hypothesis import strategies as st

import solvers

costs_lists = st.one_of(
    st.lists(st.integers(0, 5), max_size=60),
    st.lists(st.integers(0, 10**6), max_size=60),
    st.lists(st.integers(1, 10).map(lambda k: 2**k), max_size=200),
    st.lists(st.integers(2**54, 2**56), max_size=80),
)


@given(costs=costs_lists, num_groups=st.integers(1, 12) | st.sampled_from([63, 64, 65]))
def test_plan_is_the_oracles(costs: list[int], num_groups: int) -> None:
    assert solvers.slack(costs, num_groups).group_of_item.tolist() == oracles.slack(costs, num_groups)


def test_blocks_by_spread() -> None:
    """Blocks (9, 5), (5, 4), (4, 3) have spreads 4, 1, 1; one that is short counts as filled up with zeros."""
    assert oracles.slack([9, 5, 5, 4, 4, 3], 2) == solvers.slack([9, 5, 5, 4, 4, 3], 2).group_of_item.tolist()
    assert solvers.slack([10, 9, 8], 2).group_of_item.tolist() == [1, 0, 0]  # 8 goes first
