"""Across steps: what it gains that samples run a few steps early or late, how close that is to the bound, its price.

    python benchmarks/deferral.py [table] [counts] [online] [peers] [omni] [phases] [parts] [speed]

Documents of data/prolong_documents.parquet in the order of the file, cut at 131,072 tokens; a rank's share of a step is
131,072 tokens, its cap 1.5 times that, a step's tokens within 5 %. All figures but times are the same on every machine;
times are of this thread's processor.
"""

import itertools
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import balancer
from balancer.cost import flops, parse_cost
from balancer.deferral.settings import StepSettings
from balancer.deferral.steps import Given, PhaseWork, choose, choose_steps
from balancer.problem.across_steps import AcrossSteps
from solvers._jit import compile_at_once
from solvers.deferral import MOST_STEPS

DATA = Path(__file__).parent.parent / "data"
SHARE = 131_072
COST = "quadratic:a=70455,b=1"
CAP = SHARE * 3 // 2


def documents() -> np.ndarray:
    table = pq.read_table(DATA / "prolong_documents.parquet")
    return np.minimum(table["text_tokens"].to_numpy().astype(np.int64), SHARE)


def settings(ranks: int) -> dict[str, object]:
    return {"step_tokens": ranks * SHARE, "cost": COST, "max_tokens_per_rank": CAP}


def deferred(lengths: np.ndarray, ranks: int, delay: int) -> balancer.Deferral:
    return balancer.defer(lengths, ranks, window=delay, drop_last=True, **settings(ranks))


def table() -> None:
    """How much a step takes, over the even share, as planned; and what it does to training."""
    print("ranks   D  floor  bound planned    gap  moved mean |d| long share of a step: before, after "
          "sample mean     s")  # fmt: skip
    for ranks in (32, 64):
        for delay in (0, 1, 2, 4, 8, 16):
            started = time.thread_time()
            found = deferred(documents(), ranks, delay)
            seconds, even, effects = time.thread_time() - started, found.even_share, found.effects
            print(f"{ranks:5} {delay:3} {found.floor / even:6.3f} {found.lower_bound / even:6.3f} "
                  f"{found.total / even:7.3f} {found.gap:6.2%} {effects.moved:6.1%} {effects.mean_displacement:8.2f} "
                  f"{effects.long_share[0]:28.3f}, {effects.long_share[1]:.3f} {effects.sample_mean_weight:11.2f} "
                  f"{seconds:5.1f} {found.fell_back}", flush=True)  # fmt: skip


def counts() -> None:
    """Steps cut by count, tokens within 5 % of their mean: with as many samples as nominally, and with any number."""
    for delay in (1, 2, 4):
        for rule in ("exact", "any"):
            found = balancer.defer(documents(), 64, step_samples=64 * 43, window=delay, counts=rule, cost=COST,
                                   tokens_within="5%", drop_last=True)  # fmt: skip
            even = found.even_share
            print(f"64 ranks x 43, D = {delay}, counts {rule}: floor {found.floor / even:.3f}, bound "
                  f"{found.lower_bound / even:.3f}, planned {found.total / even:.3f} ({found.gap:.2%}); sample mean "
                  f"{found.effects.sample_mean_weight:.2f}", flush=True)  # fmt: skip


def makespan(lengths: np.ndarray, ranks: int) -> int:
    found = balancer.balance(lengths, ranks, cost=COST, max_tokens_per_rank=CAP, placement="any")
    return found.makespan


def online() -> None:
    """Steps chosen as samples are drawn, `early` steps ahead, beside those of the whole epoch."""
    for ranks in (32, 64):
        for delay in (1, 2, 4):
            offline = deferred(documents(), ranks, delay)
            lengths = documents()[offline.nominal_step >= 0]
            started, total, ran = time.thread_time(), 0, 0
            buffer = balancer.DeferBuffer(ranks, window=delay, **settings(ranks))
            steps = []
            for begin in range(0, len(lengths), 256):
                buffer.push(lengths[begin : begin + 256])
                steps += list(buffer)
            buffer.flush()
            steps += list(buffer)
            seconds = time.thread_time() - started
            for step in steps:
                total, ran = total + makespan(lengths[step], ranks), ran + len(step)
            print(f"{ranks:3} ranks, D = {delay}: online {total / offline.even_share:.3f}, offline "
                  f"{offline.total / offline.even_share:.3f}, {total / offline.total - 1:+.2%}; {ran} of "
                  f"{len(lengths)} samples in {len(steps)} steps, {1e3 * seconds / len(steps):.0f} ms a step",
                  flush=True)  # fmt: skip


# --- what others do, by rules written anew ---------------------------------------------------------------------------


