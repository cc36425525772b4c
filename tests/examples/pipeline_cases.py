"""What ranks do in tests of pipelines: planned steps of a small model of attention and layers, beside one process."""

import os
import signal
from datetime import timedelta
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from pipeline_lists import Messages
from pipeline_runner import PipelineRunner
from torch import nn

import balancer
from balancer import Pipelines, PipelineStages
from balancer.executor import Dispatcher
from balancer.plan.gaps import DeviceOp
from balancer.problem.step_times import ModuleRate, StepTimes

WIDTH, WORDS = 6, 11
TIMEOUT = timedelta(seconds=4)


class Layer(nn.Module):
    """Attention over all rows of a slot, and a layer: what a row becomes depends on the slot's others."""

    def __init__(self, bends=0):
        super().__init__()
        self.mix, self.layer, self.bends = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), bends

    def forward(self, x, *_):
        q, k, v = self.mix(x).chunk(3, dim=-1)
        x = x + torch.softmax(q @ k.T, dim=-1) @ v
        out = x + torch.tanh(self.layer(x))
        return torch.cat([out] + [out[:1]] * self.bends)


class First(Layer):
    """Embeds tokens, or takes what an encoder's stage puts out, in front of embedded tokens."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)

    def forward(self, tokens, encoded=None):
        x = self.table(tokens)
        if encoded is not None:
            x = x + sum(rows.sum(dim=0) for rows in encoded.values())
        return super().forward(x)


class Last(Layer):
    """Scores words by the table that the first stage embeds with."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)

    def forward(self, x, *_):
        return super().forward(x) @ self.table.weight.T


class AfterVision(First):
    def forward(self, images, tokens):
        return Layer.forward(self, self.table(tokens) + images.sum(dim=0))


def loss(logits, labels):
    return nn.functional.cross_entropy(logits, labels, reduction="sum")


def model_of(num_stages, vision=False, tied=False):
    """Return all stages, the same on every process; the tables of first and last are alike, or one if tied."""
    torch.manual_seed(0)
    stages = [Layer(), AfterVision()] if vision else [First()]
    stages = [*stages, *(Layer() for _ in range(num_stages - len(stages) - 1)), Last()]
    stages = [stage.double() for stage in stages]
    first = stages[1 if vision else 0]
    with torch.no_grad():
        stages[-1].table.weight.copy_(first.table.weight)
    if tied:
        stages[-1].table.weight = first.table.weight
    return stages


def batch_of(step, samples=14):
    rng = np.random.default_rng(step)
    batch = {"text": rng.integers(1, 9, samples), "images": rng.integers(0, 5, samples)}
    words = [torch.from_numpy(rng.integers(0, WORDS, length)) for length in batch["text"]]
    pixels = [torch.from_numpy(rng.normal(size=(length, WIDTH))) for length in batch["images"]]
    return batch, words, pixels


def planned(batch, ranks, num_stages, slots, vision=False, allow_empty=False, **given):
    layout = {"vision": 1, "llm": num_stages - 1} if vision else {"llm": num_stages}
    phases = {"vision": "images", "llm": "text"} if vision else {"llm": "text"}
    cut = Pipelines(1000, count=slots, stages=PipelineStages.of(layout, **given), allow_empty=allow_empty)
    batch = {name: batch[name] for name in phases.values()}
    return balancer.orchestrate(batch, phases, ranks, cut=cut, time_budget=0.001)


def in_slots(plan, rows, rank, empty):
    """Return what samples of each slot of a rank have, one after the other."""
    llm = plan["llm"]
    at = [np.flatnonzero((llm.rank_of_sample == rank) & (llm.slot_of_sample == k)) for k in range(llm.num_slots)]
    return [torch.cat([empty, *(rows[i] for i in of_slot)]) for of_slot in at]


def inputs_of(plan, words, pixels, rank, vision):
    tokens = in_slots(plan, words, rank, torch.zeros(0, dtype=torch.int64))
    labels = [(t + 1) % WORDS for t in tokens]
    if not vision:
        return {0: tokens}, labels
    return {0: in_slots(plan, pixels, rank, torch.zeros(0, WIDTH).double()), 1: tokens}, labels


