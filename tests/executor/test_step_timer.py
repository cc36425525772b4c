"""Micro-batches timed by their model: which calls count, what they held, and what is not in their seconds."""

import itertools

import pytest

pytest.importorskip("torch")

import timer_cases as cases
import torch
from rank_processes import Ranks

from balancer.cost.fit import fit_cost
from balancer.errors import InputError
from balancer.executor import StepTimer, step_timer
from balancer.executor.step_timer import lengths_given
from balancer.io.measurements import read_measurements, read_rank_times

Model, rows_of = cases.Model, cases.rows_of


@pytest.fixture
def clock(monkeypatch):
    clock = cases.Clock()
    monkeypatch.setattr(step_timer.time, "thread_time", lambda: clock.now)
    return clock


def samples(*lengths):
    return [torch.zeros(length, dtype=torch.long) for length in lengths]


def test_a_row_a_micro_batch_from_its_call_to_its_last_gradient(tmp_path, clock):
    model = Model(clock)
    with StepTimer(model, tmp_path / "steps.csv", rank=3) as timer:
        for timer.step, micro_batches in enumerate([[(5, 2), (7,)], [(1,), ()]]):
            for lengths in micro_batches:
                clock.now += 1000  # of loading
                model(samples(*lengths)).backward()
                clock.now += 1000  # of waiting for other ranks, and of the optimizer
    found = rows_of(tmp_path / "steps.3.csv")
    assert [row[:3] for row in found] == [
        ("0", "3", "5 2"), ("0", "3", "7"), ("1", "3", "1"), ("1", "3", ""),
    ]  # fmt: skip
    assert [float(row[3]) for row in found] == [
        sum(n + n * n for n in held) + cases.FIXED for held in ((5, 2), (7,), (1,), ())
    ]
    model(samples(9)).backward()
    assert rows_of(tmp_path / "steps.3.csv") == found, "closed, it listens no more"


def test_calls_that_train_nothing_are_not_timed(tmp_path, clock):
    model = Model(clock)
    with StepTimer(model, tmp_path / "steps.csv"):
        with torch.no_grad():
            model(samples(3))
        model.eval()
        model(samples(4)).backward()
        model.train()
        model(samples(5))  # and no backward pass
    assert rows_of(tmp_path / "steps.0.csv") == []


def test_calls_before_one_backward_pass_are_one_micro_batch(tmp_path, clock):
    model = Model(clock)
    with StepTimer(model, tmp_path / "steps.csv"):
        (model(samples(3)) + model(samples(4, 2))).backward()
        model(samples(1)).backward()
    assert [row[2] for row in rows_of(tmp_path / "steps.0.csv")] == ["3 4 2", "1"]


def test_what_it_writes_is_what_fit_and_report_read(tmp_path, clock):
    model = Model(clock)
    random = torch.Generator().manual_seed(0)
    with StepTimer(model, tmp_path / "steps.csv", 1) as timer:
        for timer.step in range(20):
            count = int(torch.randint(1, 6, (1,), generator=random))
            model(samples(*torch.randint(1, 90, (count,), generator=random).tolist())).backward()
    lengths, seconds, degrees = read_measurements(tmp_path / "steps.1.csv")
    assert degrees is None
    fit = fit_cost(lengths, seconds)
    assert (fit.constant, fit.per_length, fit.per_square) == pytest.approx((cases.FIXED, 1, 1), rel=1e-6)
    assert read_rank_times(tmp_path / "steps.1.csv") == {
        step: {1: [pytest.approx(taken)]} for step, taken in enumerate(seconds)
    }


def test_lengths_are_those_that_are_computed():
    ids = torch.zeros(3, 7, dtype=torch.long)
    packed = torch.tensor([[0, 1, 2, 0, 0, 1]])
    nested = torch.nested.nested_tensor(samples(4, 1), layout=torch.jagged)
    cases = [
        (((), {"input_ids": ids, "attention_mask": ids + 1}), [7, 7, 7]),
        (((), {"input_ids": ids[:1, :6], "position_ids": packed}), [3, 1, 2]),
        (((), {"input_ids": ids[:1], "cu_seq_lens_q": torch.tensor([0, 5, 7])}), [5, 2]),
        (((ids,), {}), [7, 7, 7]),
        ((({"input_ids": ids},), {}), [7, 7, 7]),
        (((samples(3, 0, 2), None), {}), [3, 0, 2]),
        (((nested,), {}), [4, 1]),
        ((([],), {}), []),
    ]
    for (args, kwargs), wanted in cases:
        assert list(lengths_given(*args, **kwargs)) == wanted
    for args, kwargs, told in [((), {"pixels": ids}, "pixels"), ((torch.zeros(4),), {}, "Tensor")]:
        with pytest.raises(ValueError, match=rf"given \({told}\): give lengths=") as error:
            lengths_given(*args, **kwargs)
        assert len(str(error.value).splitlines()) == 1


def test_a_function_tells_lengths_where_nothing_else_does(tmp_path, clock):
    model = Model(clock)
    with StepTimer(model, tmp_path / "steps.csv", lengths=lambda held: [2 * len(held)]):
        model(samples(3, 3)).backward()
    assert [row[2] for row in rows_of(tmp_path / "steps.0.csv")] == ["4"]


def test_files_that_cannot_be_written_are_refused(tmp_path, clock):
    model = Model(clock)
    with pytest.raises(ValueError, match=r"path must end in \.csv, got 'steps'"):
        StepTimer(model, "steps")
    with pytest.raises(InputError, match=r"steps\.0\.csv: cannot write measured steps"):
        StepTimer(model, tmp_path / "none" / "steps.csv")
    (tmp_path / "there.0.csv").symlink_to("/dev/null")
    with pytest.raises(InputError, match="only regular files are replaced"):
        StepTimer(model, tmp_path / "there.csv")


def test_under_ddp_what_ranks_wait_for_each_other_is_not_counted(tmp_path):
    with Ranks(2) as ranks:
        found = ranks.run(cases.times_ddp, str(tmp_path))
    for rank, (lengths, rows) in enumerate(found):
        assert [row[:3] for row in rows] == [(str(step), str(rank), str(held)) for step, held in enumerate(lengths)]
        assert [float(row[3]) for row in rows] == [n + n * n + cases.FIXED for n in lengths]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_events_on_a_device(tmp_path):
    model = Model(cases.Clock()).cuda()
    with StepTimer(model, tmp_path / "steps.csv") as timer:
        for timer.step, size in zip(itertools.count(), (8, 4096, 8, 4096), strict=False):
            model([torch.zeros(size, dtype=torch.long, device="cuda")]).backward()
    assert [row[2] for row in rows_of(tmp_path / "steps.0.csv")] == ["8", "4096", "8", "4096"]
    assert all(0 < float(row[3]) < 60 for row in rows_of(tmp_path / "steps.0.csv"))
