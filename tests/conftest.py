"""How hypothesis searches: the same examples at every run by default, many and new ones at night.

This file also puts its folder on ``sys.path`` (pytest's default import mode), so that tests can ``import oracles``.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [HealthCheck.too_slow]  # NUMBA_DISABLE_JIT=1 makes kernels a hundred times slower

settings.register_profile(
    "default", max_examples=60, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("nightly", max_examples=10_000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _commands_do_not_tell_what_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints must not depend on the state of the kernels' cache, nor on how busy the machine is."""
    monkeypatch.setattr("balancer.cli.run.TOLD_AFTER_S", float("inf"))
    monkeypatch.setattr("balancer.cli.run.LINE_AFTER_S", float("inf"))