def alone(stages, plan, words, pixels, vision=False):
    """Run all slots of all ranks in one process, and return the loss."""
    total = torch.zeros((), dtype=torch.float64)
    for rank in range(plan["llm"].num_ranks):
        inputs, labels = inputs_of(plan, words, pixels, rank, vision)
        for k, wanted in enumerate(labels):
            if len(wanted):
                x = inputs[0][k]
                for s, stage in enumerate(stages):
                    x = stage(x, *([inputs[s][k]] if s and s in inputs else []))
                total = total + loss(x, wanted)
    total.backward()
    return total.detach()


def groups(rank, devices):
    """Return the group of this process's pipeline, and of its device in all of them."""
    size = dist.get_world_size()
    if devices == size:
        return None, None
    first = rank // devices * devices
    pipe = dist.new_group(list(range(first, first + devices)), use_local_synchronization=True)
    return pipe, dist.new_group(list(range(rank % devices, size, devices)), use_local_synchronization=True)


def runner_of(rank, devices, stages, vision=False, timeout=timedelta(seconds=30), **changed):
    pipe, dp = groups(rank, devices)
    mine = {s: stages[s] for s in range(rank % devices, len(stages), devices)}
    ends = {1 if vision else 0, len(stages) - 1}
    tables = [stages[s].table.weight for s in sorted(ends & set(mine))]
    shared = {"table": tables[0]} if tables and tables[0].requires_grad else {}
    outputs = dict.fromkeys(range(len(stages) - 1), ((WIDTH,), torch.float64))
    given = {"outputs": outputs, "loss": loss, "shared": shared, "timeout": timeout} | changed
    return PipelineRunner(mine, pipe, dp_group=dp, **given)


def assert_alike(told, wanted, modules):
    """Check the loss, and gradients of pairs of modules, ours and that of one process."""
    torch.testing.assert_close(told, wanted, rtol=1e-9, atol=1e-9)
    for module, other in modules:
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            if mine.requires_grad:
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9)


