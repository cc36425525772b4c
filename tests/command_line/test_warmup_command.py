"""``balancer warmup``, what commands say of compiling, and how processes share the work of it."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import balancer
from balancer.cli import run

pytestmark = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

KERNEL = """
    import json, sys, time
    from numba.core import event
    compiled = []
    sys.path.insert(0, {folder!r})
    from slow import slow
    from solvers._jit import compile_at_once
    compile_at_once()
    print("ready", flush=True)
    sys.stdin.readline()
    with event.install_timer("numba:compile", compiled.append):
        found = slow(20)
    print(json.dumps([found, len(compiled)]))
"""


@pytest.fixture
def script(tmp_path):
    """A program that calls a kernel, from a cache of its own; and what it needs in its environment."""
    (tmp_path / "slow.py").write_text(
        textwrap.dedent("""
            from solvers._jit import kernel

            @kernel
            def slow(n):
                total = 0
                for i in range(n):
                    total += i
                return total
        """)
    )
    return textwrap.dedent(KERNEL.format(folder=str(tmp_path))), os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kept")
    }


def test_of_processes_that_start_together_one_compiles(script):
    code, environment = script
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert [found for found, _ in told] == [190] * 4
    assert sum(count for _, count in told) == 1
    again = subprocess.run(
        [sys.executable, "-c", code], env=environment, input="\n", capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout.splitlines()[-1]) == [190, 0]


def test_nobody_waits_for_a_process_that_was_killed(script, tmp_path):
    _, environment = script
    holding = """
        import sys, time
        from solvers._jit import alone
        with alone(sys.argv[1]):
            print("held", flush=True)
            time.sleep(600)
    """
    lock = tmp_path / "held.lock"
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(holding), str(lock)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    waiting = """
        import sys
        from solvers._jit import alone
        print("waits", flush=True)
        with alone(sys.argv[1]):
            print("held")
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(waiting), str(lock)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "waits\n"
    time.sleep(0.5)
    assert other.poll() is None  # waits as long as the owner lives
    owner.send_signal(signal.SIGKILL)
    assert other.communicate(timeout=60)[0] == "held\n"
    owner.wait()
    owner.stdout.close()


def test_a_warm_cache_leaves_nothing_to_compile(command):
    balancer.warmup(["auto"])
    again = command("warmup", "--for", "plan", "--jobs", "2", "--json")
    told = json.loads(again.out)
    assert (told["kernels"], told["compile_s"], told["processes"]) == (0, 0.0, 2)


@pytest.mark.parametrize(
    ("words", "told"), [(("--jobs", "0"), "0 is not in the range"), (("--for", "x"), "'x' is not one")]
)
def test_bad_words(command, words, told):
    done = command("warmup", *words)
    assert done.code == 2
    assert told in done.err


def test_a_command_says_that_it_compiles_and_what_it_took(monkeypatch, capsys):
    monkeypatch.setattr(run, "TOLD_AFTER_S", 0.0)
    with run.Compiled.watched() as compiled:
        import numba

        numba.njit(lambda n: n + 1)(1)
    assert compiled.kernels == 1
    assert compiled.seconds > 0
    lines = capsys.readouterr().err.splitlines()
    assert re.match("balancer: compiling kernels that are not on disk yet: (the first|1 so far) of at most", lines[0])
    assert lines[-1].startswith("balancer: compiled 1 kernel in")


def test_one_kernel_that_takes_long_is_told_before_it_is_done(monkeypatch, capsys):
    monkeypatch.setattr(run, "TOLD_AFTER_S", 0.0)
    compiled = run.Compiled(quiet=False)
    compiled.begin()
    compiled._timer.join()
    assert "not on disk yet: the first of at most some 30" in capsys.readouterr().err
    compiled.end()


def test_a_command_that_fails_says_what_it_compiled(monkeypatch, capsys):
    monkeypatch.setattr(run, "TOLD_AFTER_S", 0.0)
    import numba

    def divided(n):
        return 1 // n

    with pytest.raises(ZeroDivisionError), run.Compiled.watched():
        numba.njit(divided)(0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("balancer: compiled 1 kernel in")
