"""Is the slowest rank as fast as the simulator says? Modules measured, fitted, planned, predicted, run and compared.

    python examples/predicted_and_measured.py [--flops]

Model, log and ranks are those of `three_modalities.py`. Each module is timed alone at a few lengths, and a cost model
is fitted to it (`balancer.cost.fit_cost`). The phases are planned with these costs. The simulator (`step_time`)
predicts the time of the slowest rank in each step, without a plan and balanced. The ranks then compute these steps,
the balanced ones through the executor. They run one after the other, so that no two ranks share a core. Seconds are
each rank's own CPU time on one thread, forward and backward, the best of several repetitions. Exchanges are not
included; the simulator counts them separately. With `--flops` floating-point operations are counted everywhere
instead of seconds: no clock is read.

Exits with 1 if the predicted and the measured ratio differ by more than 10 %.
"""

import contextlib
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import three_modalities as three
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from balancer.cost import LengthPolynomial, SaturatingThroughput
from balancer.cost.fit import fit_cost
from balancer.executor import Dispatcher, anchored
from balancer.simulate import CLUSTERS, PhaseModel, step_time
from balancer.strategies import plan_with

STEPS, REPEATS = 8, 7
MEASURED = 30  # sets of items that each module is timed with
LONGEST = {"vision": 320, "audio": 320, "llm": 1200}  # tokens of an item among them
FEMTO = 10**15
GIGA = 10**9  # operations that count as a second
CLOCK = "CPU seconds"
FLOPS = "operations"


class Meter:
    """How much a rank computes: its CPU seconds, or its operations in units of 10**9."""

    def __init__(self, unit):
        self.unit, self.total = unit, 0.0

    @contextlib.contextmanager
    def running(self):
        if self.unit == FLOPS:
            counter = FlopCounterMode(display=False)
            with counter, sdpa_kernel(SDPBackend.MATH):  # whose products are counted on any device
                yield
            self.total += counter.get_total_flops() / GIGA
        else:
            started = time.thread_time()
            yield
            self.total += time.thread_time() - started


def sets_of_items(seed, longest):
    """Lengths to measure a module with: few and many items, short and long ones."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest, rng.integers(1, 9)) for _ in range(MEASURED)]


def run_module(model, name, lengths):
    """Forward and backward of one module on items of these lengths."""
    total = int(lengths.sum())
    if name == "llm":
        tokens = torch.randn(total, model.embed.embedding_dim, requires_grad=True)
        model.loss_sum(tokens, lengths.tolist(), torch.randint(0, three.WORDS, (total,))).backward()
    else:
        module, width = (model.vision, three.PATCH) if name == "vision" else (model.audio, three.FRAME)
        module(torch.randn(total // three.MERGED, width * three.MERGED)).sum().backward()


def fitted(unit, repeats, longest=LONGEST):
    """A cost model of every module, from measurements of each module alone."""
    torch.manual_seed(0)
    model, fits = three.Model(), {}
    for seed, phase in enumerate(three.PHASES):
        merged = 1 if phase.name == "llm" else three.MERGED
        sets = [merged * lengths for lengths in sets_of_items(seed, longest[phase.name])]
        taken = np.full(len(sets), np.inf)
        for _ in range(repeats + 1):
            for i, lengths in enumerate(sets):
                meter = Meter(unit)
                with meter.running():
                    run_module(model, phase.name, lengths)
                taken[i] = min(taken[i], meter.total)
        fits[phase.name] = fit_cost(sets, taken, force=True)
    return fits


def phase_model(fit):
    """A fitted module for the simulator: its units of work, and how many it computes a second."""
    work = LengthPolynomial(0, round(fit.per_length * FEMTO), round(fit.per_square * FEMTO))
    return PhaseModel(work, work, SaturatingThroughput(FEMTO))


def predicted(plan, fits):
    """The time of the slowest rank of a step, by the simulator."""
    models = {name: phase_model(fit) for name, fit in fits.items()}
    step = step_time(plan, models, CLUSTERS["h100"], waits="step")  # whose peak counts for MFU alone
    return step.compute_s + step.waiting_s + sum(fit.constant for fit in fits.values())


def in_turn(rank, compute):
    """Let one rank after the other compute, while the others idle."""
    for turn in range(three.RANKS):
        if turn == rank:
            compute()
        dist.barrier()


def computed(rank, model, data, exchange, unit):
    """The time of this rank's share of a step: encoders, language model, and both backward; without the exchange."""
    meter, held = Meter(unit), {}

    def encode():
        with meter.running():
            held["parts"] = three.encoded(model, data["patches"], data["frames"], data["text"])

    def read():
        labels = torch.cat(data["labels"]) if data["labels"] else torch.empty(0, dtype=torch.int64)
        with meter.running():
            anchored(model.loss_sum(tokens, lengths, labels), tokens).backward()

    def encode_back():
        with meter.running():
            torch.autograd.backward(held["parts"], [output.grad for output in outputs])

    in_turn(rank, encode)
    outputs = [part.detach().requires_grad_() for part in held["parts"]]
    exchanged, lengths = exchange(*outputs)
    tokens = exchanged.detach().requires_grad_()
    in_turn(rank, read)
    exchanged.backward(tokens.grad)
    in_turn(rank, encode_back)
    return meter.total


