"""What the benchmarks run on: kernels that are compiled."""

import numpy as np

from solvers._jit import compile_at_once

compile_at_once()


def lognormal_lengths(num_samples: int, seed: int = 0) -> np.ndarray:
    """Lengths as they come: mean 2,000, sigma 1, clipped at 32,768. int64[num_samples]."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(2000) - 0.5, 1.0, num_samples), 1, 32768).astype(np.int64)
