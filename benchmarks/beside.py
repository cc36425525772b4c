"""What a change did to plans: fixed families run on another commit and on this checkout, case by case in turn.

    python benchmarks/beside.py [COMMIT] [--only FAMILY]... [--draws N] [--seed TEXT] [--stop-at SHARE] [--list N]

COMMIT is b2a174ce if none is given: the last one before searches were joined. Its files are laid into out/beside/, and
both sides draw the same steps from this checkout's data/. The seed is a hash of HEAD, so each commit is judged on steps
that nobody has seen. A row says by how much makespans here are over those there (mean, 99th percentile, worst), how
many steps are over 1 % worse, plans that only one side finds, processor time, and near home the share of tokens that
crosses nodes with the fall-backs. Fallen back counts by one rule for both sides: a plan that says so, or one that
spares less than half of what could be spared of the crossing of finished groups.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from beside_families import FAMILIES

HERE = Path(__file__).parents[1]
WORSE = 1e-3  # a family's mean may not be worse by more
TITLES = """\
                             here over there, %      plans          milliseconds               crosses, %   fell back
family               steps    mean     p99   worst >1% lost new   there    here ratio   most   there  here there here"""

Row = dict[str, Any]


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(HERE), *words], check=True, capture_output=True, text=True).stdout.strip()


def laid_out(commit: str) -> Path:
    """The folder with a commit's two packages; it stays, with the kernels that were compiled in it."""
    folder = HERE / "out" / "beside" / git("rev-parse", "--short=12", f"{commit}^{{commit}}")
    if not folder.exists():
        folder.mkdir(parents=True)
        files = subprocess.run(
            ["git", "-C", str(HERE), "archive", commit, "solvers", "balancer"], check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], input=files.stdout, check=True)
    return folder


class Side:
    """A process that runs the cases with one side's packages, the next whenever it is asked."""

    def __init__(self, packages: Path, asked: str) -> None:
        path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
        worker = [sys.executable, str(HERE / "benchmarks" / "beside_families.py"), asked]
        self.process = subprocess.Popen(
            worker, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def next(self) -> Row | None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended: {self.process.wait()}")
        found: Row | None = json.loads(line)
        return found


def in_turn(there: Side, here: Side) -> Iterator[tuple[Row, Row]]:
    """Answers of both sides, one case after the other, so that both meet the machine in the same state."""
    while (a := there.next()) is not None and (b := here.next()) is not None:
        assert (a["family"], a["case"]) == (b["family"], b["case"])
        yield a, b


def share(value: float) -> str:
    return f"{100 * value:+7.3f}"


def row(name: str, pairs: list[tuple[Row, Row]]) -> tuple[str, list[str]]:
    """One family's row of the table, and what is wrong with it."""
    both = [(a, b) for a, b in pairs if "value" in a and "value" in b]
    lost = sum("value" in a and "value" not in b for a, b in pairs)
    new = sum("value" in b and "value" not in a for a, b in pairs)
    over = np.array([b["value"] / a["value"] - 1 for a, b in both] or [0.0])
    ms = np.array([[a["ms"], b["ms"]] for a, b in pairs])
    text = (
        f"{name:24} {len(pairs):3} {share(over.mean())} {share(np.quantile(over, 0.99))} {share(over.max())} "
        f"{(over > 0.01).sum():3} {lost:4} {new:3} {ms[:, 0].mean():7.1f} {ms[:, 1].mean():7.1f} "
        f"{ms[:, 1].sum() / ms[:, 0].sum():5.2f} {ms[:, 1].max():6.0f}"
    )
    if both and "crosses" in both[0][0]:
        crosses, fell = (np.array([[a[key], b[key]] for a, b in both]) for key in ("crosses", "fell_back"))
        text += f" {crosses[:, 0].mean():7.2f} {crosses[:, 1].mean():5.2f} {fell[:, 0].sum():6} {fell[:, 1].sum():4}"
    wrong = [f"{name}: {100 * over.mean():.3f} % worse on the mean"] if over.mean() > WORSE else []
    if lost:
        wrong.append(f"{name}: {lost} plans lost")
    below = [b["case"] for a, b in both if max(a["bound"], b["bound"]) > min(a["value"], b["value"])]
    wrong += [f"{name}, {case}: a bound is above a plan" for case in below]
    return text, wrong


def worse_steps(pairs: list[tuple[Row, Row]], most: int) -> Iterator[str]:
    """Steps over 1 % worse and plans lost, the worst first."""
    for a, b in pairs:
        if "value" in a and "value" not in b:
            yield f"  lost: {a['family']}, {a['case']}: {b['error']}"
    both = [(b["value"] / a["value"] - 1, a) for a, b in pairs if "value" in a and "value" in b]
    worse = sorted(((over, a) for over, a in both if over > 0.01), key=lambda pair: -pair[0])
    for over, a in worse[:most]:
        yield f"  {100 * over:+.2f} %: {a['family']}, {a['case']}"
    if len(worse) > most:
        yield f"  and {len(worse) - most} more"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commit", nargs="?", default="b2a174ce")
    parser.add_argument("--only", action="append", choices=FAMILIES, help="a family; give it as often as wanted")
    parser.add_argument("--draws", type=int, default=1, help="steps of each shape")
    parser.add_argument("--seed", help="a text in place of HEAD's hash, to see the same steps again")
    parser.add_argument("--stop-at", default="0.1%", help="gap at which searches stop; 0 for as far as they get")
    parser.add_argument("--list", type=int, default=40, help="worse steps to print at most")
    given = parser.parse_args()
    text = given.seed or git("rev-parse", "HEAD")
    seed = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
    names = given.only or list(FAMILIES)
    asked = json.dumps([names, seed, given.draws, given.stop_at])
    print(f"there {given.commit}, here {git('describe', '--always', '--dirty')}, seed {text[:12]}, to {given.stop_at}")
    print(TITLES)
    pairs: dict[str, list[tuple[Row, Row]]] = {}
    wrong: list[str] = []
    with ExitStack() as stack:
        there, here = (stack.enter_context(Side(packages, asked)) for packages in (laid_out(given.commit), HERE))
        for a, b in in_turn(there, here):
            if a["family"] not in pairs and pairs:
                wrong += shown(pairs)
            pairs.setdefault(a["family"], []).append((a, b))
        wrong += shown(pairs)
    print("\n".join(worse_steps([pair for family in pairs.values() for pair in family], given.list)))
    print("guards (no family 0.1 % worse on the mean, no plan lost): " + ("; ".join(wrong) or "kept"))


def shown(pairs: dict[str, list[tuple[Row, Row]]]) -> list[str]:
    """Print the row of the family that just ended."""
    text, wrong = row(*list(pairs.items())[-1])
    print(text, flush=True)
    return wrong


if __name__ == "__main__":
    main()
