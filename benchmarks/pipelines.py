"""How short can a pipeline's step be, and what do encoders in its gaps gain?

    python benchmarks/pipelines.py [slots] [memory] [gaps] [room] [run] [--quick]

Steps of the shipped log, samples of up to 8,192 tokens: InternViT-6B (images of a sample are alike), Whisper-large-v3's
encoder and Qwen2-72B by FLOPs at 40 % of an H100, tensor parallel 8, the backward twice the forward, no hop. An
instance is stages (the encoders' among them), replicas, micro-batches, samples a micro-batch. Every schedule is
checked. `run` needs torch: stages of PipelineRunner (examples/) on gloo sleep for their planned time, as two cores
cannot compute in so many stages at once. About five minutes of one core; `--quick` one.
"""

import os
import sys
import time
from datetime import timedelta
from typing import Any, NamedTuple

import common
import numpy as np
from common import Table, timed

import balancer
import solvers
from balancer.cost import module

FLOPS_PER_SECOND = 0.4 * 989e12 * 8
MOST_TOKENS = 8_192


class Instance(NamedTuple):
    """Stages, the encoders' among them, replicas, micro-batches, samples a micro-batch."""

    stages: int
    first: int
    replicas: int
    slots: int
    samples: int

    def __str__(self) -> str:
        return f"{self.stages} ({self.first}), {self.replicas}, {self.slots}, {self.samples}"


INSTANCES = (
    Instance(4, 1, 8, 16, 8),
    Instance(8, 2, 8, 32, 8),
    Instance(8, 2, 8, 16, 8),
    Instance(16, 3, 8, 64, 8),
    Instance(8, 2, 8, 32, 4),
)
GAPS = (Instance(4, 1, 4, 16, 8), Instance(8, 2, 4, 32, 8), Instance(16, 3, 2, 64, 8))


class Log(NamedTuple):
    """Of each sample: nanoseconds forwards in the encoders, in the language model, and tokens."""

    encoders: np.ndarray
    model: np.ndarray
    tokens: np.ndarray

    @classmethod
    def read(cls) -> "Log":
        of = {name: common.column("omni_mix_dev", name) for name in ("image_patches", "num_images", "audio_frames")}
        images, tokens = np.maximum(1, of["num_images"]), common.log("mix")
        encoders = images * seconds_of("internvit-6b", of["image_patches"] / images)
        encoders += seconds_of("whisper-large-v3-encoder", of["audio_frames"].astype(float))
        kept = tokens <= MOST_TOKENS
        return cls(encoders[kept], seconds_of("qwen2-72b", tokens.astype(float))[kept], tokens[kept])

    def step(self, instance: Instance, number: int) -> "Log":
        size = instance.replicas * instance.slots * instance.samples
        return Log(*(part[number * size : (number + 1) * size] for part in self))


def seconds_of(name: str, lengths: np.ndarray) -> np.ndarray:
    """Forward time of samples of these lengths, in nanoseconds."""
    cost = module(name).flops(backward=False)
    flops = cost.constant * (lengths > 0) + cost.a * lengths + cost.b * lengths * lengths
    return np.asarray(flops, dtype=float) / FLOPS_PER_SECOND * 1e9


