"""Which rows form which step: against lists cut row by row, whatever the epochs, the order and where a plan begins."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from balancer.offline import order as order_module
from balancer.offline.order import Order
from balancer.problem.shuffle import shuffled

ORDERS = st.builds(
    Order,
    num_rows=st.integers(1, 60),
    samples_per_step=st.integers(1, 9),
    epochs=st.integers(1, 4),
    shuffle=st.none() | st.integers(0, 3),
    drop_last=st.booleans(),
    first_epoch=st.integers(0, 3),
    first_sample=st.integers(0, 60),
)


def cut(order):
    """Return of every step its epoch, the place in it where the step begins, and its rows, one by one."""
    steps = []
    for number in range(order.epochs):
        epoch, begin = order.first_epoch + number, order.first_sample if number == 0 else 0
        rows = list(range(order.num_rows))
        if order.shuffle is not None:
            rows = shuffled(rows, order.num_rows, order.shuffle, epoch).tolist()
        for at in range(begin, order.num_rows, order.samples_per_step):
            of_step = rows[at : at + order.samples_per_step]
            if len(of_step) == order.samples_per_step or not order.drop_last:
                steps.append((epoch, at, of_step))
    return steps


def steps_of(order, first, last):
    """Return number and rows of each step that the order says."""
    size = order.samples_per_step
    return [
        (number + at // size, rows[at : at + size].tolist())
        for number, rows in order.rows(first, last)
        for at in range(0, len(rows), size)
    ]


@given(ORDERS, st.data())
def test_any_steps_have_the_rows_that_cutting_gives(order, data):
    steps = cut(order)
    assert order.num_steps == len(steps)
    first = data.draw(st.integers(0, len(steps)))
    last = data.draw(st.integers(first, len(steps)))
    assert steps_of(order, first, last) == [(i, steps[i][2]) for i in range(first, last)]


@given(ORDERS)
def test_places_and_bounds_are_where_steps_begin(order):
    steps = cut(order)
    assert [order.place(step) for step in range(len(steps))] == [(epoch, at) for epoch, at, _ in steps]
    for number in range(order.epochs):
        mine = [(at, len(rows)) for epoch, at, rows in steps if epoch == order.first_epoch + number]
        bounds = order.bounds(number)
        assert list(pairwise(bounds)) == [(at, at + count) for at, count in mine]
        assert order.first_step(number) == sum(epoch < order.first_epoch + number for epoch, _, _ in steps)
        assert order.number(order.first_epoch + number) == number


def test_few_steps_come_at_a_time(monkeypatch):
    monkeypatch.setattr(order_module, "ROWS_AT_ONCE", 10)
    order = Order(num_rows=33, samples_per_step=4, shuffle=5)
    assert [len(rows) for _, rows in order.rows(0, order.num_steps)] == [8, 8, 8, 8, 1]
    assert steps_of(order, 0, order.num_steps) == [(i, rows) for i, (_, _, rows) in enumerate(cut(order))]
