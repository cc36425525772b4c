"""The recorded command lines of plans, written as step files, give the recorded plans."""

import json
import os
import shlex

import pytest
from golden.commands import told_of
from golden.record import recording_of
from golden.step_files import as_step

FAMILIES = ("one_phase", "several_phases")
NOT_HERE = "full log"  # it says nothing of a step that others do not, and takes seconds


def recorded():
    """Yield the stories with plan files: of each its plans' command lines, and what was told of their files."""
    for family in FAMILIES:
        for story, told in json.loads(recording_of(family).read_text(encoding="utf-8")).items():
            files = {name.partition(" ")[2]: each["file"] for name, each in told.items() if "file" in each}
            if files and story != NOT_HERE:
                yield pytest.param(files, id=f"{family}: {story}")


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="kernels in Python are a hundred times slower")
@pytest.mark.parametrize("files", list(recorded()))
def test_step_files_give_the_recorded_plans(files, tmp_path):
    commands = {}
    for number, line in enumerate(files):
        text, rest = as_step(shlex.split(line)[1:])
        step = tmp_path / f"{number}.toml"
        step.write_text(text)
        commands[line] = shlex.join(["plan", *rest, "--step", str(step)])
    told = list(told_of(commands.values()).values())
    for (line, file), found in zip(files.items(), told, strict=True):
        assert found["code"] == 0, (line, found["err"])
        assert found["file"] == file, line