def as_stages(step: Log, instance: Instance) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Work of samples, int64[n, 2], forward and backward of each module in each stage: encoders are first stages."""
    rest = instance.stages - instance.first
    work = np.rint(np.stack([step.encoders / instance.first, step.model / rest], axis=1)).astype(np.int64)
    unit = np.array([[1] * instance.first + [0] * rest, [0] * instance.first + [1] * rest])
    return work, unit, 2 * unit


def solved(asked: tuple, instance: Instance, budget: float, **rules: Any) -> tuple[Any, float]:
    found, ms = timed(lambda: solvers.schedule_pipeline(
        *asked, instance.replicas, instance.slots, time_budget=budget, **rules))  # fmt: skip
    solvers.check_pipeline(*asked, found, **rules)
    return found, ms


def makespan(asked: tuple, instance: Instance, cells: np.ndarray) -> int:
    """Makespan of samples in cells, replica after replica, by exact runs of 1F1B."""
    work, forward, backward = asked
    loads = np.zeros((instance.replicas * instance.slots, work.shape[1]), dtype=np.int64)
    np.add.at(loads, cells, work)
    order = solvers.pipeline.one_f_one_b(instance.slots, forward.shape[1])
    runs = (solvers.pipeline.run(each, forward, backward, order) for each in np.split(loads, instance.replicas))
    return max(run.makespan for run in runs)


# Ways of others to fill micro-batches


def drawn(asked: tuple, instance: Instance) -> np.ndarray:
    """Samples as they come, equally many in each."""
    return np.arange(len(asked[0])) * instance.replicas * instance.slots // len(asked[0])


def equal(asked: tuple, instance: Instance, count: int | None = None) -> np.ndarray:
    """Vector LPT: the longest first to where the largest component is then smallest, DFLOP's fallback."""
    work, forward, backward = asked
    count = count or instance.replicas * instance.slots
    whole = work.T * (forward + backward).max(axis=1)[:, None]
    spent = whole * (count / np.maximum(1, whole.sum(axis=1, keepdims=True)))
    cells, loads = np.empty(spent.shape[1], dtype=np.int64), np.zeros((count, len(spent)))
    for item in np.argsort(-spent.max(axis=0, initial=0.0), kind="stable"):
        largest = (loads + spent[:, item]).max(axis=1)
        best = np.argmin(np.where(largest == largest.min(), loads.sum(axis=1), np.inf))
        cells[item] = best
        loads[best] += spent[:, item]
    return cells


def put_off(asked: tuple, instance: Instance) -> np.ndarray:
    """What a micro-batch has over its share of any module's work goes to a later one; replicas by vector LPT.

    Made from what is said of Entrain (arXiv:2605.27918): in the order given, a micro-batch takes all samples, those put
    off first, with which no module has more than its share of what is left; the last takes all.
    """
    slots, cells = instance.slots, equal(asked, instance, instance.replicas) * instance.slots
    for replica in range(instance.replicas):
        waiting = np.flatnonzero(cells == replica * slots)
        for slot in range(slots - 1):
            work = asked[0][waiting].T
            share, load, taken = work.sum(axis=1) / (slots - slot), np.zeros(len(work)), []
            for at in range(len(waiting)):
                spare = len(waiting) - len(taken) > slots - slot - 1  # one at least for every slot that follows
                if spare and (not taken or bool((load + work[:, at] <= share).all())):
                    taken.append(at)
                    load = load + work[:, at]
            cells[waiting[taken]] = replica * slots + slot
            waiting = np.delete(waiting, taken)
        cells[waiting] = replica * slots + slots - 1
    return cells


def slots(quick: bool) -> None:
    """Makespan over the proven bound: rules of others, and ramps by our budget; the idle part of all stages' time."""
    table = Table("stages (encoders'), replicas, slots, samples", "as drawn", "equal: vector LPT", "put off: Entrain",
                  "ours, 0.1 s", "0.3 s", "idle, %: as drawn", "equal", "ours")  # fmt: skip
    log = Log.read()
    for instance in INSTANCES[: 1 if quick else None]:
        rows = []
        for number in (0,) if quick else (0, 4, 8):
            asked = as_stages(log.step(instance, number), instance)
            found = [solved(asked, instance, budget)[0] for budget in (0.1, 0.3)]
            spans = [makespan(asked, instance, rule(asked, instance)) for rule in (drawn, equal, put_off)]
            spans += [each.makespan for each in found]
            perfect = 3 * int((asked[0] * [instance.first, instance.stages - instance.first]).sum())
            idle = [100 * (1 - perfect / (spans[k] * instance.replicas * instance.stages)) for k in (0, 1, 4)]
            rows.append([*(span / found[-1].lower_bound for span in spans), *idle])
        *ratios, drawn_idle, equal_idle, ours = np.mean(rows, axis=0)
        table.row(str(instance), *(f"{each:.4f}" for each in ratios),
                  *(f"{each:.1f}" for each in (drawn_idle, equal_idle, ours)))  # fmt: skip


LIMITS = (1.05, 1.1, 1.2, 1.4, 1.6)


