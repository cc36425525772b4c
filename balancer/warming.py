"""First calls that reach every kernel, so that no step waits for a compiler."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import solvers
from balancer.layouts.layout import ModuleLayout
from balancer.planner import balance
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.pipelines import Pipelines
from balancer.problem.limits import AnyLimit, CountLimit, Everywhere, Limit, PaddedLimit
from balancer.problem.settings import COUNTED_METHODS, EPS
from balancer.step_planner import orchestrate
from solvers._jit import compile_at_once
from solvers.grouping import long_short_groups
from solvers.pipeline import PipelineRequest, TaskRequest


def warmup(methods: Sequence[str] = COUNTED_METHODS) -> None:
    """Compile, or load from the cache on disk, every kernel that planning uses; call it before the first step.

    Without it the first plans of small problems run as Python, and kernels are compiled step by step.

    Parameters
    ----------
    methods : sequence of str
        Methods to make ready; by default all but ``exact``, which is not compiled.
    """
    for call in first_calls(methods):
        call()


def first_calls(methods: Sequence[str] = COUNTED_METHODS) -> Iterator[Callable[[], Any]]:
    """Yield small problems that together reach every kernel; in any order, in any number of processes."""
    compile_at_once()
    lengths, rising = np.arange(1, 40), np.arange(1, 60)
    homes, few_homes = np.repeat(np.arange(4), [20, 20, 10, 9]), np.minimum(lengths // 5, 3)
    quadratic = "quadratic:a=1,b=1"
    # Searches go on here, so that they reach what comes after the first plan that is good enough.
    near: dict[str, Any] = {"equal_counts": False, "placement": "relocate", "stop_at": 0}
    yield _piped  # first those that have few kernels in common, so that processes do not wait for one another
    yield partial(balance, lengths, 4, 2, few_homes, quadratic, **near)
    yield _grouped
    yield _in_gaps
    yield partial(_prompted, equal_counts=True)
    yield partial(_prompted, cut=MicroBatches(1000))
    yield _shared_items
    for sync, eps in (("micro_batch", EPS), ("micro_batch", 0.5), ("step", EPS)):  # micro-batches, near home or not
        for tokens in (150, 400):  # which hold all with hardly any room, and with much
            cut = MicroBatches(tokens, sync)
            yield partial(balance, rising, 4, 2, homes, "quadratic:a=9,b=1", cut=cut, eps=eps)
    of_kinds: Sequence[Sequence[AnyLimit]] = (
        [PaddedLimit(300)], [CountLimit(9), Everywhere(rising % 2)], [Limit(rising, 300)],
    )  # fmt: skip
    for limits in of_kinds:
        yield partial(balance, rising, 4, cut=MicroBatches(400, "step", limits=limits))
    for method in methods:
        for num_samples, num_ranks in ((600, 200), (40, 4)):  # many groups take another path than few
            for equal_counts in (False,) if method == "karmarkar_karp" else (False, True):
                yield partial(_exchanged, num_samples, num_ranks, method, equal_counts)
    for equal_counts in (False, True):  # from homes, under caps or not
        near = near | {"equal_counts": equal_counts}
        for cap in (None, 250):
            yield partial(balance, lengths, 4, 2, few_homes, quadratic, max_tokens_per_rank=cap, **near)
        yield partial(balance, lengths, 4, 2, few_homes, eps=0, **near)
    for equal_counts in (False, True):  # caps so tight that greedy must be mended
        yield partial(
            balance, lengths, 4, cost=quadratic, equal_counts=equal_counts, max_tokens_per_rank=198, stop_at=0
        )
    yield partial(balance, lengths, 4, 2, few_homes, keep_together=lengths // 3)
    yield _resharded
    yield partial(solvers.defer, lengths, lengths // 10, solvers.deferral.windows(4, 1, 1), 2)
    yield partial(balance, lengths, 8, 4, lengths % 8, placement="rearrange")
    few_ranks = [[0, 1], None, [1, 2], None, None, [0], None, None]  # so few samples that all ways are tried
    yield partial(balance, [17, 16, 15, 14, 13, 12, 9, 3], 3, allowed_ranks=few_ranks, stop_at=0)
    yield partial(solvers.partition, [22, 12, 9, 6, 18, 7, 10, 7], 4, stop_at=0)  # where no bound is reached
    for method in solvers.PACKERS:
        yield partial(solvers.pack, [6, 5, 4, 3, 3, 3], 13, method)
    # ranks whose samples fit one micro-batch and have two
    yield partial(solvers.schedule_micro_batches, [5, 4, 3, 2, 1, 1], [1] * 6, 2, 9, sync="step", num_slots=2)
    yield partial(solvers.context_shards, lengths * 8 + 8, 4, pad=True, block=16, time_budget=1e-3)


def make_first_plan() -> None:
    """Compile what a first plan needs besides relocation."""
    compile_at_once()
    _exchanged(600, 64, "auto", equal_counts=False)


def _grouped() -> None:
    times = np.arange(1, 21) * 100
    solvers.sequence_groups(np.stack([times, times // 2 + 5, times // 4 + 9]), times, (1, 2, 4), 8, 900)


def _piped() -> None:
    cut = Pipelines(150, PipelineStages.of(2, in_flight_tokens=400), count=4)
    balance(np.arange(1, 40), 2, cut=cut)
    # A cap that leaves hardly any room
    sizes, work = [30, 46, 18, 13, 31, 20, 19, 34, 15, 47], np.array([40, 5, 38, 31, 40, 39, 12, 26, 23, 37])
    solvers.schedule_pipeline(work[:, None], [[1, 1]], [[2, 2]], 2, 2, sizes=sizes, cap=74, time_budget=1e-3)


def _in_gaps() -> None:
    asked = PipelineRequest(np.arange(1, 13)[:, None], [[1, 1]], [[2, 2]], 2, 3, allow_empty=True)
    tasks = TaskRequest([0, 2, 5, 7], [1, 2, 3, 4], [2, 4, 5, 5], 2)
    solvers.schedule_multiplexed(asked, tasks, time_budget=1e-3)


def _prompted(**asked: Any) -> None:
    prompts = np.arange(1, 40) // 5
    lengths, of_prompts = np.arange(1, 40) * 10 + 50, np.minimum(prompts * 7 + 5, 50)
    balance(lengths, 4, prefix=prompts, prefix_length=of_prompts, **asked)


def _shared_items() -> None:
    alone, shared = np.array([4000, 900, 90, 80, 70, 60, 50, 40]), np.array([2000, 450, 50, 45, 40, 35, 30, 25])
    for enough in (0, 1500):
        long_short_groups(alone, [shared, shared // 2 + 10], [0] * 8, 1, 4, degrees=[2, 4], enough=enough)


def _resharded() -> None:
    layouts = {"encoder": ModuleLayout(dp=4), "llm": ModuleLayout(cp=2, tp=2)}
    batch = {"patches": np.arange(20), "tokens": np.arange(20) + 5}
    step = orchestrate(batch, {"encoder": "patches", "llm": "tokens"}, 4, layouts=layouts)
    step.streams["encoder:out"].traffic(step.topology)


def _exchanged(num_samples: int, num_ranks: int, method: str, equal_counts: bool) -> None:
    lengths = np.random.default_rng(0).integers(0, 1000, num_samples)
    cost = {"padded": "padded", "mixed": "convolution:a=9,b=1,c=2"}.get(method, "linear")
    plan = balance(lengths, num_ranks, cost=cost, method=method, equal_counts=equal_counts, stop_at=0)
    plan.exchange(0)
    _ = plan.traffic, plan.inter_node_bound  # which a run's totals ask for