class Queues:
    """WLB-LLM (arXiv:2503.17924): outliers wait in queues by length until there is one for every bin.

    All else goes to the bin of least work that has room, the longest first; what finds none waits for the next step.
    """

    def __init__(self, ranks: int, thresholds: tuple[int, ...]) -> None:
        self.ranks, self.thresholds = ranks, thresholds
        self.queues: list[list[int]] = [[] for _ in thresholds]
        self.left: list[int] = []

    def step(self, lengths: np.ndarray, drawn: list[int], last: bool = False) -> tuple[int, list[int]]:
        """Return the makespan of a step and what runs in it; in the last ones everything that waits goes in."""
        work, held, runs = np.zeros(self.ranks, dtype=np.int64), np.zeros(self.ranks, dtype=np.int64), []
        model = parse_cost(COST)
        waiting = self.left + drawn
        self.left = []
        for i in [i for i in waiting if lengths[i] >= self.thresholds[-1]]:
            level = next(k for k, least in enumerate(self.thresholds) if lengths[i] >= least)
            self.queues[level].append(i)
        chosen = [i for i in waiting if lengths[i] < self.thresholds[-1]]
        for queue in self.queues:
            if len(queue) >= self.ranks or last:
                chosen += queue[: self.ranks]
                del queue[: self.ranks]
        for i in sorted(chosen, key=lambda i: -lengths[i]):
            bin_ = int(np.argmin(np.where(held + lengths[i] <= CAP, work, np.iinfo(np.int64).max)))
            if held[bin_] + lengths[i] > CAP:
                self.left.append(i)
                continue
            work[bin_] += int(model.sample_costs(lengths[i : i + 1])[0])
            held[bin_] += lengths[i]
            runs.append(i)
        return int(work.max()), runs