def memory(quick: bool) -> None:
    """Makespan over the bound where no stage may hold more tokens in flight than so many times equal slots' do."""
    table = Table("pipeline: stages (encoders'), replicas, slots, samples", "vector LPT: in flight, makespan",
                  *(f"{limit:g}" for limit in LIMITS), "no cap", "which holds")  # fmt: skip
    log = Log.read()
    for instance in INSTANCES[: 1 if quick else None]:
        rows = []
        for number in (0,) if quick else (0, 8):
            step = log.step(instance, number)
            asked, tokens = as_stages(step, instance), step.tokens
            even = int(tokens.sum()) // (instance.replicas * instance.slots) * min(instance.slots, instance.stages)
            lpt, free = equal(asked, instance), solved(asked, instance, 0.3)[0]
            row = [in_flight(lpt, tokens, instance) / even, makespan(asked, instance, lpt) / free.lower_bound]
            for limit in LIMITS:
                try:
                    found, _ = solved(asked, instance, 0.3, sizes=tokens, in_flight_cap=int(limit * even))
                    row.append(found.makespan / free.lower_bound)
                except solvers.TimeLimitError:
                    row.append(float("nan"))
            cells = free.replica_of_item * instance.slots + free.slot_of_item
            rows.append([*row, free.makespan / free.lower_bound, in_flight(cells, tokens, instance) / even])
        first, span, *others, holds = np.mean(rows, axis=0)
        table.row(str(instance), f"{first:.2f}, {span:.4f}", *(f"{each:.4f}" for each in others), f"{holds:.2f}")


def in_flight(cells: np.ndarray, tokens: np.ndarray, instance: Instance) -> int:
    """The most tokens that the first stage of any replica holds between forwards and backwards."""
    each = np.bincount(cells, tokens, instance.replicas * instance.slots).reshape(instance.replicas, instance.slots)
    width = np.ones(min(instance.slots, instance.stages))
    return max(int(np.convolve(row, width, "valid").max()) for row in each)


# Encoders in the gaps


def mean_work(step: Log, instance: Instance) -> float:
    return 3 * float(step.model.sum() + step.encoders.sum()) / instance.stages / instance.replicas


def alone(step: Log, instance: Instance) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The language model in all stages."""
    unit = np.ones((1, instance.stages), dtype=np.int64)
    return np.rint(step.model / instance.stages).astype(np.int64)[:, None], unit, 2 * unit


def multiplexed(step: Log, instance: Instance, budget: float, cap: int | None = None) -> tuple[Any, float]:
    encoders = np.rint(step.encoders).astype(np.int64)
    owner = np.flatnonzero(encoders)
    spent = encoders[owner]
    request = solvers.PipelineRequest(*alone(step, instance), instance.replicas, instance.slots)
    tasks = solvers.TaskRequest(owner, spent, 2 * spent, window=instance.stages, size=spent, held_cap=cap)
    found, ms = timed(lambda: solvers.schedule_multiplexed(request, tasks, time_budget=budget))
    solvers.check_multiplexed(request, tasks, found)
    return found, ms


def gaps(quick: bool) -> None:
    """Makespan over the mean work of all devices: encoders as stages, before the pipeline, and in its gaps."""
    table = Table("stages (encoders'), replicas, slots, samples", "as stages", "before", "in gaps, 0.3 s", "1 s",
                  "bound", "before over gaps", "s")  # fmt: skip
    log = Log.read()
    for instance in GAPS[: 1 if quick else None]:
        step = log.step(instance, 3)
        stages = solved(as_stages(step, instance), instance, 0.3)[0].makespan
        encoders = solvers.partition(np.rint(step.encoders).astype(np.int64), instance.replicas * instance.stages)
        before = solved(alone(step, instance), instance, 0.3)[0].makespan + 3 * encoders.makespan
        short, _ = multiplexed(step, instance, 0.3)
        found, ms = multiplexed(step, instance, 1.0)
        spans = stages, before, short.makespan, found.makespan, found.lower_bound
        mean = mean_work(step, instance)
        ratios = (f"{span / mean:.4f}" for span in spans)
        table.row(str(instance), *ratios, before / found.makespan, f"{ms / 1e3:.2f}")


def room(quick: bool) -> None:
    """The same with room for the encoders' outputs of so many mean micro-batches; S is the number of stages."""
    counts = (1.25, 1.5, 2)
    table = Table("stages (encoders'), replicas, slots, samples", *(f"{count} S" for count in counts), "no cap",
                  "which holds, S")  # fmt: skip
    log = Log.read()
    for instance in GAPS[: 1 if quick else None]:
        step = log.step(instance, 3)
        mean, share = mean_work(step, instance), step.encoders.sum() / instance.replicas / instance.slots
        cells = []
        for count in counts:
            try:
                cells.append(f"{multiplexed(step, instance, 1.0, int(count * share))[0].makespan / mean:.4f}")
            except solvers.SolverError:
                cells.append("none found")
        free, _ = multiplexed(step, instance, 1.0)
        most = max(int(each.held.max()) for each in free.replicas)
        table.row(str(instance), *cells, f"{free.makespan / mean:.4f}", f"{most / share:.2f}")


