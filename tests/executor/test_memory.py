"""Memory that is handed out and taken back, and runs of bytes copied into it."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from balancer.executor.memory import POOLED_FROM, Pool, bytes_of, copy_runs  # noqa: E402

CPU = torch.device("cpu")


def test_memory_is_lent_again_only_once_no_tensor_lies_in_it():
    pool, size = Pool(), 3 * POOLED_FROM
    first = pool.take(size, CPU)
    where = first.data_ptr()
    row = first.view(torch.float32)[10:20].view(2, 5)
    del first
    array = row.numpy()
    del row
    assert pool.take(size, CPU).data_ptr() != where  # the array still lies there
    del array
    again = [pool.take(size - POOLED_FROM, CPU) for _ in range(2)]
    assert where in [tensor.data_ptr() for tensor in again]
    assert again[0].data_ptr() != again[1].data_ptr()
    assert len(again[0]) == size - POOLED_FROM


def test_memory_of_another_size_is_given_up():
    pool = Pool()
    pool.take(8 * POOLED_FROM, CPU)
    assert [len(block) for block in pool._free] == [10 * POOLED_FROM]
    held = pool.take(2 * POOLED_FROM, CPU)  # too little to take that
    assert pool._free == []
    del held
    assert len(pool._free) == 1


def test_little_memory_is_not_kept():
    pool = Pool()
    pool.take(POOLED_FROM - 1, CPU)
    assert pool._free == []


@given(st.lists(st.integers(0, 5), max_size=9), st.randoms(use_true_random=False))
def test_runs_go_where_they_are_put(sizes, random):
    """Runs of a source, with gaps between them, come in any order."""
    size = np.asarray(sizes, dtype=np.int64)
    taken = np.cumsum(size + 2) - size
    order = list(range(len(size)))
    random.shuffle(order)
    put = np.empty_like(size)
    put[order] = np.cumsum(size[order]) - size[order]
    source, target = torch.arange(99, dtype=torch.uint8), torch.full((int(size.sum()),), 255, dtype=torch.uint8)
    copy_runs(source, taken, target, put, size)
    assert target.tolist() == [byte for run in order for byte in range(taken[run], taken[run] + size[run])]


def test_runs_beyond_their_memory_are_refused():
    few, runs = torch.zeros(4, dtype=torch.uint8), np.asarray([0, 2])
    for taken, put in (([0, 2], [0, 0]), ([0, 0], [0, 2]), ([0, -1], [0, 0])):
        with pytest.raises(IndexError, match="run 1 of 3 bytes, from"):
            copy_runs(few, np.asarray(taken), few.clone(), np.asarray(put), runs + 1)


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(12).view(3, 4)[:, ::2],
        torch.randn(3, 2, dtype=torch.complex64).conj(),
        torch.ones(5, dtype=torch.bfloat16, requires_grad=True),
        torch.empty(3, 0),
        torch.tensor([True, False]),
    ],
)
def test_bytes_are_those_of_the_values(values):
    again = bytes_of(values).clone().view(values.dtype).view(values.shape)
    assert torch.equal(again, values.detach())
