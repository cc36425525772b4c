"""Coverage-guided fuzzing of the readers, by Atheris (libFuzzer on the branches of Python code); in `make nightly`.

Atheris has wheels for Linux on PyPI, is kept up, and catches what ends a process inside Arrow too, which a loop of
our own would not. It is no dependency: `make nightly` installs it; without it, the corpus is replayed all the same.

Run: python tests/fuzz/guided.py [--seconds S] [TARGET ...]. A finding is written to FOLDER/TARGET; put it into
`corpus/TARGET`, with a name that says what it is, and mend what it trips.
"""

import os
import subprocess
import sys
import tempfile
from argparse import SUPPRESS, ArgumentParser
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]


def fuzz(name: str, corpus: Path, seconds: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["balancer"]):
        import targets
    folder = Path(tempfile.mkdtemp())
    for seed, data in targets.seeds(name).items():
        (corpus / seed).write_bytes(data)
    given = [
        f"-max_total_time={seconds}",
        "-max_len=20000",
        "-timeout=60",
        f"-artifact_prefix={corpus.parent}/",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *given], lambda data: targets.run(name, data, folder))
    atheris.Fuzz()


def say(line: str) -> None:
    """Tell whoever runs it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Fuzz each target in a process of its own; 1 if anything was found."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--out", default="out/fuzz", help="where findings go")
    parser.add_argument("--one", metavar="CORPUS", help=SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        fuzz(asked.targets[0], Path(asked.one), asked.seconds)
    import targets

    failed = []
    for name in asked.targets or targets.TARGETS:
        corpus = Path(asked.out, name, "corpus")
        corpus.mkdir(parents=True, exist_ok=True)
        for past in (HERE / "corpus" / name).glob("*"):
            (corpus / past.name).write_bytes(past.read_bytes())
        say(f"--- {name}: {asked.seconds} s")
        command = [sys.executable, __file__, name, "--one", str(corpus), "--seconds", str(asked.seconds)]
        if subprocess.run(command, check=False, env={**os.environ, "PYTHONWARNINGS": "error"}).returncode:
            failed.append(name)
    say(f"findings in {', '.join(failed)}: see {asked.out}" if failed else "nothing found")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
