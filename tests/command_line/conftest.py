"""The command line in this process: what it prints, and how it exits."""

import io
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from balancer.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output on one line, single-spaced: how wide the terminal is does not matter."""
        return " ".join(self.out.split())


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Run `balancer ...` in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: Any, stdin: str | None = None) -> Outcome:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), printed.out, printed.err)

    return run
