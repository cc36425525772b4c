"""The reference has a place for every public name."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from balancer import DispatchPlan, StepPlan

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "balancer",
    "solvers",
    "solvers/pipeline",
    *(f"balancer/{name}" for name in ("cost", "executor", "simulate")),
)
ELSEWHERE = {"__version__", "pipeline"}


def public(package):
    text = (ROOT / package / "__init__.py").read_text()
    return set(ast.literal_eval(re.search(r"^__all__ = (\[.*?\])", text, re.S | re.M)[1])) - ELSEWHERE


def listed():
    """The names that the pages list, by module."""
    shown, module = {}, ""
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for line in page.read_text().splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split(":: ")[1]
            elif name := re.fullmatch(r"   (\w+)|\.\. py:data:: (\w+)", line):
                shown.setdefault(module, set()).add(name[1] or name[2])
    return shown


@pytest.mark.parametrize(("module", "name"), [("stream", "Traffic"), ("gaps", "Between"), ("gaps", "DeviceOp")])
def test_what_methods_of_plans_return_is_there(module, name):
    assert name in listed()[f"balancer.plan.{module}"]
    assert f"class {name}" in (ROOT / "balancer" / "plan" / f"{module}.py").read_text()


@pytest.mark.parametrize("kind", [DispatchPlan, StepPlan])
def test_all_that_a_plan_shows_is_explained(kind):
    fields = {field.name for field in dataclasses.fields(kind)}
    told = set(re.findall(r"^(?:    )?(\w[\w, ]*) : ", kind.__doc__, re.M))
    told = {name for names in told for name in names.split(", ")}
    shown = {name for name in dir(kind) if not name.startswith("_")}
    assert fields <= told
    assert {name for name in shown - fields if not getattr(kind, name).__doc__} == set()


@pytest.mark.parametrize("package", [*PACKAGES, "balancer/compat"])
def test_every_public_name_is_there(package):
    shown = listed()
    here = shown[package.replace("/", ".")]
    missing = public(package) - here
    if package not in ("balancer", "solvers"):  # what they offer, too, stands with them
        missing -= shown["balancer"] | shown["solvers"]
    assert missing == set()
    assert len(here) >= 2
