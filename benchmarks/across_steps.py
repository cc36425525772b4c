"""What do a few steps early or late gain?

    python benchmarks/across_steps.py [windows] [rules] [online] [short] [speed] [--quick]

Documents of data/prolong_documents.parquet in the order of the file, cut at 131,072 tokens; a rank's share of a step is
131,072 tokens, its cap 1.5 times that, a step's tokens within 5 %, cost 70,455 l + l². All times of steps are over the
even share, which is 1. `rules` has rules of others, written anew: *queues*, as in WLB-LLM (arXiv:2503.17924), hold
documents above a threshold until there is one for every rank; *pools* sort a number of steps by length and cut them.
About three minutes of one core; `--quick` half a minute.
"""

import common
import numpy as np
from common import Table, timed

import balancer
from balancer.cost import parse_cost

SHARE = 131_072
COST = "quadratic:a=70455,b=1"
CAP = SHARE * 3 // 2


def documents() -> np.ndarray:
    return np.minimum(common.log("documents"), SHARE)


def settings(ranks: int) -> dict[str, object]:
    return {"step_tokens": ranks * SHARE, "cost": COST, "max_tokens_per_rank": CAP}


def deferred(lengths: np.ndarray, ranks: int, window: int) -> balancer.Deferral:
    return balancer.defer(lengths, ranks, window=window, drop_last=True, **settings(ranks))


def windows(quick: bool) -> None:
    """By the steps that a sample may move: time of all steps, the bound on it, and what it does to training."""
    table = Table("ranks, window", "as drawn", "planned", "bound", "over the bound, %", "moved, %",
                  "tokens of long documents, %: before", "after", "weight of a long one in a mean over samples",
                  "s")  # fmt: skip
    for ranks in (64,) if quick else (32, 64):
        for window in (0, 2) if quick else (0, 1, 2, 4, 8, 16):
            found, ms = timed(lambda r=ranks, w=window: deferred(documents(), r, w))
            even, effects = found.even_share, found.effects
            table.row(f"{ranks}, {window}", found.floor / even, found.total / even, found.lower_bound / even,
                      100 * found.gap, f"{100 * effects.moved:.1f}",
                      *(f"{100 * each:.1f}" for each in effects.long_share[:2]), f"{effects.sample_mean_weight:.2f}",
                      f"{ms / 1e3:.1f}")  # fmt: skip


def makespan(lengths: np.ndarray, ranks: int, **more: object) -> int:
    return balancer.balance(lengths, ranks, cost=COST, placement="any", **more).makespan if len(lengths) else 0


class Queues:
    """Documents above a threshold wait in a queue until there is one for every rank.

    All else goes to the rank of least work that has room, the longest first; what finds none waits for the next step.
    """

    def __init__(self, ranks: int, threshold: int) -> None:
        self.ranks, self.threshold = ranks, threshold
        self.queue: list[int] = []
        self.left: list[int] = []

    def step(self, lengths: np.ndarray, drawn: list[int], last: bool) -> tuple[int, list[int]]:
        """Return the makespan of a step and what runs in it; in the last ones everything that waits goes in."""
        work, filled, runs = np.zeros(self.ranks, dtype=np.int64), np.zeros(self.ranks, dtype=np.int64), []
        waiting, self.left, model = self.left + drawn, [], parse_cost(COST)
        self.queue += [i for i in waiting if lengths[i] >= self.threshold]
        chosen = [i for i in waiting if lengths[i] < self.threshold]
        if len(self.queue) >= self.ranks or last:
            chosen += self.queue[: self.ranks]
            del self.queue[: self.ranks]
        for i in sorted(chosen, key=lambda i: -lengths[i]):
            rank = int(np.argmin(np.where(filled + lengths[i] <= CAP, work, np.iinfo(np.int64).max)))
            if filled[rank] + lengths[i] > CAP:
                self.left.append(i)
                continue
            work[rank] += int(model.sample_costs(lengths[i : i + 1])[0])
            filled[rank] += lengths[i]
            runs.append(i)
        return int(work.max()), runs