def brought(step):
    """The exchange of a step that was dispatched."""

    def exchange(vision, audio, text):
        inputs = step.inputs("llm", {"vision": vision, "audio": audio}, text)
        return inputs.values, inputs.lengths.tolist()

    return exchange


def run(rank, fits, unit, steps, repeats):
    """Predict and run every step both ways; return [way, step] of the slowest rank, predicted and measured."""
    torch.manual_seed(0)
    model = three.Model()
    phases = [replace(phase, cost=fits[phase.name].integer_cost().model) for phase in three.PHASES]
    dispatcher = Dispatcher(phases=phases, fields=three.FIELDS)
    told, taken = np.zeros((2, steps)), np.full((2, steps), np.inf)
    for number in range(steps):
        data, lengths = three.mini_batch(rank, number)
        step = dispatcher.dispatch(data, lengths)
        everyone = [three.lengths_of(other, number) for other in range(three.RANKS)]
        columns = {name: np.concatenate([one[name] for one in everyone]) for name in lengths}
        plain = plan_with("as_sampled", columns, phases, three.RANKS, home_rank=step.plan.home.rank_of_sample)
        told[:, number] = predicted(plain, fits), predicted(step.plan, fits)
        stay = partial(three.in_reading_order, lengths=lengths)
        for _ in range(repeats):
            new = computed(rank, model, data, stay, unit), computed(rank, model, step, brought(step), unit)
            taken[:, number] = np.minimum(taken[:, number], new)
    return told, three.gathered(taken).max(axis=0)


def ratios(told, taken):
    """The slowest rank's time balanced, divided by its time as sampled: predicted and measured."""
    return tuple(float(rows[1].sum() / rows[0].sum()) for rows in (told, taken))


def report(rank, fits, unit):
    """Compare and print."""
    told, taken = run(rank, fits, unit, STEPS, REPEATS if unit == CLOCK else 1)
    if rank:
        return
    unit_of_row = "ms" if unit == CLOCK else "million operations"
    print(f"| step | {unit_of_row} as sampled: predicted | measured | balanced: predicted | measured |")
    print("|--:|--:|--:|--:|--:|")
    for number, row in enumerate(1e3 * np.concatenate([told, taken]).T):
        print(f"| {number} | {row[0]:.2f} | {row[2]:.2f} | {row[1]:.2f} | {row[3]:.2f} |")
    expected, found = ratios(told, taken)
    print(f"\nslowest rank, balanced by as sampled: {expected:.3f} predicted, {found:.3f} measured, "
          f"{expected / found - 1:+.1%} off")  # fmt: skip
    if abs(expected / found - 1) > 0.1:
        sys.exit(1)


def main():
    unit = FLOPS if "--flops" in sys.argv[1:] else CLOCK
    torch.set_num_threads(1)
    fits = fitted(unit, REPEATS if unit == CLOCK else 1)
    for name, fit in fits.items():
        print(f"{name}: {fit.constant * 1e3:.3f} ms + {fit.per_length * 1e6:.3f} us a unit of length + "
              f"{fit.per_square * 1e9:.3f} ns a unit squared; held-out error {fit.held_out_error:.1%}")  # fmt: skip
    three.on_ranks(report, fits, unit)


if __name__ == "__main__":
    main()
