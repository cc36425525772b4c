"""Items inside samples: the functions against definitions in plain Python, and against a log's own counts."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer.errors import InputError
from balancer.io.log import open_log, read_columns
from balancer.problem.items import ITEM_FUNCTIONS, parse_items, qwen2vl_patches, qwen2vl_tokens
from balancer.problem.ragged import Ragged

PAGES = Path(__file__).parents[2] / "data" / "docs_msdev_interleaved.parquet"

LARGEST, SMALLEST = 12_845_056, 3_136
SIDES = st.integers(1, 2**26 - 1) | st.integers(1, 9000) | st.integers(1, 80)


def sides_in_floats(width, height):
    """Scale as the image processor does: Python's floats, one image at a time."""
    across, down = (round(side / 28) * 28 for side in (width, height))
    if across * down > LARGEST:
        scale = math.sqrt(height * width / LARGEST)
        across, down = (max(28, math.floor(side / scale / 28) * 28) for side in (width, height))
    elif across * down < SMALLEST:
        scale = math.sqrt(SMALLEST / (height * width))
        across, down = (math.ceil(side * scale / 28) * 28 for side in (width, height))
    return across, down


def patches(sides):
    return (sides[0] // 14) * (sides[1] // 14)


@settings(max_examples=examples(60))
@example([(14, 14), (42, 42), (70, 98), (126, 3584)])  # halves of 28
@example([(19, 19), (38, 76), (3601, 3601), (7680, 4320), (5000, 20000)])  # roots that are whole, or nearly
@example([(3590, 3578), (20, 100), (3584, 3584), (28, 112)])  # rounded to exactly the largest and the smallest area
@example([(1, 2**26 - 1), (2**26 - 1, 1), (1, 1), (2**26 - 1, 2**26 - 1)])
@given(st.lists(st.tuples(SIDES, SIDES), max_size=20))
def test_patches_as_the_image_processor_has_them(sizes):
    widths, heights = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
    found = qwen2vl_patches(widths, heights)
    assert found.tolist() == [patches(sides_in_floats(*size)) for size in sizes]
    assert (qwen2vl_tokens(widths, heights) * 4).tolist() == found.tolist()


def test_every_small_image():
    widths, heights = (side.ravel() for side in np.meshgrid(np.arange(1, 120), np.arange(1, 120)))
    expected = [patches(sides_in_floats(*size)) for size in zip(widths.tolist(), heights.tolist(), strict=True)]
    assert qwen2vl_patches(widths, heights).tolist() == expected


def test_halves_of_a_unit_go_to_the_even_one():
    units = np.arange(1, 100)
    tall = qwen2vl_tokens(28 * units + 14, np.full(99, 28 * 100)) // 100
    assert tall.tolist() == [unit + unit % 2 for unit in units.tolist()]


def test_squares_at_which_rounding_errors_decide():
    sides = np.arange(3700, 20_000)
    tokens = qwen2vl_tokens(sides, sides)
    assert set(tokens.tolist()) == {127 * 127, 128 * 128}
    assert 0.1 < np.mean(tokens == 127 * 127) < 0.15  # what the docstring tells


@pytest.mark.parametrize(
    ("function", "total"), [("qwen2vl_patches", "image_patches"), ("qwen2vl_tokens", "image_tokens")]
)
def test_items_of_each_page_sum_to_its_own_count(function, total):
    items = parse_items(f"{function}(image_widths,image_heights)")
    columns = read_columns(open_log(PAGES), {"total": (total,)}, lists=items.columns)
    assert items.evaluate(columns.lists).sums().tolist() == columns.sums["total"].tolist()
    assert len(columns) == 2898


@pytest.mark.parametrize("text", ["qwen2vl_patches(w,h)", "qwen2vl_tokens(a b,c.d)"])
def test_expressions_come_back(text):
    expression = parse_items(text)
    assert str(expression) == text
    assert parse_items(text.replace(",", " , ").replace("(", " ( ")) == expression
    assert expression.name in ITEM_FUNCTIONS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image_widths", ["'image_widths'", "FUNCTION(COLUMN", "qwen2vl_patches(WIDTHS, HEIGHTS)"]),
        ("patches(a,b)", ["'patches'", "qwen2vl_patches(WIDTHS, HEIGHTS)", "qwen2vl_tokens"]),
        ("qwen2vl_patches(a)", ["must name 2", "got 1", "qwen2vl_patches(WIDTHS, HEIGHTS)"]),
        ("qwen2vl_patches(a,b,c)", ["must name 2", "got 3"]),
    ],
)
def test_expressions_that_are_none(text, words):
    with pytest.raises(InputError) as caught:
        parse_items(text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("side", [0, -5, 2**26, 2**63 - 1])
@pytest.mark.parametrize("column", ["image_widths", "image_heights"])
@pytest.mark.parametrize("item", [0, 1])
def test_sides_that_are_none_are_named(column, side, item):
    good = Ragged.of([[5], [], [8, 9], [1]])
    bad = Ragged.of([[5], [], [side, 9] if item == 0 else [8, side], [side]])
    lists = {"image_widths": good, "image_heights": good, column: bad}
    with pytest.raises(InputError) as caught:
        parse_items("qwen2vl_patches(image_widths,image_heights)").evaluate(lists, first_row=100)
    rule = "must be a side within 1..67108863 px"
    assert str(caught.value) == f"column {column!r}, row 102, item {item}: {rule}, got {side}"


def test_bare_functions_name_their_argument():
    with pytest.raises(ValueError, match=r"heights\[1\] must be a side within 1..67108863 px, got 0"):
        qwen2vl_tokens(np.array([1, 2]), np.array([1, 0]))


def test_unequal_lists_name_the_row():
    lists = {"w": Ragged.of([[5], [6, 7], [8]]), "h": Ragged.of([[5], [6], [8, 9]])}
    with pytest.raises(InputError, match=r"row 11: 'w' lists 2 items and 'h' 1; qwen2vl_tokens needs both"):
        parse_items("qwen2vl_tokens(w,h)").evaluate(lists, first_row=10)


def test_unequal_rows_are_the_callers_mistake():
    with pytest.raises(ValueError, match="2 rows"):
        parse_items("qwen2vl_tokens(w,h)").evaluate({"w": Ragged.of([[5], [6]]), "h": Ragged.of([[5]])})