def peers() -> None:
    """Queues and pools on the same input; what is left in queues at the end runs in steps of its own."""
    for ranks in (32, 64):
        found = deferred(documents(), ranks, 0)
        lengths = documents()[found.nominal_step >= 0]
        nominal, even = found.nominal_step[found.nominal_step >= 0], found.even_share
        for thresholds in ((65_536,), (65_536, 32_768), (98_304, 65_536, 32_768)):
            queues, total, when, tokens = Queues(ranks, thresholds), 0, np.zeros(len(lengths), dtype=np.int64), []
            t, at_end = 0, 0
            while t < found.num_steps or queues.left or any(queues.queues):
                if t == found.num_steps:
                    at_end = len(queues.left) + sum(map(len, queues.queues))
                drawn = np.flatnonzero(nominal == t).tolist()
                took, runs = queues.step(lengths, drawn, last=t >= found.num_steps)
                total, t = total + took, t + 1
                when[runs] = t - 1
                tokens.append(int(lengths[runs].sum()))
            far = (when - nominal).max()
            spread = np.array(tokens[: found.num_steps]) / (ranks * SHARE)
            print(f"{ranks:3} ranks, queues from {thresholds}: {total / even:.3f}; {at_end} left at the end, "
                  f"{far} steps late at most, tokens a step {spread.min():.2f} to {spread.max():.2f}",
                  flush=True)  # fmt: skip
        for pool in (3, 5, 9):
            total, most = 0, 0
            for begin in range(0, found.num_steps, pool):
                here = np.flatnonzero((nominal >= begin) & (nominal < begin + pool))
                here = here[np.argsort(-lengths[here], kind="stable")]
                filled = np.cumsum(lengths[here])
                step = np.minimum((filled - 1) * pool // int(filled[-1]), pool - 1)
                most = max(most, int(np.abs(begin + step - nominal[here]).max()))
                for k in range(pool):
                    members = lengths[here[step == k]]
                    total += (
                        balancer.balance(members, ranks, cost=COST, placement="any").makespan if len(members) else 0
                    )
            print(f"{ranks:3} ranks, pools of {pool} steps sorted by length: {total / even:.3f}; {most} steps away at "
                  "most, every pool one step of long documents alone", flush=True)  # fmt: skip


def omni() -> None:
    """A log in which hardly any sample is tall."""
    columns = pq.read_table(DATA / "omni_mix_dev.parquet", columns=["text_tokens", "image_tokens", "audio_tokens"])
    lengths = sum(columns[name].to_numpy().astype(np.int64) for name in columns.column_names)
    for delay in (0, 1, 4):
        found = deferred(lengths, 64, delay)
        even = found.even_share
        print(f"omni_mix_dev, 64 ranks, D = {delay}: floor {found.floor / even:.4f}, bound "
              f"{found.lower_bound / even:.4f}, planned {found.total / even:.4f}", flush=True)  # fmt: skip


def phases() -> None:
    """Pages with images, an encoder and a language model: what each phase in the lead reaches, and both in turn."""
    table = pq.read_table(DATA / "docs_msdev_interleaved.parquet")
    order = np.random.default_rng(0).permutation(len(table))
    encoder, llm = (flops(name).integer_cost() for name in ("qwen2-vl-vit", "qwen2-7b"))
    sides = zip(table["image_widths"].to_pylist(), table["image_heights"].to_pylist(), strict=True)
    patches = [[patches_of(w, h) for w, h in zip(*of_page, strict=True)] for of_page in sides]
    images = [encoder.model.sample_costs(np.array(each, dtype=np.int64)) * encoder.factor for each in patches]
    tokens = (table["text_tokens"].to_numpy() + table["image_tokens"].to_numpy()).astype(np.int64)
    unit = 10**9  # FLOPs
    vision = (
        np.array([each.sum() for each in images]) // unit,
        np.array([each.max(initial=0) for each in images]) // unit,
    )
    text = llm.model.sample_costs(tokens) * llm.factor // unit
    print("ranks   D   drawn   vision leads   llm leads   in turn   bound")
    for ranks, batch, delay in itertools.product((16, 32), (2, 4), (1, 2, 4)):
        drawn = order[: len(order) // (ranks * batch) * ranks * batch]
        each = (PhaseWork(*vision, ranks).taken(drawn), PhaseWork(text, None, ranks).taken(drawn))
        even = sum(int(phase.costs.sum()) / ranks for phase in each)
        asked = StepSettings.of(ranks, ranks * batch, AcrossSteps(window=delay, tokens_within="5%"), "linear")
        given = Given.of(asked, tokens[drawn], asked.nominal_steps(tokens[drawn]), None, each)
        alone = [choose(given._replace(phases=(phase,))).step for phase in each]
        both = choose(given)
        shown = [given.at_least(step) / even for step in (given.start, *alone, both.step)]
        print(f"{ranks:2d} x {batch} {delay:2d}  {shown[0]:6.3f}  {shown[1]:13.3f}  {shown[2]:10.3f}  {shown[3]:8.3f}  "
              f"{both.lower_bound / even:6.3f}")  # fmt: skip


def parts() -> None:
    """Long logs, part by part as `balancer plan` streams them, and as a whole: what is lost at seams."""
    for ranks, samples, delay in ((4, 200_000, 1), (4, 200_000, 4), (8, 400_000, 4)):
        lengths = documents()
        lengths = lengths[np.random.default_rng(0).integers(0, len(lengths), samples)]
        asked = StepSettings.of(ranks, None, AcrossSteps(window=delay, step_tokens=ranks * SHARE), COST, CAP)
        nominal = asked.nominal_steps(lengths)
        whole = choose_steps(asked, lengths)
        total = sum(choose_steps(asked, lengths[nominal // MOST_STEPS == k]).chosen_floor
                    for k in range(int(nominal[-1]) // MOST_STEPS + 1))  # fmt: skip
        even = whole.even_share
        print(f"{ranks} ranks, {nominal[-1] + 1} steps, D = {delay}: whole {whole.chosen_floor / even:.5f}, "
              f"in parts {total / even:.5f} ({total / whole.chosen_floor - 1:+.4%})")  # fmt: skip


def patches_of(width: int, height: int) -> int:
    """Patches of an image as Qwen2-VL cuts it, which has sides of whole 28 pixels."""
    return (max(28, round(width / 28) * 28) // 14) * (max(28, round(height / 28) * 28) // 14)


def speed() -> None:
    """Processor time of the whole call, bound and every step's plan included."""
    lengths = documents()
    for samples, ranks, delays in ((100_000, 64, (1, 2, 4, 16)), (1_400_000, 2560, (1, 4))):
        drawn = lengths[np.random.default_rng(0).integers(0, len(lengths), samples)]
        for delay in delays:
            started = time.thread_time()
            found = deferred(drawn, ranks, delay)
            print(f"{samples:,} samples, {ranks:,} ranks, {found.num_steps} steps, D = {delay}: "
                  f"{time.thread_time() - started:.2f} s; floor {found.floor / found.even_share:.3f}, bound "
                  f"{found.lower_bound / found.even_share:.3f}, planned {found.total / found.even_share:.3f} "
                  f"({found.gap:.2%})", flush=True)  # fmt: skip


if __name__ == "__main__":
    compile_at_once()
    deferred(documents()[:3000], 2, 1)  # so that no time below has a compilation in it
    named = {each.__name__: each for each in (table, counts, online, peers, omni, phases, parts, speed)}
    for name in sys.argv[1:] or named:
        named[name]()