def rules(quick: bool) -> None:
    """Queues and pools on the same input: time of all steps, how far a sample moves, what waits at the end."""
    table = Table("ranks, rule", "time", "steps moved at most", "left at the end")
    for ranks in (64,) if quick else (32, 64):
        for window in (2, 8):
            found = deferred(documents(), ranks, window)
            table.row(f"{ranks}, ours, window={window}", found.total / found.even_share, window, 0)
        lengths, nominal = (each[found.nominal_step >= 0] for each in (documents(), found.nominal_step))
        queues, total, when, t, at_end = Queues(ranks, 65_536), 0, np.zeros(len(lengths), dtype=np.int64), 0, 0
        while t < found.num_steps or queues.left or queues.queue:
            if t == found.num_steps:
                at_end = len(queues.left) + len(queues.queue)
            took, runs = queues.step(lengths, np.flatnonzero(nominal == t).tolist(), last=t >= found.num_steps)
            total, when[runs], t = total + took, t, t + 1
        table.row(f"{ranks}, queues from 65,536", total / found.even_share, int((when - nominal).max()), at_end)
        for pool in (3, 5, 9):
            total, most = 0, 0
            for begin in range(0, found.num_steps, pool):
                here = np.flatnonzero((nominal >= begin) & (nominal < begin + pool))
                here = here[np.argsort(-lengths[here], kind="stable")]
                filled = np.cumsum(lengths[here])
                step = np.minimum((filled - 1) * pool // int(filled[-1]), pool - 1)
                most = max(most, int(np.abs(begin + step - nominal[here]).max()))
                total += sum(makespan(lengths[here[step == k]], ranks) for k in range(pool))
            table.row(f"{ranks}, pools of {pool} steps", total / found.even_share, most, 0)


def online(quick: bool) -> None:
    """Steps chosen while samples are drawn, over those that are chosen for the whole epoch."""
    table = Table("ranks, window", "as drawn", "online", "offline", "online over offline", "ms a step")
    for ranks in (32,) if quick else (32, 64):
        for window in (1,) if quick else (1, 2, 4):
            offline = deferred(documents(), ranks, window)
            lengths, even = documents()[offline.nominal_step >= 0], offline.even_share

            def drawn(ranks: int = ranks, window: int = window, lengths: np.ndarray = lengths) -> list[np.ndarray]:
                buffer, steps = balancer.DeferBuffer(ranks, window=window, **settings(ranks)), []
                for begin in range(0, len(lengths), 256):
                    buffer.push(lengths[begin : begin + 256])
                    steps += list(buffer)
                buffer.flush()
                return steps + list(buffer)

            steps, ms = timed(drawn)
            total = sum(makespan(lengths[step], ranks, max_tokens_per_rank=CAP) for step in steps)
            table.row(f"{ranks}, {window}", offline.floor / even, total / even, offline.total / even,
                      total / offline.total, f"{ms / len(steps):.0f}")  # fmt: skip


def short(quick: bool) -> None:
    """A log with hardly any long sample, where there is little to gain: 64 ranks."""
    table = Table("log, window", "as drawn", "planned", "bound")
    for window in (1,) if quick else (1, 4):
        found = deferred(common.log("mix"), 64, window)
        row = (f"{value / found.even_share:.4f}" for value in (found.floor, found.total, found.lower_bound))
        table.row(f"mix, {window}", *row)


def speed(quick: bool) -> None:
    """Seconds of the whole call, the bound and every step's plan included; draws of the same documents."""
    table = Table("samples, ranks, window", "steps", "s", "as drawn", "planned", "bound")
    for samples, ranks, windows_ in ((100_000, 64, (1, 4)), (1_400_000, 2560, (1, 4)))[: 1 if quick else 2]:
        drawn = documents()[np.random.default_rng(0).integers(0, len(documents()), samples)]
        for window in windows_:
            found, ms = timed(lambda d=drawn, r=ranks, w=window: deferred(d, r, w))
            row = (value / found.even_share for value in (found.floor, found.total, found.lower_bound))
            table.row(f"{samples:,}, {ranks:,}, {window}", found.num_steps, f"{ms / 1e3:.1f}", *row)


if __name__ == "__main__":
    common.main(__doc__, windows, rules, online, short, speed)
