"""The log that tests of whole runs share."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.register_assert_rewrite("run_cases")  # what differs is shown there too


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log of 1,000 rows: one file with small row groups, and three files of unequal size."""
    folder = tmp_path_factory.mktemp("logs")
    generator = np.random.default_rng(5)
    columns = {"tokens": generator.integers(1, 5000, 1000), "patches": generator.integers(0, 300, 1000)}
    table = pa.table(columns)
    pq.write_table(table, folder / "log.parquet", row_group_size=70)
    (folder / "many").mkdir()
    for name, (first, count) in {"a": (0, 333), "b": (333, 1), "c": (334, 666)}.items():
        pq.write_table(table.slice(first, count), folder / "many" / f"{name}.parquet", row_group_size=100)
    with pa.OSFile(str(folder / "log.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=90):
            writer.write_batch(batch)
    np.save(folder / "log.npy", columns["tokens"])
    (folder / "log.csv").write_text("tokens\n" + "".join(f"{value}\n" for value in columns["tokens"]))
    return folder
