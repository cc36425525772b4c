"""Ragged lists and blocks of rows against plain lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.problem.ragged import Ragged

INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
LISTS = st.lists(st.lists(st.integers(-50, 50), max_size=5), max_size=12)
LARGE = st.lists(st.lists(INT64 | st.integers(2**31, 2**33), max_size=4), max_size=8)


@given(LARGE)
def test_lists_come_back(rows):
    ragged = Ragged.of(rows)
    assert ragged.to_lists() == rows
    assert len(ragged) == len(rows)
    assert ragged.counts.tolist() == [len(row) for row in rows]
    assert [ragged.row(i).tolist() for i in range(len(rows))] == rows
    assert ragged.row_of_value.tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert ragged.values.dtype == ragged.offsets.dtype == np.int64
    assert not ragged.values.flags.writeable
    assert not ragged.offsets.flags.writeable
    assert Ragged.checked(ragged.values, ragged.offsets) == ragged


@given(LISTS, st.integers(-15, 15) | st.none(), st.integers(-15, 15) | st.none())
def test_slices_as_of_lists(rows, start, stop):
    ragged = Ragged.of(rows)
    found = ragged[start:stop]
    assert found.to_lists() == rows[start:stop]
    assert found == Ragged.of(rows[start:stop])
    assert found.sums().tolist() == [sum(row) for row in rows[start:stop]]
    if len(found.values):
        assert np.shares_memory(found.values, ragged.values)


@given(st.lists(LISTS, max_size=4))
def test_concatenation_as_of_lists(parts):
    joined = Ragged.concatenate([Ragged.of(rows) for rows in parts])
    assert joined.to_lists() == [row for rows in parts for row in rows]


@given(LARGE)
def test_sums_are_exact_or_refused(rows):
    ragged = Ragged.of(rows)
    sums = [sum(row) for row in rows]
    outside = [i for i, total in enumerate(sums) if not -(2**63) <= total < 2**63]
    if not outside:
        assert ragged.sums().tolist() == sums
        return
    with pytest.raises(ValueError, match=rf"the sum of row {outside[0]} must fit int64, got {sums[outside[0]]}"):
        ragged.sums()


@pytest.mark.parametrize("row", [[2**63 - 1], [-(2**62)] * 2, [-(2**63)]])
def test_sums_at_the_edge_of_int64(row):
    # A neighbour whose partial sums wrap does no harm, and zeros beside a large value take the careful way.
    assert Ragged.of([[5], row, [0] * 9]).sums().tolist() == [5, sum(row), 0]


@pytest.mark.parametrize(("row", "total"), [([2**62] * 2, 2**63), ([-(2**63), -1], -(2**63) - 1)])
def test_sums_past_the_edge_of_int64(row, total):
    with pytest.raises(ValueError, match=rf"row 1 must fit int64, got {total}"):
        Ragged.of([[5], row]).sums()


def test_no_rows_and_empty_rows():
    assert Ragged.of([]) == Ragged.concatenate([]) == Ragged.checked([], [0])
    assert Ragged.of([]).sums().tolist() == []
    assert Ragged.of([[], []]).sums().tolist() == [0, 0]
    assert Ragged.of([[], []]) != Ragged.of([[]])
    assert Ragged.of([[1], []]) != Ragged.of([[], [1]])
    assert Ragged.of([]) != []


def test_arrays_are_the_callers_no_more():
    values, offsets = np.array([1, 2]), np.array([0, 2])
    ragged = Ragged.checked(values, offsets)
    values[0] = offsets[1] = 9
    assert ragged.to_lists() == [[1, 2]]


@pytest.mark.parametrize(
    ("values", "offsets", "words"),
    [
        ([1], [1, 1], ["offsets", "begin with 0", "1"]),
        ([1, 2], [0, 2, 1, 2], ["offsets[2]", ">= offsets[1] = 2", "got 1"]),
        ([1, 2], [0, 1], ["offsets", "end with the number of values, 2", "got 1"]),
        ([1, 2.5], [0, 2], ["values[1]", "whole number", "2.5"]),
    ],
)
def test_bad_arrays_are_named(values, offsets, words):
    with pytest.raises(ValueError, match="must") as caught:
        Ragged.checked(values, offsets)
    for word in words:
        assert word in str(caught.value)


def test_bad_entries_are_named_by_their_row():
    with pytest.raises(ValueError, match=r"rows\[1\]\[2\] must be a finite whole number, got 0.5"):
        Ragged.of([[1], [2, 3, 0.5]])
    with pytest.raises(TypeError, match=r"rows\[2\] must be integers"):
        Ragged.of([[1], [2], ["a"]])


def test_rows_that_are_not_there():
    ragged = Ragged.of([[1], [2]])
    for index in (-1, 2):
        with pytest.raises(ValueError, match=rf"row must be within 0..1, got {index}"):
            ragged.row(index)
    with pytest.raises(TypeError, match="slices"):
        ragged[0]
    with pytest.raises(ValueError, match="consecutive"):
        ragged[::2]
