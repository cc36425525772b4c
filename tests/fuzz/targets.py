"""What is fuzzed: every reader of files and words that others wrote; bytes in, and only errors that are told out."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pyarrow.parquet as pq
from plan_files import header_of, sealed, with_header

import balancer
from balancer.cost import parse_cost
from balancer.cost.hf_config import read_config
from balancer.cost.named import MODELS
from balancer.cost.throughput import ThroughputCurve
from balancer.errors import InputError, PlanError
from balancer.io.log import default_columns, open_log, parse_length, read_columns
from balancer.io.measurements import read_measurements
from balancer.offline.load import checked_steps
from balancer.offline.run import plan_run
from balancer.offline.settings import LogSettings
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.simulate.cluster import CLUSTERS, read_cluster
from solvers.errors import SolverError

TOLD = (InputError, PlanError, SolverError)
BATCH = {"a": [5, 4, 3, 22, 9, 1, 7, 8], "b": [1, 0, 3, 0, 0, 4, 0, 1]}
PHASES = (balancer.Phase("vision", "b"), balancer.Phase("llm", "a+b", own="a"))
LOGS = (".csv", ".jsonl", ".tsv", ".parquet", ".arrow", ".npy", ".manifest", "")


def log(data: bytes, folder: Path) -> None:
    """A log, whose name the first byte chooses: each column in every way, then the one that is its length."""
    path = folder / f"log{LOGS[data[0] % len(LOGS) if data else 0]}"
    path.write_bytes(data[1:])
    found = open_log(path)
    columns = found.columns[:6]
    asked = [({"length": (name,)}, (), ()) for name in columns]
    asked += [({}, (name,), ()) for name in columns] + [({}, (), (name,)) for name in columns]
    for sums, keys, lists in asked:
        _if_told(lambda sums=sums, keys=keys, lists=lists: read_columns(found, sums, keys, lists))
    read_columns(found, {"length": default_columns(found)})


def plan(data: bytes, folder: Path) -> None:
    """A plan file, byte by byte."""
    path = folder / "plan.parquet"
    path.write_bytes(data)
    list(checked_steps(path))


def description(data: bytes, folder: Path) -> None:
    """What a plan says of itself, the rows as they were: a saved one, or one of a log."""
    saved, of_log = _plans(folder)
    text = _sealed(data)
    for path in (saved, of_log):
        with_header(path, text)
        _if_told(lambda path=path: list(checked_steps(path)))


def part(data: bytes, folder: Path) -> None:
    """What a part of a plan says of itself."""
    where = _plan_folder(folder)
    with_header(where, _sealed(data))
    list(checked_steps(where))


def measurements(data: bytes, folder: Path) -> None:
    """Measured steps, and a curve of throughput; the first byte chooses the name."""
    path = folder / f"steps{LOGS[data[0] % 4 if data else 0]}"
    path.write_bytes(data[1:])
    _if_told(lambda: read_measurements(path))
    ThroughputCurve.from_csv(path)


def config(data: bytes, folder: Path) -> None:
    """A model's config.json, and a cluster's file."""
    path = folder / "config.json"
    path.write_bytes(data)
    _if_told(lambda: read_cluster(str(path)))
    for module in read_config(path).values():
        _if_told(lambda module=module: module.flops(checkpointing=True).cost_model())


def words(data: bytes, folder: Path) -> None:
    """Words of a command line: costs, lengths, functions of items."""
    text = data.decode("utf-8", errors="surrogateescape")
    for read in (parse_cost, parse_length, lambda text: balancer.Phase("p", text), lambda text: _setup(text)):
        with suppress(*TOLD, ValueError):  # of an argument
            read(text)


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    target.__name__: target for target in (log, plan, description, part, measurements, config, words)
}


def run(name: str, data: bytes, folder: Path) -> None:
    """Try one input; raises what the reader should not have."""
    _if_told(lambda: TARGETS[name](data, folder))


def _if_told(read: Callable[[], object]) -> None:
    try:
        read()
    except TOLD as error:
        if len(str(error).splitlines()) > 4:
            raise AssertionError(f"an error of many lines: {error}") from error


def _setup(text: str) -> None:
    balancer.orchestrate({"a": [1, 2], "b": [3, 4]}, {"p": text}, balancer.Topology.uniform(2))


def _sealed(data: bytes) -> bytes:
    """Say of a description that it is the one that was written, so that what it says is looked at."""
    try:
        return json.dumps(sealed(json.loads(data))).encode()
    except (ValueError, TypeError, LookupError, RecursionError):
        return data


@cache
def _plans(folder: Path) -> tuple[Path, Path]:
    """A plan that was saved, and one that `balancer plan` would write."""
    saved, of_log = folder / "saved.parquet", folder / "of_log.parquet"
    cut = balancer.MicroBatches(9, over_long="own", allow_empty=True)
    balancer.orchestrate(BATCH, PHASES, balancer.Topology.uniform(4, 2), cut=cut).save(saved)
    _write_plan(folder, of_log)
    return saved, of_log


@cache
def _plan_folder(folder: Path) -> Path:
    where = folder / "parts"
    _write_plan(folder, where)
    return where


def _write_plan(folder: Path, out: Path) -> None:
    rows = zip(*BATCH.values(), strict=True)
    (folder / "log.csv").write_text("".join(f"{a},{b}\n" for a, b in (tuple(BATCH), *rows)))
    setup = Setup(balancer.Topology.uniform(2), PHASES, PlanSettings())
    plan_run(open_log(folder / "log.csv"), LogSettings(setup, 2), str(out) if out.suffix else f"{out}/")


def seeds(name: str) -> dict[str, bytes]:
    """Inputs to begin with: whole files, as they are meant to be."""
    folder = Path(mkdtemp())
    saved, of_log = _plans(folder)
    headers = [pq.read_schema(path).metadata[b"balancer"] for path in (saved, of_log)]
    found = {
        "plan": [saved.read_bytes(), of_log.read_bytes()],
        "description": headers,
        "part": [json.dumps(header_of(_plan_folder(folder))).encode()],
        "log": [
            b"\0a,b\n1,2\n",
            b"\0length\n1\n2\n",
            b'\1{"a": 1, "b": [2, 3]}\n{"a": 1.5}\n',
            b'\6{"duration": 1.5}\n',
        ],
        "measurements": [
            b"\0tokens,flops_per_second\n100,1e14\n",
            b"\0lengths,seconds\n1 2,0.5\n",
            b'\1{"step": 1, "length": 2, "seconds": 0.5}\n',
        ],
        "config": [
            *(json.dumps(model).encode() for model in MODELS.values()),
            json.dumps({"model_type": "qwen2_vl", "vision_config": {}, **MODELS["qwen2-7b"]}).encode(),
            json.dumps(
                {
                    "model_type": "llava",
                    "vision_config": {"model_type": "clip_vision_model"},
                    "text_config": {"model_type": "llama"},
                }
            ).encode(),
            json.dumps(asdict(CLUSTERS["h100"])).encode(),
        ],
        "words": [b"quadratic:a=24576,b=1", b"flops:qwen2-7b", b"a+b", b"a", b"qwen2vl_patches(a,b)"],
    }
    return {f"seed-{i}": data for i, data in enumerate(found[name])}
