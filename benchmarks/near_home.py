"""What crosses nodes, and what does it cost to cross less?

    python benchmarks/near_home.py [placements] [limits] [eps] [methods] [--quick]

Samples lie where they were drawn, on nodes of 8 ranks; volumes are tokens. `relocate` keeps every rank's load within
1 + eps of the finished groups' largest; `rearrange` lays finished groups on ranks; `any` leaves them as they are.
Steps are consecutive rows of the shipped log, or lognormal lengths by fixed seeds. Crossing, and the proven least under
the same cap, are shares of all tokens; medians. Times are of the placement alone. About five minutes of one core;
`--quick` half a minute.
"""

from collections.abc import Callable

import common
import numpy as np
from common import COSTS, NODE, Table, timed

import solvers

EPS = 1e-3


def homes_of(ranks: int, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Home rank of each sample, and node of each rank."""
    return np.repeat(np.arange(ranks), len(lengths) // ranks), np.arange(ranks) // NODE


def groups_of(costs: np.ndarray, ranks: int) -> np.ndarray:
    return solvers.partition(costs, ranks, time_budget=0.01, stop_at=0).group_of_item


def placements(quick: bool) -> None:
    """The three placements side by side on the shipped log: what crosses, how even ranks are, and their times."""
    table = Table("ranks x samples, cost", "placement", "over the mean load", "crosses, %", "must, %",
                  "moves inside, %", "ms", "time over rearrange's")  # fmt: skip
    for ranks, each in ((64, 4),) if quick else ((64, 4), (64, 16), (64, 64), (2560, 4), (2560, 16)):
        for kind in COSTS:
            found: dict[str, list[list[float]]] = {}
            for lengths in common.steps_of(common.log("mix"), ranks * each, 2 if quick else 5):
                for name, row in placed(lengths, common.priced(lengths, kind), ranks).items():
                    found.setdefault(name, []).append(row)
            middle = {name: np.median(rows, axis=0) for name, rows in found.items()}
            for name, (over, crosses, must, inside, ms) in middle.items():
                cells = f"{crosses:.2f}", f"{must:.2f}" if name == "relocate" else "", f"{inside:.1f}", f"{ms:.1f}"
                table.row(f"{ranks:,} x {each}, {kind}", name, f"{over:.5f}", *cells, ms / middle["rearrange"][-1])


def placed(lengths: np.ndarray, costs: np.ndarray, ranks: int) -> dict[str, list[float]]:
    """By placement: makespan over the mean load; what crosses, must, and moves inside nodes, in percent; ms."""
    home, nodes = homes_of(ranks, lengths)
    groups, rows = groups_of(costs, ranks), {}

    def rearranged() -> tuple[np.ndarray, int]:
        volumes = solvers.group_volumes(groups, home, lengths, ranks)
        return solvers.rearrange(volumes, nodes).rank_of_group[groups], 0

    def relocated() -> tuple[np.ndarray, int]:
        found = solvers.relocate(costs, home, nodes, volumes=lengths, groups=groups, eps=EPS)
        return found.rank_of_item, found.inter_node_bound

    ways: dict[str, Callable] = {"any": lambda: (groups, 0), "rearrange": rearranged, "relocate": relocated}
    for name, way in ways.items():
        (rank, must), ms = timed(way, 2)
        across = nodes[rank] != nodes[home]
        inside = (rank != home) & ~across
        volumes = lengths[across].sum(), must, lengths[inside].sum()
        most = np.bincount(rank, weights=costs, minlength=ranks).max()
        rows[name] = [most * ranks / costs.sum(), *(100 * each / lengths.sum() for each in volumes), ms]
    return rows


def limits(quick: bool) -> None:
    """Relocation under limits, lognormal lengths: what crosses over what must, loads over the cap, fall-backs."""
    table = Table("ranks x samples, cost", "limit", "crosses, %", "over what must: median", "worst", "over the cap",
                  "fell back", "ms")  # fmt: skip
    for ranks, each in ((64, 4),) if quick else ((64, 4), (64, 16), (64, 60), (2560, 4), (2560, 16)):
        for kind in COSTS:
            for limit in ("free", "equal counts", "token cap"):
                rows = []
                for seed in range(2 if quick else 5):
                    tokens = common.lognormal(ranks * each, seed)
                    home, nodes = homes_of(ranks, tokens)
                    given: dict[str, object] = {"equal_counts": True} if limit == "equal counts" else {}
                    if limit == "token cap":
                        given = {"sizes": tokens, "caps": int(max(tokens.max(), 1.1 * tokens.sum() / ranks))}
                    found, ms = timed(lambda t=tokens, h=home, n=nodes, k=kind, g=given: solvers.relocate(
                        common.priced(t, k), h, n, volumes=t, eps=EPS, **g), 2)  # fmt: skip
                    crosses, must = found.inter_node_volume, found.inter_node_bound
                    ratio = crosses / must if must else (1.0 if crosses == 0 else float("inf"))
                    rows.append([100 * crosses / int(tokens.sum()), ratio, int((found.loads > found.cap).sum()),
                                 bool(found.fell_back), ms])  # fmt: skip
                crosses, ratio, _, _, ms = np.median(rows, axis=0)
                sums = (int(sum(row[k] for row in rows)) for k in (2, 3))
                worst = max(row[1] for row in rows)
                table.row(f"{ranks:,} x {each}, {kind}", limit, f"{crosses:.2f}", ratio, worst, *sums, f"{ms:.1f}")


def eps(quick: bool) -> None:
    """Four samples a rank of the shipped log: what crosses, and must, by how much longer a step may take."""
    table = Table("ranks, cost", *(f"eps {each:.1%}: crosses, must, %" for each in (0.001, 0.005, 0.01, 0.02, 0.05)))
    for ranks in (64,) if quick else (64, 256):
        for kind in COSTS:
            cells = []
            steps = common.steps_of(common.log("mix"), 4 * ranks, 3 if quick else 10)
            groups = [groups_of(common.priced(lengths, kind), ranks) for lengths in steps]
            for most in (0.001, 0.005, 0.01, 0.02, 0.05):
                found = []
                for lengths, group in zip(steps, groups, strict=True):
                    asked = {"volumes": lengths, "groups": group, "eps": most}
                    each = solvers.relocate(common.priced(lengths, kind), *homes_of(ranks, lengths), **asked)
                    found.append(np.array([each.inter_node_volume, each.inter_node_bound]) / lengths.sum())
                cells.append(", ".join(f"{100 * share:.2f}" for share in np.mean(found, axis=0)))
            table.row(f"{ranks}, {kind}", *cells)


def methods(quick: bool) -> None:
    """Finished groups of lognormal lengths to ranks: what crosses by method, beside the optimum where it is had."""
    table = Table("ranks x samples", "greedy: crosses, %", "sum: crosses, %", "ms", "greedy over sum",
                  "ilp over sum", "its time over sum's")  # fmt: skip
    for ranks, each in ((64, 4),) if quick else ((64, 4), (64, 16), (64, 64), (2560, 4), (2560, 16)):
        names = ("greedy", "sum") + (("ilp",) if ranks == 64 else ())  # which has a variable for each group and node
        rows = []
        for seed in range(1 if quick else 3):
            lengths = common.lognormal(ranks * each, seed)
            home, nodes = homes_of(ranks, lengths)
            groups = solvers.partition(lengths, ranks, "lpt").group_of_item
            volumes, row = solvers.group_volumes(groups, home, lengths, ranks), []
            for name in names:
                found, ms = timed(lambda v=volumes, n=nodes, m=name: solvers.rearrange(v, n, m))
                solvers.check_rearrangement(volumes, nodes, found)
                row += [100 * found.inter_node_volume / int(lengths.sum()), ms]
            rows.append(row)
        greedy, _, best, ms, *exact = np.median(rows, axis=0).tolist()
        proven = (f"{exact[0] / best:.4f}", exact[1] / ms) if exact else ("", "")
        table.row(f"{ranks:,} x {each}", f"{greedy:.2f}", f"{best:.2f}", f"{ms:.1f}", greedy / best, *proven)


if __name__ == "__main__":
    common.main(__doc__, placements, limits, eps, methods)
