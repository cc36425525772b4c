"""Steps to write into plan files and folders, and what readers must see of them."""

import os
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from balancer.io.plan_folder import PartName, parts_in, remove_parts, written
from balancer.io.plan_reader import open_plan
from balancer.io.plan_rows import PlanStep
from balancer.io.plan_writer import PlanWriter

DESCRIPTION = {"digest": "äbc", "num_ranks": 4, "phases": ["vision", "llm"], "gap": None}
FORMS = pytest.mark.parametrize("form", ["plan.parquet", "plan/"])


def make_step(rng: np.random.Generator, step: int, phase: str, count: int, *, extra: bool = False) -> PlanStep:
    sample = rng.integers(0, 2**62, count)
    rank, slot, position = rng.integers(0, 2**31, (3, count)).astype(np.int32)
    length = rng.integers(0, 2**40, count) if extra else None
    return PlanStep(step, phase, sample, rank, slot, position, length, rank[::-1] if extra else None)


def make_steps(sizes: list[int], *, seed: int = 0, extra: bool = False) -> list[PlanStep]:
    """Two phases a step, each with a size of its own."""
    rng = np.random.default_rng(seed)
    return [make_step(rng, i // 2, ("vision", "llm")[i % 2], n, extra=extra) for i, n in enumerate(sizes)]


def append_all(writer: PlanWriter, steps: list[PlanStep]) -> None:
    for s in steps:
        given = {name: getattr(s, name) for name in ("sample", "rank", "slot", "position", "length", "home_rank")}
        writer.append(s.step, s.phase, **{name: each for name, each in given.items() if each is not None})


def write(
    path: str, steps: list[PlanStep], *, description: dict | None = None, per_part: int = 1, key: str = "ab"
) -> Path:
    """Write a file, or a folder in whose parts there are so many of these steps."""
    extra = ("length", "home_rank") if any(s.length is not None for s in steps) else ()
    described = DESCRIPTION if description is None else description
    if not path.endswith("/"):
        with PlanWriter(path, extra) as writer:
            append_all(writer, steps)
            return writer.close(described)
    with written(path, key * 8):
        firsts = range(0, len(steps), per_part)
        for number, first in enumerate(firsts):
            name = PartName(key * 8, number, len(firsts))
            with PlanWriter(f"{path}{name}", extra) as writer:
                append_all(writer, steps[first : first + per_part])
                mine = {"part": number, "first_step": first, "steps": 1, "samples": 1, "digest": "00"}
                writer.close(described | mine, key=key * 8)
    remove_parts(path, (part for part in parts_in(path) if part.key != key * 8))
    return Path(path)


def merged(steps: list[PlanStep]) -> list[PlanStep]:
    """What a reader must see: empty steps leave no trace, neighbours of one step and phase are one."""
    names = [name for name in PlanStep.__slots__ if name not in ("step", "phase")]
    result = []
    for key, run in groupby((s for s in steps if len(s.sample)), key=lambda s: (s.step, s.phase)):
        pieces = list(run)
        columns = {n: [getattr(piece, n) for piece in pieces] for n in names}
        arrays = {n: np.concatenate(c) for n, c in columns.items() if c[0] is not None}
        result.append(PlanStep(*key, **arrays))
    return result


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def target(tmp_path: Path, form: str) -> str:
    return f"{tmp_path}{os.sep}{form}"  # pathlib would drop the trailing slash


def assert_tidy(tmp_path: Path, form: str) -> None:
    """Nothing but the plan is there."""
    if not form.endswith("/"):
        assert os.listdir(tmp_path) == [form]
        return
    assert os.listdir(tmp_path) == [form[:-1]]
    folder = tmp_path / form
    assert set(os.listdir(folder)) == {part.name for part in open_plan(folder).parts}
