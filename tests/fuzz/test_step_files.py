"""Random step files: what is right is read and written back, and what is wrong is told in a line or two."""

import copy
import json
from decimal import Decimal

import numpy as np
import pytest

from balancer.described import as_dict, keys_of
from balancer.errors import InputError
from balancer.step import StepFile, step_of

FILES, PART = 2_500, 250
WRONG = (True, "no", "", " ", 0, -1, 2**70, 1.5, Decimal("NaN"), Decimal("-0.1"), [], [0], ["x"], [[1]], {}, {"x": 0},
         {"x": "y"}, {"x": {"y": 1}}, "1\n2", "é\x1b[31m", None)  # fmt: skip
OF_TYPE = {
    "integer": (1, 3, 4096),
    "number": (0.01, Decimal("0.5"), 2),
    "boolean": (True, False),
    "string": ("linear", "tokens+x"),
}
KEYS = list(keys_of(StepFile))


def right(rng, key):
    """Draw a value that this key takes."""
    schema = key.schema
    while "anyOf" in schema:
        schema = schema["anyOf"][rng.integers(len(schema["anyOf"]))]
    if "enum" in schema or "const" in schema:
        return str(rng.choice(schema.get("enum", [schema.get("const")])))
    if key.name in ("cost", "stop_at", "eps", "tokens_within"):
        return "padded" if key.name == "cost" else str(rng.choice(["0.1%", "0.25", "0"]))
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if key.name == "limits":
        return [{"kind": "everywhere", "values": "images"}, {"kind": "count", "most": 8}][: rng.integers(1, 3)]
    if kind == "array":
        return [1, 2, 4][: schema.get("maxItems", 3)]
    if kind == "object":
        return {"llm": 2, "vision+audio": 1}
    of_type = [value for value in OF_TYPE[kind] if kind != "integer" or value >= schema.get("minimum", 0)]
    return of_type[rng.integers(len(of_type))]


def drawn(rng):
    """Draw a step that is right: some keys of the top, one to three phases, tables, and a cut of one kind."""
    said = {key.name: right(rng, key) for key in KEYS if not key.table and rng.random() < 0.3}
    names = [["all"], ["vision", "llm"], ["vision", "audio", "llm"]][rng.integers(3)]
    said["phase"] = [
        {key.name: right(rng, key) for key in KEYS if key.table == "phase" and rng.random() < 0.2} | {"name": name}
        for name in names
    ]
    for table in ("plan", "deferral"):
        said[table] = {key.name: right(rng, key) for key in KEYS if key.table == table and rng.random() < 0.3}
    kinds = [key.of_kind for key in KEYS if key.of_kind]
    kind = str(rng.choice(kinds))
    needed = ("stages", "degree", "pack_tokens", "kind")
    said["cut"] = {
        key.name: right(rng, key)
        for key in KEYS if key.of_kind == kind and (key.name in needed or rng.random() < 0.3)
    }  # fmt: skip
    return {name: value for name, value in said.items() if value != {} or rng.random() < 0.5}


def spoilt(rng, said):
    """Return a step with one thing wrong, and the last part of its place."""
    said = copy.deepcopy(said)
    tables = [said, *said["phase"], *(said[name] for name in ("plan", "deferral", "cut") if said.get(name))]
    table = tables[rng.integers(len(tables))]
    if rng.random() < 0.3:
        name = str(rng.choice(["tokns", "schedule", "rank", "ranks_per_nod", "kindd", "x y", ""]))
        table[name] = 3
        return said, name
    name = str(rng.choice(list(table)))
    table[name] = WRONG[rng.integers(len(WRONG))]
    return said, name


@pytest.mark.parametrize("part", range(FILES // PART))
def test_random_step_files(part):
    rng, wrong = np.random.default_rng(part), 0
    for _ in range(PART):
        said = drawn(rng)
        step = step_of(said, "step.toml")
        again = step_of(json.loads(json.dumps(as_dict(step))), "step.toml")
        assert as_dict(again) == as_dict(step)
        odd, name = spoilt(rng, said)
        try:
            step_of(odd, "step.toml")
        except InputError as error:
            wrong += 1
            told = str(error)
            assert told.startswith("step.toml: "), told
            assert len(told.splitlines()) == 1, told
            assert "Input should be" not in told, told
            assert name in told or "no kind of cut" in told or "phase" in told, (name, told)
    assert wrong > PART // 2
