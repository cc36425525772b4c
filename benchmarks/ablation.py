"""What each part of the searches buys: everything on, then each part left out, by family.

Run: python benchmarks/ablation.py [FAMILY ...] [--jobs 2] [--draws N] [--skip N] [--once] [--only NAME]. Because twins
hide one another, parts are then taken out one after the other, those of least use first, as long as all that went costs
nothing that shows; and the table is made again of what is left. `--once` stops after the first table, `--skip` takes
other steps than those that a value was chosen on. A part shows if leaving it out costs,
beyond the standard error of paired differences, 5 ppm of the mean gap (50 of fewer than 512 items; a step counts 200
times that at most), 0.3 points of what is proven, 0.1 of what crosses nodes or 0.5 of what moves inside them. It does
not if that is less with the error added, and is unsure where the error is larger: give more draws.

Budgets are work, so that all columns but milliseconds are the same on every machine. Parts are in ablation_parts.py,
steps in ablation_cases.py. What lies inside one kernel is in no table here; constants.py switches moves off.
"""

import argparse
import contextlib
import functools
import importlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import ablation_cases as cases
import ablation_parts as parts
import numpy as np
from ablation_cases import Case, Score
from ablation_parts import Over, Part

LIMITS = np.array([5.0, 50.0, 0.3, 0.1, 0.5])  # of a mean loss, as the columns of Score
MOST = np.array(
    [1000.0, 10_000.0, 100.0, 100.0, 100.0]
)  # that one step counts: gaps of tiny steps jump by whole percents


class Family(NamedTuple):
    parts: tuple[Part, ...]
    cases: Callable[[int], Iterator[Case]]
    draws: int  # for about two minutes of two cores


FAMILIES = {
    "search": Family(parts.SEARCH, cases.partition, 4),
    "search_equal": Family(parts.SEARCH, functools.partial(cases.partition, equal_counts=True), 4),
    "search_rules": Family(parts.SEARCH_RULES, cases.rules, 2),
    "search_few": Family(parts.SEARCH_RULES, cases.rules_few, 4),
    "schedules": Family(parts.SCHEDULES, cases.schedules, 2),
    "relocation": Family(parts.RELOCATION, cases.relocation, 20),
    "relocation_equal": Family(parts.RELOCATION, functools.partial(cases.relocation, equal_counts=True), 10),
    "near_home": Family(parts.NEAR_HOME, cases.slots_near_home, 2),
    "sequence_groups": Family(parts.SEQUENCE_GROUPS, cases.sequence_groups, 1),
    "long_short": Family(parts.LONG_SHORT, cases.long_short, 2),
    "prefixes": Family(parts.PREFIXES, cases.prefixes, 1),
    "prefix_slots": Family(parts.PREFIX_SLOTS, cases.prefix_slots, 1),
    "deferral": Family(parts.DEFERRAL, cases.deferral, 1),
    "packs": Family(parts.PACKS, cases.packs, 2),
    "even_packs": Family(parts.EVEN_PACKS, functools.partial(cases.packs, even_cost=True), 2),
    "context": Family(parts.CONTEXT, cases.context, 1),
    "pipelines": Family(parts.PIPELINES, cases.pipelines, 2),
    "gaps": Family(parts.GAPS, cases.gaps, 1),
}


class Loss(NamedTuple):
    """What leaving a part out costs on average, and the standard error: float64[5], 0 of what does not apply."""

    mean: np.ndarray
    error: np.ndarray

    @classmethod
    def of(cls, whole: np.ndarray, without: np.ndarray) -> "Loss":
        worse = np.clip((without - whole)[:, :-1], -MOST, MOST) * np.array([1, 1, -1, 1, 1])
        count = (~np.isnan(worse)).sum(axis=0)
        mean = np.nansum(worse, axis=0) / np.maximum(count, 1)
        return cls(mean, np.sqrt(np.nansum((worse - mean) ** 2, axis=0) / np.maximum(count * (count - 1), 1)))

    @property
    def use(self) -> float:
        """The most that it costs, in limits."""
        return float((self.mean / LIMITS).max())

    @property
    def shows(self) -> str:
        if ((self.mean - self.error) / LIMITS).max() >= 1:
            return "yes"
        small = self.use < 1 and (self.error / LIMITS).max() < 1
        return "no" if small or ((self.mean + self.error) / LIMITS).max() < 1 else "unsure"


@contextlib.contextmanager
def left_out(some: tuple[Part, ...]) -> Iterator[None]:
    """Put what stands in place of some parts where Python looks for them, for as long as this lasts."""
    with contextlib.ExitStack() as back:
        for target, instead in itertools.chain.from_iterable(part.instead.items() for part in some):
            module, _, path = target.partition(":")
            *outer, name = path.split(".")
            owner = functools.reduce(getattr, outer, importlib.import_module(module))
            stands = owner.__dict__[name]
            back.callback(setattr, owner, name, stands)
            setattr(owner, name, instead.make(stands) if isinstance(instead, Over) else instead)
        yield


class Draws(NamedTuple):
    """Of each shape of a step: the first so many, or so many after those that are skipped."""

    count: int
    skipped: int = 0


@functools.cache
def cases_of(family: str, draws: Draws) -> list[Case]:
    cases_to = FAMILIES[family].cases
    return list(cases_to(draws.skipped + draws.count))[len(list(cases_to(draws.skipped))) if draws.skipped else 0 :]


