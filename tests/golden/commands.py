"""The command line, run in this process as ``python -m balancer`` runs it, and what it leaves behind."""

import contextlib
import gc
import hashlib
import io
import json
import os
import re
import runpy
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from golden.logs import DATA, write_logs
from golden.told import rounded, sha

import balancer
from balancer.offline.load import checked_steps

_CLOCK = (
    "runtime_s", "compile_s", "peak_memory_mb", "planned_samples_per_second", "planned_ms_a_step",
    "checked_samples_per_second", "checked_ms_a_step",
)  # fmt: skip
_SECONDS = re.compile(
    r"\b[0-9.,]+ s(: [0-9.,]+ ms a step, in [0-9.,]+ MB of memory)?(; kernels compiled, which are kept: [0-9]+ s)?$"
)
_BY_THE_CLOCK = ("balancer: compil", '{"progress":')
_TERMINAL = {"COLUMNS": "120", "NO_COLOR": "1"}
_COLUMNS = ("step", "phase", "sample", "item", "rank", "slot", "position")


def told_of(commands):
    """Run commands one after the other in a folder with all the logs, and tell of each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_logs(folder)
        with contextlib.chdir(folder):
            return {f"{i} {command}": _told_of(command, folder) for i, command in enumerate(commands)}


def _told_of(command, folder):
    text, _, stdin = command.partition(" <<< ")
    words = shlex.split(text.replace("{data}", str(DATA)))
    code, out, err = _run(words, stdin)
    told = {"code": code, "err": _lines(err, folder)}
    if code == 0 and "--json" in words:
        told["json"] = rounded(_without_clock(json.loads(out.replace(str(DATA), "{data}"))))
    else:
        told["out"] = _lines(out, folder)
    if code == 0 and "--out" in words:
        told["file"] = _of_file(words[words.index("--out") + 1])
    return told


def _run(words, stdin):
    """Return exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    sys.modules.pop("balancer.__main__", None)
    with (
        mock.patch.dict(os.environ, _TERMINAL),
        mock.patch.object(sys, "argv", ["balancer", *words]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_module("balancer", run_name="__main__")
            code = None
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        finally:  # a command does without at its end, as the process that it is ends there
            gc.unfreeze()
            gc.enable()
    said = [line for line in err.getvalue().splitlines(True) if not line.startswith(_BY_THE_CLOCK)]
    return code, out.getvalue(), "".join(said)


def _lines(text, folder):
    """Return the lines of a text, without paths and clock."""
    text = text.replace(str(folder), "{folder}").replace(str(DATA), "{data}")
    return [_SECONDS.sub("(seconds)", line.rstrip()) for line in text.splitlines()]


def _without_clock(document):
    if isinstance(document, dict):
        return {key: _without_clock(value) for key, value in document.items() if key not in _CLOCK}
    return [_without_clock(value) for value in document] if isinstance(document, list) else document


def _of_file(name):
    """Tell of a plan file: as anyone with pyarrow reads it, and as the library does."""
    path = Path(name)
    parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    table = pa.concat_tables([pq.read_table(part) for part in parts])
    columns = {column: _of_column(table[column]) for column in _COLUMNS if column in table.column_names}
    told = {"rows": len(table), "columns": columns}
    if not path.is_dir():
        description = json.loads(pq.read_schema(path).metadata[b"balancer"])["description"]
        told |= {key: description[key] for key in ("digest", "steps", "samples")}
    told["loaded"] = sha([_as_loaded(step["all"] if step.is_single else step) for step in checked_steps(name)])
    return told


def _as_loaded(plan):
    if not isinstance(plan, balancer.DispatchPlan):
        return [plan.digest(), plan.mode, plan.encoders_first, [_as_loaded(of.plan) for of in plan.phases.values()]]
    certificate = [plan.makespan, plan.lower_bound, plan.bound_name, plan.status.value]
    return [plan.digest(), *certificate, plan.placement, repr(plan.eps), plan.fell_back, plan.num_slots, plan.method]


def _of_column(column):
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        return hashlib.sha256("\n".join(column.to_pylist()).encode()).hexdigest()
    return hashlib.sha256(np.asarray(column, dtype="<i8").tobytes()).hexdigest()
