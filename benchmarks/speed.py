"""How fast is a plan?

    python benchmarks/speed.py [solvers] [budget] [step] [idle] [--quick]

The yardstick of `solvers` is NumPy's stable argsort of 163,840 int64 in the same run. All is of one core, after
compilation (first_call.py measures that). About two minutes; `--quick` half a minute.
"""

import common
import numpy as np
from common import NODE, Table, in_turns, timed

import balancer
import solvers as solvers_
from balancer import Phase

PLACEMENTS = ("relocate", "rearrange", "any")
SAMPLES_A_RANK = 60
PHASES = (
    Phase("vision", "image_patches", outputs="image_tokens", bytes_in=3 * 14 * 14 * 2, bytes_out=8192),
    Phase("audio", "audio_frames", outputs="audio_tokens", bytes_in=256, bytes_out=8192),
    Phase("llm", "text_tokens+image_tokens+audio_tokens", own="text_tokens", bytes_in=4),
)


def solvers(quick: bool) -> None:
    """Sorting, checking, bound and result included; searches go on to the optimum: time over the argsort's."""
    table = Table("what", "ms", "over the argsort")
    yardstick = common.lognormal(163_840)

    def partition(n: int, m: int, method: str, **more: object):
        return lambda: solvers_.partition(common.lognormal(n), m, method, stop_at=0, **more)

    def balance(n: int, m: int):
        asked = {"placement": "rearrange", "stop_at": 0, "time_budget": 1}
        return lambda: balancer.balance(common.lognormal(n), m, NODE, **asked)

    ways = {
        "lpt, 163,840 on 2,560": partition(163_840, 2560, "lpt"),
        "lpt, 163,840 on 2,560, equal counts": partition(163_840, 2560, "lpt", equal_counts=True),
        "karmarkar_karp, 16,384 on 256": partition(16_384, 256, "karmarkar_karp"),
        "karmarkar_karp, 65,536 on 1,024": partition(65_536, 1024, "karmarkar_karp"),
        "auto, 512 on 8, proven optimal": partition(512, 8, "auto"),
        "auto, 4,096 on 64, proven optimal": partition(4096, 64, "auto"),
        "balance, 1,024 on 64": balance(1024, 64),
        "balance, 163,840 on 2,560": balance(163_840, 2560),
    }
    times = in_turns({"argsort": lambda: np.argsort(yardstick, kind="stable")} | ways, 3 if quick else 10)
    for name in ways:
        table.row(name, f"{min(times[name]):.2f}", common.over(times, name, "argsort"))


def budget(quick: bool) -> None:
    """A budget is counted work: time taken over time asked, where the search does not end before."""
    asked = (0.001, 0.01, 0.1)
    table = Table("items on groups", *(f"{1e3 * each:g} ms" for each in asked))
    for n, m in ((4096, 64), (16_384, 256), (163_840, 2560))[: 1 if quick else 3]:
        cells, costs = [], common.priced(common.lognormal(n, 7), "attention")
        for each in asked:
            found, ms = timed(lambda c=costs, m=m, b=each: solvers_.partition(c, m, time_budget=b, stop_at=0), 3)
            cells.append(f"{ms / 1e3 / each:.2f}" if found.gap else "ended by itself")
        table.row(f"{n:,} on {m:,}", *cells)


def batch(ranks: int) -> dict[str, np.ndarray]:
    """Lognormal text with every sample, an image with 60 %, audio with 30 %."""
    rng, n = np.random.default_rng(0), ranks * SAMPLES_A_RANK
    text, image = (np.clip(rng.lognormal(6, 1, n), 1, 8192).astype(np.int64) for _ in range(2))
    image = np.where(rng.random(n) < 0.6, image, 0)
    frames = np.where(rng.random(n) < 0.3, rng.integers(100, 3000, n), 0)
    return {"text_tokens": text, "image_patches": 4 * image, "image_tokens": image, "audio_frames": frames,
            "audio_tokens": frames // 4}  # fmt: skip


def step(quick: bool) -> None:
    """Three phases, 60 samples a rank: ms of a step's plan by placement; us a sample; one rank's exchanges."""
    table = Table("ranks", *(f"{name}, ms" for name in PLACEMENTS), "us a sample, relocate",
                  "all exchanges of one rank, ms")  # fmt: skip
    for ranks in (64, 1024) if quick else (64, 1024, 2560, 20_480):
        columns, rounds, times = batch(ranks), 2 if ranks > 2560 else 5, []
        for name in PLACEMENTS:
            asked = {"placement": name}
            found, ms = timed(lambda c=columns, r=ranks, a=asked: balancer.orchestrate(c, PHASES, r, NODE, **a), rounds)
            times.append(ms)
        _, own = timed(lambda found=found, r=ranks: [stream.exchange(r // 2) for stream in found.streams.values()], 3)
        each = 1e3 * times[0] / (ranks * SAMPLES_A_RANK)
        table.row(f"{ranks:,}", *(f"{ms:.1f}" for ms in times), f"{each:.2f}", f"{own:.2f}")


def idle(quick: bool) -> None:
    """200 samples on the first 25 of many ranks: ms of a plan, nodes of 8; ranks that hold nothing cost little."""
    table = Table("ranks", *(f"{name}, ms" for name in PLACEMENTS))
    lengths, homes = [7919 * i % 4000 + 1 for i in range(200)], [i // 8 for i in range(200)]
    for ranks in (1024,) if quick else (1024, 1_048_576):
        cells = []
        for name in PLACEMENTS:
            asked = {"placement": name}
            _, ms = timed(lambda r=ranks, a=asked: balancer.balance(lengths, r, NODE, homes, **a), 3)
            cells.append(f"{ms:.1f}")
        table.row(f"{ranks:,}", *cells)


if __name__ == "__main__":
    common.main(__doc__, solvers, budget, step, idle)
