"""Benchmarks run on one core and report ratios of one run: these machines are noisy, and so are others."""

import os

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def one_core():
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def lognormal_lengths(num_samples: int, seed: int = 0) -> np.ndarray:
    """Lengths as they come: mean 2,000, sigma 1, clipped at 32,768. int64[num_samples]."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(2000) - 0.5, 1.0, num_samples), 1, 32768).astype(np.int64)


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Leave the machine's names out of saved runs."""
    output_json.pop("machine_info", None)
