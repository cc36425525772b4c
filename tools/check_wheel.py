"""Install a wheel into a fresh environment, run its commands, and check a user's code with mypy and basedpyright.

Run: python tools/check_wheel.py dist/seqbalancer-VERSION-py3-none-any.whl; `make release` does.
"""

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAN = "plan lengths.csv --ranks 4 --batch-per-rank 8 --out plan.parquet"
COMMANDS = ("--version", PLAN, "report plan.parquet --html page.html", "plan --help")


def check_links(wheel: Path) -> None:
    """Refuse a page for the index whose links lead to files that are not there."""
    with zipfile.ZipFile(wheel) as held:
        page = held.read(next(name for name in held.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    if (found := re.findall(r'\]\((?!\w+:)[^)]+|src(?:set)?="(?!\w+:)[^"]+', page)) or "# seqbalancer" not in page:
        sys.exit(f"{wheel.name}: links of its page lead nowhere on an index, or it has none: {found}")


def main(wheel: Path) -> None:
    """Try it where nothing of the repository can be imported."""
    check_links(wheel)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")

        def run(program: str, *words: str) -> None:
            sys.stdout.write(f"{program} {' '.join(words)}\n")
            sys.stdout.flush()
            subprocess.run([programs / program, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)

        pinned = ("--quiet", "--constraint", str(ROOT / "constraints.txt"))
        run("pip", "install", *pinned, f"{wheel.resolve()}[plot]", "mypy", "basedpyright")
        (folder / "lengths.csv").write_text("tokens\n" + "".join(f"{100 + 37 * i % 900}\n" for i in range(64)))
        (folder / "consumer.py").write_bytes((ROOT / "tools" / "consumer.py").read_bytes())
        for command in COMMANDS:
            run("balancer", *command.split())
        run("python", "consumer.py")
        run("mypy", "--strict", "consumer.py")
        run("basedpyright", "--pythonpath", str(programs / "python"), "--level", "error", "consumer.py")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
