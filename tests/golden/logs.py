"""The small logs that the recorded commands read, cut from the shipped ones or drawn from seeds."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).resolve().parents[2] / "data"


def write_logs(folder):
    """Write all of them into a folder."""
    omni = pq.read_table(DATA / "omni_mix_dev.parquet")
    pq.write_table(omni.slice(0, 3000), folder / "omni.parquet")
    pq.write_table(pq.read_table(DATA / "docs_msdev_interleaved.parquet").slice(0, 1000), folder / "pages.parquet")
    pq.write_table(_constrained(omni.slice(3000, 1000)), folder / "rollouts.parquet")
    _write_flat(folder)
    _write_clips(folder / "clips.jsonl")
    _write_measured_steps(folder / "steps.csv", noise=0.02)
    _write_measured_steps(folder / "noisy.csv", noise=0.5)


def _constrained(table):
    """Add what constraints are about: prompts, memory, and the ranks (of 8) on which a row may run."""
    rows = np.arange(len(table))
    rng = np.random.default_rng(2)
    allowed = [sorted(rng.choice(8, size, replace=False).tolist()) for size in rng.integers(2, 9, len(rows))]
    more = {
        "tokens": pa.array(np.minimum(table["text_tokens"].to_numpy() + table["image_tokens"].to_numpy(), 9000)),
        "prompt": pa.array(rows // 4 * 3 % 101),
        "kv_blocks": pa.array(rng.integers(1, 60, len(rows))),
        "may_run_on": pa.array(allowed),
        "only_rank": pa.array([[0]] * len(rows)),
        "note": pa.array([f"row {row}" for row in rows]),
    }
    for name, column in more.items():
        table = table.append_column(name, column)
    return table


def _write_flat(folder):
    rng = np.random.default_rng(3)
    lengths = np.minimum(rng.lognormal(6, 1, 500), 8192).astype(np.int64).tolist()
    (folder / "lengths.csv").write_text("tokens\n" + "".join(f"{length}\n" for length in lengths))
    (folder / "odd.csv").write_text("tokens,text\n" + "5,a\n-3,b\n,c\nmany,d\n")
    np.save(folder / "lengths.npy", np.asarray(lengths))
    seconds = rng.integers(50, 3000, 200) / 100
    rows = [{"audio_filepath": f"{i}.wav", "duration": s, "text": "a b"} for i, s in enumerate(seconds.tolist())]
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_clips(path):
    """Write samples with lists: several images and clips each, and text in several segments."""
    rng = np.random.default_rng(4)
    rows = []
    for i in range(256):
        images = rng.integers(1, 40, rng.integers(0, 4)).tolist()
        clips = rng.integers(1, 90, rng.integers(0, 3)).tolist()
        segments = rng.integers(1, 60, rng.integers(1, 4)).tolist()
        put_out = [-(-clip // 2) for clip in clips]
        row = {"row": i, "images": images, "clips": clips, "put_out": put_out, "segments": segments}
        row |= {"images_total": sum(images), "clips_total": sum(clips)}
        rows.append(row | {"total": sum(images) + sum(put_out) + sum(segments)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_measured_steps(path, noise):
    rng = np.random.default_rng(1)
    rows = ["lengths,seconds"]
    for _ in range(60):
        lengths = np.minimum(rng.lognormal(6.5, 1, rng.integers(1, 12)), 16384).astype(np.int64)
        seconds = 0.012 + 1.14e-4 * lengths.sum() + 1.5e-9 * (lengths * lengths).sum()
        seconds *= np.exp(noise * rng.standard_normal())
        rows.append(f"{' '.join(map(str, lengths))},{float(seconds)!r}")
    path.write_text("\n".join(rows) + "\n")