def solve(family: str, draws: Draws, names: frozenset[str], k: int) -> Score:
    """Solve the k-th case without the parts of these names."""
    with left_out(tuple(part for part in FAMILIES[family].parts if part.name in names)):
        return cases_of(family, draws)[k]()


def scores(family: str, draws: Draws, without: frozenset[str], run: Callable) -> np.ndarray:
    """Scores of all cases: float64[cases, 6]."""
    found = run(functools.partial(solve, family, draws, without), range(len(cases_of(family, draws))))
    return np.array(list(found), dtype=float)


def cells(found: np.ndarray, applies: np.ndarray) -> list[str]:
    columns = {c: found[~np.isnan(found[:, c]), c] for c in range(5) if applies[c]}
    gaps = [f"{columns[c].mean():,.1f}, {np.quantile(columns[c], 0.9):,.1f}" for c in columns if c < 2]
    return [*gaps, *(f"{columns[c].mean():.2f}" for c in columns if c >= 2), f"{found[:, 5].mean():.1f}"]


def heads(applies: np.ndarray) -> str:
    gap = "gap, ppm: mean, 90th percentile"
    names = [gap, f"few items: {gap}", "proven, %", "crosses, %", "inside, %"]
    kept = [name for name, used in zip(names, applies, strict=True) if used]
    first = ["left out", *kept, "ms", *(f"costs {name.split(':')[0].split(',')[0]}" for name in kept), "shows"]
    return f"| {' | '.join(first)} |\n|---|" + "--:|" * (len(first) - 1)


def row(name: str, found: np.ndarray, loss: Loss | None, applies: np.ndarray) -> str:
    columns = [name, *cells(found, applies)]
    if loss is not None:
        pairs = zip(loss.mean, loss.error, (2, 2, 2, 3, 3), applies, strict=True)
        columns += [f"{mean:+.{digits}f} ± {error:.{digits}f}" for mean, error, digits, used in pairs if used]
        columns.append(loss.shows)
    else:
        columns += [""] * (int(applies.sum()) + 1)
    return f"| {' | '.join(columns)} |"


def ablate(family: str, draws: Draws, run: Callable, once: bool, only: str) -> None:
    """Print what each part costs alone, what goes one after the other, and what each part that is left costs then."""
    names = [part.name for part in FAMILIES[family].parts if only in part.name]
    print(f"\n## {family}: {len(cases_of(family, draws))} cases\n", flush=True)
    scores(family, Draws(1), frozenset(), run)  # compiles
    everything = scores(family, draws, frozenset(), run)
    everything[everything[:, 0] == cases.FAILED.gap, :-1] = np.nan  # what has no answer says nothing
    losses = table("Each alone", family, draws, dict.fromkeys(names, run), [], everything)
    if once:
        return
    gone: list[str] = []
    applies = ~np.isnan(everything[:, :-1]).all(axis=0)
    print(f"One after the other, as long as all that went surely costs nothing that shows:\n\n{heads(applies)}")
    for name in sorted(names, key=lambda name: losses[name].use):
        if losses[name].shows != "yes":
            found = scores(family, draws, frozenset([*gone, name]), run)
            found[:, :-1][np.isnan(everything[:, :-1])] = np.nan
            loss = Loss.of(everything, found)
            print(row(name, found, loss, applies), flush=True)
            gone += [name] if loss.shows == "no" else []
    whole = scores(family, draws, frozenset(gone), run)
    whole[:, :-1][np.isnan(everything[:, :-1])] = np.nan
    left = [name for name in names if name not in gone]
    losses = table(f"Without {', '.join(gone) or 'nothing'}", family, draws, dict.fromkeys(left, run), gone, whole)
    for verdict in ("yes", "unsure", "no"):
        print(f"Shows, {verdict}: {', '.join(name for name in left if losses[name].shows == verdict) or '(none)'}.")
    print(f"Goes: {', '.join(gone) or '(nothing)'}.", flush=True)


def table(
    title: str, family: str, draws: Draws, runs: dict[str, Callable], gone: list[str], whole: np.ndarray
) -> dict[str, Loss]:
    """Print what leaving each of these parts out costs besides those gone; return that. `runs`: by part, its runner."""
    applies = ~np.isnan(whole[:, :-1]).all(axis=0)
    print(f"\n{title}:\n\n{heads(applies)}\n{row('(none)', whole, None, applies)}", flush=True)
    losses = {}
    for name, run in runs.items():
        found = scores(family, draws, frozenset([*gone, name]), run)
        found[:, :-1][np.isnan(whole[:, :-1])] = np.nan
        losses[name] = Loss.of(whole, found)
        print(row(name, found, losses[name], applies), flush=True)
    print()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="*", choices=[[], *FAMILIES], help="by default all")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--draws", type=int, help="of each shape of a step, in place of the family's own")
    parser.add_argument("--skip", type=int, default=0, help="so many draws first: a value is chosen on other steps")
    parser.add_argument("--once", action="store_true", help="the first table alone")
    parser.add_argument("--only", default="", help="parts with this in their name")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        run = map if given.jobs == 1 else functools.partial(pool.map, chunksize=4)
        for family in given.family or FAMILIES:
            ablate(family, Draws(given.draws or FAMILIES[family].draws, given.skip), run, given.once, given.only)
    spent = os.times()
    print(f"\n{sum(spent[:4]) / 60:.1f} minutes of processor time, all processes together.")


if __name__ == "__main__":
    main()
