"""A log of texts, images and audio, and the options that name its phases."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import balancer

RNG = np.random.default_rng(3)
ROWS, RANKS, BATCH = 50, 6, 3
TEXT = RNG.integers(1, 400, ROWS).tolist()
SIDES = [RNG.integers(20, 900, (RNG.integers(0, 4), 2)).tolist() for _ in range(ROWS)]
FRAMES = (RNG.integers(0, 2, ROWS) * RNG.integers(1, 900, ROWS)).tolist()
PATCHES = [
    sum(balancer.problem.items.qwen2vl_patches(*np.array(sides).reshape(-1, 2).T).tolist()) if sides else 0
    for sides in SIDES
]
LISTS = "(image_widths,image_heights)"
SHAPE = ("--ranks", RANKS, "--ranks-per-node", 2, "--batch-per-rank", BATCH)
_OTHERS = (
    "--set", "phase.audio.length=audio_frames", "--set", "phase.llm.length=text_tokens+audio_frames",
    "--set", "phase.llm.own=text_tokens", "--set", "phase.vision.bytes_in=7", "--set", "phase.vision.bytes_out=3",
    "--set", "phase.llm.bytes_in=4",
)  # fmt: skip
PHASES = ("--set", "phase.vision.length=image_patches", *_OTHERS)
ITEMS = (
    "--set",
    f"phase.vision.length=qwen2vl_patches{LISTS}",
    *_OTHERS,
    "--set",
    f"phase.vision.outputs=qwen2vl_tokens{LISTS}",
)
"""The same phases, each image an item."""


def write_phases(tmp_path):
    """Write the log; return its name."""
    columns = {
        "text_tokens": TEXT,
        "image_widths": pa.array([[w for w, _ in sides] for sides in SIDES], pa.list_(pa.int64())),
        "image_heights": pa.array([[h for _, h in sides] for sides in SIDES], pa.list_(pa.int64())),
        "image_patches": PATCHES,
        "audio_frames": FRAMES,
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    return "log.parquet"
