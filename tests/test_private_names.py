"""Only documented parts of other packages: what lint's rules (SLF001, TID251) do not see, and where they are off."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [file for folder in ("balancer", "solvers", "tools") for file in sorted((ROOT / folder).rglob("*.py"))]
OURS = {"balancer", "solvers"}
IMPORTS = re.compile(r"^ *(?:from +([\w.]+) +import +(?:\(([^)]*)\)|(.*))|import +(.*))$", re.MULTILINE)
BY_NAME = re.compile(r"""(?:getattr|hasattr|setattr|delattr|attrgetter|methodcaller)\([^()]*?["']([\w.]+)["']""")
DOCUMENTED = {"_fields"}  # a NamedTuple's

# Each exception is explained where it stands.
EXCEPTIONS = {
    ("balancer/compat/huggingface.py", "_train_batch_size"),
}


def is_private(name):
    return name.startswith("_") and not name.endswith("__") and name not in DOCUMENTED


def private_names(text):
    """What other packages keep to themselves: modules, what is imported of them, names in strings."""
    for words, several, few, alone in IMPORTS.findall(re.sub(r" as \w+", "", text)):
        imported = re.findall(r"[\w.]+", alone) if alone else [words]
        parts = [(path.split(".")[0], name) for path in imported for name in path.split(".")]
        parts += [(words.split(".")[0], name) for name in re.findall(r"\w+", several or few)]
        yield from (name for package, name in parts if package and package not in OURS and is_private(name))
    for text_in_call in BY_NAME.findall(text):
        yield from (name for name in text_in_call.split(".") if is_private(name))


def test_nothing_that_other_packages_keep_to_themselves_is_used():
    found = {(file.relative_to(ROOT).as_posix(), name) for file in FILES for name in private_names(file.read_text())}
    assert found <= EXCEPTIONS
    assert [*private_names("from torch import (\n    _C,\n)\ngetattr(loader, '_dataloaders')")] == [
        "_C",
        "_dataloaders",
    ]


def test_lint_is_off_where_an_exception_says_why_alone():
    off = []
    for file in FILES:
        lines = file.read_text().splitlines()
        off += [(file.relative_to(ROOT).as_posix(), line) for line in lines if re.search("noqa.*(SLF001|TID251)", line)]
    for name, line in off:
        assert re.search(r"noqa: (SLF001|TID251) \(.+\)", line), f"{name}: {line.strip()} gives no reason"
        assert any(name == file and private in line for file, private in EXCEPTIONS), (
            f"{name}: {line.strip()} is no exception that the list names"
        )
