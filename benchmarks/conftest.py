"""Benchmarks run on one core and report ratios of one run: these machines are noisy, and so are others."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_core():
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Leave the machine's names out of saved runs."""
    output_json.pop("machine_info", None)
