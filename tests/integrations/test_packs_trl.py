"""docs/how_to/packs.md: TRL's trainer runs the page's block, and a pack is to the model what its samples are alone."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
for package in ("accelerate", "datasets", "lightning", "torchdata", "transformers", "trl"):
    pytest.importorskip(package)

import numpy as np  # noqa: E402
from datasets import Dataset  # noqa: E402
from doc_blocks import blocks  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import SFTConfig, SFTTrainer, pack_dataset  # noqa: E402

import balancer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "packs.md"
SAMPLES = [np.random.default_rng(i).integers(3, 60, 2 + 5 * i % 31).tolist() for i in range(64)]
LENGTHS = [len(sample) for sample in SAMPLES]
QUIET = {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "max_steps": 3}


@pytest.fixture
def model():
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **shape)).double()


@pytest.fixture
def tokenizer():
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def test_the_block_of_the_page_trains(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    balancer.pack(LENGTHS, 64, per_step=4).save("packs.parquet")
    before = [weights.clone() for weights in model.parameters()]
    known = {"dataset": Dataset.from_dict({"input_ids": SAMPLES}), "model": model, "tokenizer": tokenizer,
             "folder": "out", "more": QUIET}  # fmt: skip
    exec("\n".join(blocks(PAGE)["Packs in TRL"]), known)
    trainer, packed = known["trainer"], known["packed"]
    assert trainer.state.global_step == 3
    assert any((old != new).any() for old, new in zip(before, model.parameters(), strict=True))
    batches = list(trainer.get_train_dataloader())
    assert [batch["input_ids"][0].tolist() for batch in batches] == [pack["input_ids"] for pack in packed]
    assert [batch["position_ids"][0].tolist() for batch in batches] == [pack["position_ids"] for pack in packed]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "free", [{"packing": True}, {"padding_free": True, "max_length": None}], ids=["packed", "free"]
)
def test_a_pack_is_to_the_model_what_its_samples_are_alone(model, tokenizer, tmp_path, free, attention):
    model.set_attn_implementation(attention)
    packs = balancer.pack(LENGTHS, 64)
    packed = balancer.PackedDataset(Dataset.from_dict({"input_ids": SAMPLES}), packs)
    arguments = SFTConfig(
        str(tmp_path), dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns=False,
        per_device_train_batch_size=1, train_sampling_strategy="sequential", **free, **QUIET,
    )  # fmt: skip
    trainer = SFTTrainer(model, arguments, train_dataset=packed.to_datasets(), processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    (rows, *_), inputs = packs.rows.to_lists(), {name: batch[name] for name in batch if name != "labels"}
    assert len(rows) > 1
    with torch.no_grad():
        alone = torch.cat([model(input_ids=torch.tensor([SAMPLES[row]])).logits[0] for row in rows])
        together = model(**inputs).logits[0]
        joined = model(input_ids=inputs["input_ids"]).logits[0]  # with nothing said of where samples begin
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert (joined - alone).abs().max() > 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_never_more_packs_than_trl_makes(seed):
    lengths = np.minimum(np.random.default_rng(seed).lognormal(3, 1, 500), 100).astype(int).clip(1)
    whole = Dataset.from_dict({"input_ids": [[0] * length for length in lengths]})
    theirs = pack_dataset(whole, 100, "bfd", map_kwargs={"batch_size": 500, "keep_in_memory": True})
    assert len(balancer.pack(lengths, 100)) <= len(theirs)