def trains_alike(rank, devices, num_stages, slots, steps=2, vision=False, frozen=(), **given):
    """Train a model in pipelines and in one process; losses and gradients agree after every step."""
    one_process = (num_stages - 1 - vision) % devices == 0
    both = [model_of(num_stages, vision, tied) for tied in (one_process, True)]
    for stages in both:
        for name, of_phase in (("vision", stages[:1]), ("llm", stages[1:])) if vision else (("llm", stages),):
            for stage in of_phase:
                stage.requires_grad_(name not in frozen)
    runner = runner_of(rank, devices, both[0], vision)
    of_both = [{p: None for stage in each for p in stage.parameters() if p.requires_grad}
               for each in (both[1], runner.modules.values())]  # fmt: skip
    tuned = [torch.optim.SGD(list(each), 1e-3) for each in of_both if each]
    for number in range(steps):
        batch, words, pixels = batch_of(number)
        plan = planned(batch, dist.get_world_size() // devices, num_stages, slots, vision, frozen=frozen, **given)
        inputs, labels = inputs_of(plan, words, pixels, runner.rank, vision)
        told = runner.step(plan, {s: each for s, each in inputs.items() if s in runner.modules}, labels)
        wanted = alone(both[1], plan, words, pixels, vision)
        assert_alike(told, wanted, [(module, both[1][s]) for s, module in runner.modules.items()])
        for optimizer in tuned:
            optimizer.step()
            optimizer.zero_grad()
    return float(told)


def trains(rank, devices, num_stages, slots, given):
    return trains_alike(rank, devices, num_stages, slots, **given)


def times_in_gaps(devices, replicas, slots, backwards, chunks=1):
    """Return times of a layout whose encoders run in its gaps; `backwards` are times a module's forward."""
    each, names, stages = (1.0,) * devices, ("llm", "vision", "audio"), devices * chunks
    return StepTimes(
        "a test's", ("llm",), ("vision", "audio"), replicas, slots, chunks, dict.fromkeys(names, (0, 1000, 0)),
        {"vision": 2}, {name: ModuleRate(1e-6, 0.0, backwards[name]) for name in names}, ((1,) * stages,),
        (0.0,) * stages, (0.0,) * stages, 0.0, dict.fromkeys(names, each), dict.fromkeys(names, each),
        (1e12,) * devices,
    )  # fmt: skip


class InGaps:
    """Encoders that run in gaps of a pipeline, beside the same modules in one process."""

    def __init__(self, rank, devices, slots, backwards, chunks=1):
        self.ranks = dist.get_world_size() // devices
        self.times = times_in_gaps(devices, self.ranks, slots, backwards, chunks)
        (self.stages, self.ours), (self.whole, self.encoders) = (
            self._models(devices * chunks, backwards, tied) for tied in (False, True)
        )
        outputs = dict.fromkeys([*range(len(self.stages) - 1), "vision", "audio"], ((WIDTH,), torch.float64))
        self.runner = runner_of(rank, devices, self.stages, encoders=self.ours, outputs=outputs)

    @staticmethod
    def _models(num_stages, backwards, tied):
        stages = model_of(num_stages, tied=tied)
        encoders = {name: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for name in ("audio", "vision")}
        for name, modules in (("llm", stages), *((name, [module]) for name, module in encoders.items())):
            for module in modules:
                module.requires_grad_(backwards[name] > 1)
        return stages, encoders

    def loss_alone(self, plan, words, pixels, sounds):
        """Run all slots of all ranks in one process, and return the loss."""
        total, none = torch.zeros((), dtype=torch.float64), torch.zeros(0, WIDTH).double()
        for r in range(self.ranks):
            tokens, wanted = inputs_of(plan, words, pixels, r, False)
            raw = {name: in_slots(plan, rows, r, none) for name, rows in (("vision", pixels), ("audio", sounds))}
            for k in (k for k, each in enumerate(wanted) if len(each)):
                x = self.whole[0](tokens[0][k], {name: self.encoders[name](rows[k]) for name, rows in raw.items()})
                for stage in self.whole[1:]:
                    x = stage(x)
                total = total + loss(x, wanted[k])
        total.backward()
        return total.detach()

    def step(self, plan, inputs, labels, *of_all):
        """Run a step, check it, and return how many tasks this device ran in gaps."""
        runner = self.runner
        told = runner.step(plan, {s: each for s, each in inputs.items() if s in (*runner.modules, *self.ours)}, labels)
        pairs = [(self.stages[s], self.whole[s]) for s in runner.modules]
        pairs += [(self.ours[name], self.encoders[name]) for name in self.ours]
        assert_alike(told, self.loss_alone(plan, *of_all), pairs)
        for module in (*self.stages, *self.whole, *self.ours.values(), *self.encoders.values()):
            module.zero_grad()
        return sum(op.stage is None for op in plan["llm"].device_ops(runner.rank, runner.device))


IN_GAPS = {"vision": "images", "audio": "sound", "llm": "text"}


def with_sounds(number):
    batch, words, pixels = batch_of(number)
    sounds = [torch.flip(each, (0,))[1:] for each in pixels]
    batch["sound"] = np.array([len(each) for each in sounds])
    return batch, words, pixels, sounds


def trains_in_gaps(rank, devices, slots, backwards, chunks=1, steps=2):
    """Train with encoders in gaps and in one process; losses and gradients agree after every step."""
    both, tasks = InGaps(rank, devices, slots, backwards, chunks), 0
    for number in range(steps):
        batch, *of_all = with_sounds(number)
        plan = balancer.orchestrate(batch, IN_GAPS, both.ranks, cut=Pipelines.in_gaps(both.times), time_budget=0.01)
        words, pixels, sounds = of_all
        inputs, labels = inputs_of(plan, words, pixels, both.runner.rank, False)
        for name, rows in (("vision", pixels), ("audio", sounds)):
            inputs[name] = {(i, 0): each for i, each in enumerate(rows)}
        tasks = both.step(plan, inputs, labels, *of_all)
    return tasks


def dispatched_in_gaps(rank, devices, slots):
    """A dispatcher brings samples to the processes of their pipeline, which run encoders in its gaps."""
    both = InGaps(rank, devices, slots, {"llm": 2.0, "vision": 2.0, "audio": 2.0})
    pipe, dp = groups(rank, devices)
    made = Dispatcher(
        dp, phases=IN_GAPS, replica_group=pipe, fields={"pixels": "vision", "sounds": "audio", "words": "llm"},
        cut=Pipelines.in_gaps(both.times), time_budget=0.01,
    )  # fmt: skip
    batch, *of_all = with_sounds(3)
    mine = slice(both.runner.rank * 7, both.runner.rank * 7 + 7)
    data = {name: rows[mine] for name, rows in zip(("words", "pixels", "sounds"), of_all, strict=True)}
    out = made.dispatch(data, {name: column[mine] for name, column in batch.items()})
    plan, nothing = out.plan, torch.zeros(0, dtype=torch.int64)
    tokens = [torch.cat([nothing, *out["words"][a:b]]) for a, b in pairwise(out.slot_bounds("llm"))]
    inputs = {0: tokens}
    for name, field in (("vision", "pixels"), ("audio", "sounds")):
        of_item = plan.phases[name].items.sample_of_item[plan[name].samples_on_rank(both.runner.rank)]
        inputs[name] = {(int(sample), 0): row for sample, row in zip(of_item, out[field], strict=True)}
    return both.step(plan, inputs, [(t + 1) % WORDS for t in tokens], *of_all)


def resumes(rank, after=1):
    """Stop after a step, load what was saved into new modules and a new runner, and end as without a stop."""
    found = []
    for stops in (False, True):
        stages = model_of(4)
        runner = runner_of(rank, 4, stages)
        for number in range(3):
            batch, words, pixels = batch_of(number)
            plan = planned(batch, 1, 4, 3)
            inputs, labels = inputs_of(plan, words, pixels, 0, False)
            found.append(float(runner.step(plan, inputs, labels)))
            with torch.no_grad():
                for p in stages[rank].parameters():
                    p -= 1e-3 * p.grad
                    p.grad = None
            if stops and number == after:
                state, stages = stages[rank].state_dict(), model_of(4)
                stages[rank].load_state_dict(state)
                runner = runner_of(rank, 4, stages)
    return found[:3] == found[3:]


def breaks(rank, how):
    """Hand in something that cannot be run."""
    stages = model_of(4)
    if how == "rows":
        stages[2].bends = 1
    if how == "detached":
        return trains_nothing(rank, stages)
    if how == "modules":
        return runner_of(rank, 4, stages[:3] if rank == 3 else stages)
    if how == "missing":
        return runner_of(rank, 4, stages) if rank != 2 else PipelineRunner({1: stages[1]}, outputs={}, loss=loss)
    runner = runner_of(rank, 4, stages)
    batch, words, pixels = batch_of(1 if how == "plans" and rank == 1 else 0)
    plan = planned(batch, 2 if how == "ranks" else 1, 5 if how == "devices" else 4, 3)
    inputs, labels = inputs_of(plan, words, pixels, 0, False)
    return runner.step(plan, inputs, labels[:1] if how == "labels" else labels)


def trains_nothing(rank, stages):
    """Run a last stage whose loss is cut off from all that is to be trained."""
    runner = runner_of(rank, 4, stages, timeout=TIMEOUT, loss=lambda logits, labels: loss(logits.detach(), labels))
    batch, words, pixels = batch_of(0)
    inputs, labels = inputs_of(plan := planned(batch, 1, 4, 3), words, pixels, 0, False)
    return runner.step(plan, inputs, labels)


def dies(rank, victim):
    """Train until a process kills itself in the middle of a step; return what the others say."""
    stages = model_of(4)
    runner = runner_of(rank, 4, stages, timeout=TIMEOUT)
    batch, words, pixels = batch_of(0)
    plan = planned(batch, 1, 4, 3)
    inputs, labels = inputs_of(plan, words, pixels, 0, False)
    runner.step(plan, inputs, labels)
    if rank == victim:
        stages[rank].register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    try:
        runner.step(plan, inputs, labels)
    except Exception as error:
        return type(error).__name__, str(error)


def op(slot, stage, backward):
    return DeviceOp(slot, backward, stage)


def matched(lists, num_stages=2, slots=(0, 1)):
    return Messages(lists, set(slots), num_stages)
