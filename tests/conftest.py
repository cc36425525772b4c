"""How hypothesis searches: the same examples at every run by default, many and new ones at night.

This file also puts its folder on ``sys.path`` (pytest's default import mode), so that tests can ``import oracles``.
"""

import os
import sys
from collections.abc import Iterator

import pytest
from by_night import is_by_night
from hypothesis import HealthCheck, settings

from solvers._jit import Kernel

# Whoever looks for docstrings' examples imports every file, and this one all trainers: it is for the ranks' server.
collect_ignore = ["executor/preloaded.py"]

# Threads of torch that wait for one another spin, and the suite's own processes keep all cores busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_SLOW_IS_FINE = [HealthCheck.too_slow]  # NUMBA_DISABLE_JIT=1 makes kernels a hundred times slower

settings.register_profile(
    "default", max_examples=60, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("nightly", max_examples=10_000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs by night."""
    for item in items:
        if is_by_night(item.nodeid):
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(autouse=True)
def _commands_tell_nothing_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints must not depend on the state of the kernels' cache, nor on how busy the machine is."""
    monkeypatch.setattr("balancer.cli.run.TOLD_AFTER_S", float("inf"))
    monkeypatch.setattr("balancer.cli.run.LINE_AFTER_S", float("inf"))


@pytest.fixture(autouse=True, scope="session")
def _a_kernel_is_compiled_for_one_signature() -> Iterator[None]:
    """Whatever the tests have called: another signature takes seconds more at somebody's first call."""
    yield
    kernels = {
        value
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in ("solvers", "balancer")
        for value in vars(module).values()
        if isinstance(value, Kernel)
    }
    several = {
        f"{kernel.__module__}.{kernel.__name__}": kernel.signatures for kernel in kernels if len(kernel.signatures) > 1
    }
    assert not several
