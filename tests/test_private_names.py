"""Only documented parts of other packages: what lint's rules (SLF001, TID251) do not see, and where they are off."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [file for folder in ("balancer", "solvers", "tools") for file in sorted((ROOT / folder).rglob("*.py"))]
OURS = {"balancer", "solvers"}
BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller"}
DOCUMENTED = {"_fields"}  # a NamedTuple's

# Each exception is explained where it stands.
EXCEPTIONS = {
    ("balancer/compat/huggingface.py", "_train_batch_size"),
}


def is_private(name):
    return name.startswith("_") and not name.endswith("__") and name not in DOCUMENTED


def private_names(tree):
    """Line and name of what other packages keep to themselves: modules, what is imported of them, names in strings."""
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [[*(node.module or "").split("."), alias.name] for alias in node.names]
        for parts in modules:
            yield from ((node.lineno, part) for part in parts if parts[0] not in OURS and is_private(part))
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            names = [part for text in texts for part in text.split(".")] if called in BY_NAME else []
            yield from ((node.lineno, name) for name in names if is_private(name))


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import numba.core._runtime, balancer._public", ["_runtime"]),
        ("from torch import _C, nn", ["_C"]),
        ("from solvers._jit import kernel", []),
        ("getattr(loader, '_dataloaders', [])", ["_dataloaders"]),
        ("operator.attrgetter('a._b')", ["_b"]),
        ("hasattr(value, '_fields') and getattr(value, '__dict__')", []),
    ],
)
def test_what_is_private_is_found(code, names):
    assert [name for _, name in private_names(ast.parse(code))] == names


def test_nothing_that_other_packages_keep_to_themselves_is_used():
    found = set()
    for file in FILES:
        name = file.relative_to(ROOT).as_posix()
        found |= {(name, private, line) for line, private in private_names(ast.parse(file.read_text()))}
    assert not [each for each in found if each[:2] not in EXCEPTIONS]


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
