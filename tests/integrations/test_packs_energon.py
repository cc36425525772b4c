"""docs/how_to/packs.md: Energon's own loader asks the page's task encoder which samples of its buffer go together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("accelerate", "lightning", "megatron.energon", "torchdata", "transformers"):
    pytest.importorskip(package)

import numpy as np  # noqa: E402
from doc_blocks import blocks  # noqa: E402
from megatron.energon import Cooker, WorkerConfig, basic_sample_keys, get_loader, get_train_dataset, stateless  # noqa: E402

import balancer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "packs.md"
SAMPLES = [np.random.default_rng(i).integers(3, 60, 1 + 997 * i % 6000).tolist() for i in range(50)]


@stateless
def cook(sample):
    return {**basic_sample_keys(sample), "ids": sample["json"]["ids"]}


def test_its_loader_packs_as_we_do(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in SAMPLES))
    energon = Path(sys.executable).with_name("energon")
    subprocess.run([energon, "prepare", log, "--non-interactive"], check=True, capture_output=True)
    known = {"balancer": balancer}
    exec("\n".join(blocks(PAGE)["Packs in Energon"]), known)

    class Encoder(known["FewestPacks"]):
        cookers = (Cooker(cook),)

        @stateless
        def encode_sample(self, sample):
            return sample

        def pack_selected_samples(self, samples):
            return {"ids": [sample["ids"] for sample in samples]}

    found = list(get_loader(get_train_dataset(
        log, worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0), batch_size=None, packing_buffer_size=50,
        shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Encoder(), repeat=False,
    )))  # fmt: skip
    wanted = balancer.pack([len(ids) for ids in SAMPLES], 8192).rows.to_lists()
    assert sorted(pack["ids"] for pack in found) == sorted([SAMPLES[row] for row in rows] for rows in wanted)
