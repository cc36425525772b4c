"""What fuzzing has found, and what files look like that are meant to be, through every reader again."""

from contextlib import suppress
from pathlib import Path

import pytest
from targets import TARGETS, TOLD, run, seeds

CORPUS = Path(__file__).parent / "corpus"
FOUND = sorted(path for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", FOUND, ids=[f"{path.parent.name}: {path.name}" for path in FOUND])
def test_a_past_finding(path, tmp_path):
    run(path.parent.name, path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_what_fuzzing_begins_with(name, tmp_path):
    """Each file as it is, and cut off; were all of them refused, fuzzing would get nowhere."""
    accepted = 0
    for data in seeds(name).values():
        run(name, data[: len(data) // 2], tmp_path)
        with suppress(TOLD):
            TARGETS[name](data, tmp_path)
            accepted += 1
    assert accepted


def test_a_corpus_is_of_a_target():
    assert {path.parent.name for path in FOUND} <= set(TARGETS)
