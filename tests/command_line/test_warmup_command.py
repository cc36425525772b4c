"""``balancer warmup``, and what commands say of compiling."""

import json
import os
import re
from types import SimpleNamespace

import pytest

import balancer
import solvers._jit as jit
from balancer.cli import run

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")


def test_a_warm_cache_leaves_nothing_to_compile(command):
    balancer.warmup(["auto"])
    again = command("warmup", "--for", "plan", "--jobs", "1", "--json")
    told = json.loads(again.out)
    assert (told["kernels"], told["compile_s"], told["processes"]) == (0, 0.0, 1)


@pytest.mark.parametrize(
    ("words", "told"), [(("--jobs", "0"), "0 is not in the range"), (("--for", "x"), "'x' is not one")]
)
def test_bad_words(command, words, told):
    done = command("warmup", *words)
    assert done.code == 2
    assert told in done.err


@pytest.fixture
def compiling(monkeypatch):
    """A kernel that no cache has, and commands that tell at once."""
    monkeypatch.setattr(run, "TOLD_AFTER_S", 0.0)
    monkeypatch.setattr(jit, "_folder", lambda: None)
    return jit.kernel


def test_a_command_says_that_it_compiles_and_what_it_took(compiling, capsys):
    with run.Compiled.watched() as compiled:
        assert compiling(lambda n: n + 1)(1) == 2
    assert compiled.kernels == 1
    assert compiled.seconds > 0
    lines = capsys.readouterr().err.splitlines()
    assert re.match(r"balancer: First run: compiling kernels \([12] of about 12\). They are kept on disk.", lines[0])
    assert lines[-1].startswith("balancer: compiled 1 kernel in")


def test_a_command_that_fails_says_what_it_compiled(compiling, capsys):
    with pytest.raises(ZeroDivisionError), run.Compiled.watched():
        compiling(lambda n: 1 // n)(0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("balancer: compiled 1 kernel in")


@pytest.mark.parametrize(
    ("cores", "quiet", "said"), [(2, False, ["start", "terminate"]), (1, False, []), (2, True, [])]
)
def test_a_second_core_compiles_the_rest_of_a_first_plan(monkeypatch, cores, quiet, said):
    """While this process compiles relocation; it ends with the command. A warm-up has its own processes."""
    done = []

    class Process:
        def __init__(self, target, daemon):
            assert target is run.make_first_plan
            assert daemon
            self.start, self.terminate = (lambda word=word: done.append(word) for word in ("start", "terminate"))

    monkeypatch.setattr(run, "cores", lambda: cores)
    monkeypatch.setattr(run.multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=Process))
    with run.Compiled.watched(quiet) as compiled:
        for kernel in ("_scan", "relocate_kernel", "bring_under"):
            compiled.note(kernel, True)
            compiled.note(kernel, False)
    assert done == said
