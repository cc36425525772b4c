"""Files and folders that a user may not read or not write: one line that names them, and nothing is lost or left."""

import pytest
from another_user import another_user, open_folder
from log_files import write_csv

SHAPE = ("--ranks", 2, "--batch-per-rank", 2)


@pytest.fixture
def folder(command, monkeypatch):
    """A folder with a log and its plans, in which nobody may write. All that commands load is loaded by then."""
    with open_folder() as found:
        monkeypatch.chdir(found)
        write_csv(found / "log.csv", [5, 40, 3, 22, 9, 1, 17, 8, 30])
        for out in ("plan.parquet", "parts/"):
            assert command("plan", "log.csv", *SHAPE, "--out", out).code == 0
            assert command("report", out).code == 0
        for path in (*found.rglob("*"), found):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield found


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(outcome, *words):
    assert (outcome.code, outcome.out) == (2, ""), outcome
    (line,) = outcome.err.splitlines()
    for word in (*words, "ermission"):
        assert word in line


@pytest.mark.parametrize("out", ["new.parquet", "parts/"])
def test_a_plan_into_a_folder_that_is_read_only(out, command, folder):
    before = contents(folder)
    with another_user():
        assert command("plan", "log.csv", *SHAPE, "--out", out).code == (0 if out == "parts/" else 2)  # which is whole
        outcome = command("plan", "log.csv", *SHAPE, "--set", "home=strided", "--overwrite", "--out", out)
    refused(outcome, out.rstrip("/"))
    assert contents(folder) == before


def test_a_page_into_a_folder_that_is_read_only(command, folder, tmp_path):
    pytest.importorskip("matplotlib")
    command("report", "plan.parquet", "--html", tmp_path / "r.html")  # loads what draws
    before = contents(folder)
    with another_user():
        outcome = command("report", "plan.parquet", "--html", "r.html")
    refused(outcome, "r.html")
    assert contents(folder) == before


def test_what_is_read_only_can_be_read(command, folder):
    with another_user():
        assert command("report", "parts/").code == 0
        assert command("plan", "log.csv", *SHAPE).code == 0


@pytest.mark.parametrize("name", ["plan.parquet", "part"])
def test_a_file_that_may_not_be_read(name, command, folder):
    path = next((folder / "parts").glob("part-*")) if name == "part" else folder / name
    path.chmod(0)
    with another_user():
        outcome = command("report", "parts/" if "part" in name and name != "plan.parquet" else "plan.parquet")
    refused(outcome, path.name)


def test_a_log_that_may_not_be_read(command, folder):
    (folder / "log.csv").chmod(0)
    with another_user():
        refused(command("plan", "log.csv", *SHAPE), "log.csv")
