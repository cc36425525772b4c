"""Plan the shipped log repeated to ten million rows, reading and writing included: samples a second and peak memory.

Run: python benchmarks/plan_log.py [rows]. On Linux it keeps to one core.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
LENGTH = ["text_tokens", "image_tokens", "audio_tokens"]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "repeated.parquet"
        once = pq.read_table(LOG, columns=LENGTH)
        pq.write_table(pa.concat_tables([once] * (rows // len(once) + 1)).slice(0, rows), log)
        for method, placement in (("lpt", "any"), ("auto", "any"), ("auto", "relocate")):
            plan = Path(folder) / "plan.parquet"
            command = [sys.executable, "-c", "from balancer.cli.main import main; main()", "plan", str(log), "--json"]
            command += ["--ranks", "64", "--ranks-per-node", "8", "--batch-per-rank", "16", "--method", method]
            command += ["--placement", placement]
            command += ["--length", "+".join(LENGTH), "--out", str(plan)]
            printed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            print(
                f"{method:5} {placement:9} {printed['samples']:,} samples in {printed['runtime_s']:.2f} s: "
                f"{printed['samples_per_second'] / 1e6:.1f} million samples a second; "
                f"plan file {plan.stat().st_size / rows:.2f} bytes a row"
            )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    print(f"peak memory of the largest run: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
