"""Memory that is handed out and taken back."""

import pytest

torch = pytest.importorskip("torch")

from balancer.executor.memory import POOLED_FROM, Pool  # noqa: E402

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
