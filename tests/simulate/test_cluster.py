"""Clusters: the ready ones, those from files, and what is refused."""

import json
from dataclasses import asdict, replace

import pytest

from balancer.errors import InputError
from balancer.simulate import CLUSTERS, PhaseModel, read_cluster

H100 = CLUSTERS["h100"]


@pytest.mark.parametrize("name", CLUSTERS)
def test_ready_clusters(name):
    cluster = read_cluster(name.upper())
    assert cluster is CLUSTERS[name]
    assert cluster.source
    assert cluster.inter_node_bytes_per_s < cluster.intra_node_bytes_per_s
    assert cluster.topology(64).node_sizes == (8,) * 8
    assert cluster.topology(3).node_sizes == (3,)
    assert cluster.with_ranks_of(4).topology(6).node_sizes == (2, 2, 2)
    assert cluster.with_ranks_of(16).topology(2).node_sizes == (1, 1)


def test_a_file_says_what_the_class_says(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(asdict(H100)))
    assert read_cluster(str(path)) == H100


@pytest.mark.parametrize("field", ["intra_node_bytes_per_s", "inter_node_bytes_per_s", "peak_flops", "memory_bytes"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "fast", True])
def test_what_must_be_positive(field, value):
    with pytest.raises(ValueError, match=f"{field} must be a finite number > 0, got"):
        replace(H100, **{field: value})


def test_other_fields():
    with pytest.raises(ValueError, match="intra_node_latency_s must be a finite number >= 0, got -1"):
        replace(H100, intra_node_latency_s=-1)
    assert replace(H100, inter_node_latency_s=0)
    with pytest.raises(ValueError, match="gpus_per_rank must divide the 8 GPUs of a node, or be a multiple of them"):
        H100.with_ranks_of(3)
    with pytest.raises(ValueError, match="gpus_per_rank"):
        H100.with_ranks_of(0)


def test_bad_files(tmp_path):
    path = tmp_path / "mine.json"
    values = asdict(H100)
    for text, message in (
        ("{", "cannot be read as JSON"),
        ("[]", "must hold an object"),
        (
            json.dumps({k: v for k, v in values.items() if k != "peak_flops"}),
            "peak_flops is missing: Of one GPU",
        ),
        (json.dumps({**values, "speed": 1}), "speed: there is no such key; known here are gpus_per_node, "),
        (json.dumps({**values, "source": 5}), "source must be text, got 5"),
        (json.dumps({**values, "gpus_per_rank": 3}), "mine.json: gpus_per_rank must divide the 8 GPUs of a node"),
        (
            json.dumps({**values, "inter_node_bytes_per_s": 0}),
            "inter_node_bytes_per_s must be a finite number > 0",
        ),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message) as error:
            read_cluster(str(path))
        assert str(path) in str(error.value)
    with pytest.raises(InputError, match="no such file"):
        read_cluster(str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="unknown cluster 'v100'; known are a100, h100, h200, b200"):
        read_cluster("v100")


def test_models(tmp_path):
    with pytest.raises(InputError, match="unknown model 'qwen9'; known are qwen2-7b"):
        PhaseModel.on("qwen9", 1e12, 0.5)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    with pytest.raises(InputError, match="hidden_size"):
        PhaseModel.on(str(path), 1e12, 0.5)
    for efficiency in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="efficiency must be > 0 and <= 1"):
            PhaseModel.on("qwen2-7b", 1e12, efficiency)
    with pytest.raises(ValueError, match="piece"):
        PhaseModel.on("internvit-6b", 1e12, 0.5, piece=0)