# Planned pipelines that run


def planned(devices: int) -> list[tuple[str, Any]]:
    lengths = np.random.default_rng(0).lognormal(6, 0.9, 12 * devices).astype(np.int64) + 1
    made = {"1F1B": 1, "interleaved": 2}
    return [
        (name, balancer.balance(lengths, 1, cut=balancer.Pipelines(
            1 << 20, count=3 * devices, stages=balancer.PipelineStages.of(devices * chunks, chunks=chunks))))
        for name, chunks in made.items()
    ]  # fmt: skip


def measure(rank: int, devices: int, seconds: float, results: Any) -> None:
    """Run the planned steps on one of the processes: twice each, the better of which counts."""
    import torch
    import torch.distributed as dist
    from torch import nn

    sys.path.insert(0, str(common.ROOT / "examples"))
    from pipeline_runner import PipelineRunner

    noted: list[float] = []

    class Sleeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, ahead: float, back: float) -> Any:
            ctx.back = back
            time.sleep(ahead)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(ctx.back)
            noted.append(time.monotonic())
            return gradient, None, None

    class Stage(nn.Module):
        """Takes and puts out one number a row."""

        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))

        def forward(self, *given: Any) -> Any:
            times = next(each for each in given if isinstance(each, tuple))
            x = given[0] if isinstance(given[0], torch.Tensor) else torch.zeros(times[2], 1)
            noted.append(time.monotonic())
            return Sleeps.apply(x * self.one, *times[:2])

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", 29577, devices, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=devices)
    for name, plan in planned(devices):
        stages, span = plan.cut.stages, plan.pipeline_run(0).makespan
        took = seconds / span * (plan.work_of_slots[0] @ stages.both_ways)
        rows, s = np.bincount(plan.slot_of_sample, plan.lengths, plan.num_slots).astype(int), stages.num_stages
        mine = range(rank, s, devices)
        inputs = {i: [(took[k, i], took[k, s + i], int(rows[k])) for k in range(plan.num_slots)] for i in mine}
        runner = PipelineRunner({i: Stage() for i in mine}, outputs=dict.fromkeys(range(s), ((1,), torch.float32)),
                                loss=lambda out, _: out.sum(), timeout=timedelta(minutes=1))  # fmt: skip
        found = []
        for _ in range(2):
            noted.clear()
            runner.step(plan, inputs, [None] * plan.num_slots)
            ends = [None] * devices
            dist.all_gather_object(ends, (min(noted), max(noted)))
            found.append(max(last for _, last in ends) - min(first for first, _ in ends))
        if rank == 0:
            results.put((name, seconds, min(found)))
    dist.destroy_process_group()


def run(quick: bool) -> None:
    """Planned pipelines on four processes: seconds of a step, measured over predicted."""
    import torch.multiprocessing

    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(measure, (4, 2.0 if quick else 6.0, results), 4)
    table = Table("order", "predicted, s", "measured, s", "measured over predicted")
    while not results.empty():
        name, predicted, took = results.get()
        table.row(name, predicted, took, took / predicted)


if __name__ == "__main__":
    common.main(__doc__, slots, memory, gaps, room, run)
