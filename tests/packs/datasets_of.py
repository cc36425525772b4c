"""Lengths, logs and data sets that the tests of packs share."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def lengths_of(count, seed=0):
    """Lengths from 0 to 99, most of them short."""
    return np.minimum(np.random.default_rng(seed).lognormal(3, 1, count), 99).astype(np.int64)


def write_log(path, lengths):
    pq.write_table(pa.table({"n_tokens": np.ascontiguousarray(lengths)}), path)
    return str(path)


def samples_of(lengths, seed=0):
    """Tokenized samples of these lengths, with labels that differ from their tokens."""
    tokens = [np.random.default_rng([seed, i]).integers(3, 60, n).tolist() for i, n in enumerate(lengths)]
    return [{"input_ids": each, "labels": [token + 100 for token in each], "name": f"s{i}"}
            for i, each in enumerate(tokens)]  # fmt: skip
