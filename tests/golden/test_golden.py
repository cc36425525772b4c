"""Plans, plan files, documents and errors are what they were when they were recorded; see record.py."""

import json
import os

import pytest
from golden.cases import CASES
from golden.record import recording_of
from golden.told import first_difference

NAMES = [(family, name) for family, cases in CASES.items() for name in cases]
RECORDED = {family: json.loads(recording_of(family).read_text(encoding="utf-8")) for family in CASES}


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="kernels in Python are a hundred times slower")
@pytest.mark.parametrize(("family", "name"), NAMES, ids=[": ".join(names) for names in NAMES])
def test_as_recorded(family, name):
    found = json.loads(json.dumps(CASES[family][name]()))
    difference = first_difference(RECORDED[family].get(name), found)
    if difference is not None:
        pytest.fail(f"{family}: {name}: not as recorded: {difference}", pytrace=False)


def test_nothing_was_left_out():
    assert {family: sorted(cases) for family, cases in CASES.items()} == {
        family: sorted(recorded) for family, recorded in RECORDED.items()
    }
