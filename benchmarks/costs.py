"""What does it cost to plan by full attention where a model has windows, scans or sparse attention?

    python benchmarks/costs.py [waiting] [parameters] [--quick]

`waiting`: logs of data/ are planned for 16 ranks twice, as if every layer were the model's with most attention and saw
all that is before, and by the model's own cost. Both plans are priced by the model's own cost; waiting is the part of
all ranks' time at which they wait for the slowest. `parameters`: beside the published ones, which checks the models.
About a minute of one core; `--quick` ten seconds.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import Table

import balancer
from balancer.cost import read_config

LOGS = {
    "documents, cut at 32,768": ("documents", 32_768),
    "documents, cut at 131,072": ("documents", 131_072),
    "mix": ("mix", None),
}
"""Logs by name, and the context at which rows are cut."""

RANKS, SAMPLES, STEPS = 16, 64, 20
MODELS = {
    "Gemma 3 27B": (
        {
            "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "vocab_size": 262208,
            "sliding_window": 1024, "sliding_window_pattern": 6,
        },
        27.0, None, "Gemma 3 Technical Report (arXiv:2503.19786), table 1: 1,416 M and 25,600 M, without vision",
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
            "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4,
        },
        20.91, 3.61, "gpt-oss model card (arXiv:2508.10925), table 1",
    ),
    "Llama 4 Scout": (
        {
            "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "vocab_size": 202048, "attention_chunk_size": 8192, "num_local_experts": 16, "num_experts_per_tok": 1,
        },
        109, 17, "Model card Llama-4-Scout-17B-16E (2025), vision encoder included",
    ),
    "Olmo 3 32B": (
        {
            "model_type": "olmo3", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40,
            "num_key_value_heads": 8, "intermediate_size": 27648, "vocab_size": 100278, "sliding_window": 4096,
        },
        32, None, "Model card Olmo-3-1125-32B (2025)",
    ),
    "Qwen3-Next 80B-A3B": (
        {
            "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936,
            "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512, "num_experts_per_tok": 10,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        },
        80, 3, "Model card Qwen3-Next-80B-A3B (2025)",
    ),
    "Kimi Linear 48B-A3B": (
        {
            "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32,
            "intermediate_size": 9216, "vocab_size": 163840, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256, "num_experts_per_token": 8,
            "num_shared_experts": 1, "moe_intermediate_size": 1024, "first_k_dense_replace": 1,
            "linear_attn_config": {
                "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            },
        },
        48, 3, "Kimi Linear (arXiv:2510.26692)",
    ),
    "MiMo-V2-Flash": (
        {
            "model_type": "mimo_v2_flash", "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
            "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384,
            "vocab_size": 152576, "sliding_window": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
        },
        309, 15, "MiMo-V2-Flash Technical Report (arXiv:2601.02780)",
    ),
    "DeepSeek-V3.2": (
        {
            "model_type": "deepseek_v32", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
            "intermediate_size": 18432, "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64,
        },
        671, 37, "DeepSeek-V3 Technical Report (arXiv:2412.19437), without indexers",
    ),
    "GLM-5": (
        {
            "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
            "intermediate_size": 12288, "vocab_size": 154880, "q_lora_rank": 2048, "kv_lora_rank": 512,
            "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
        },
        744, 40, "GLM-5 (arXiv:2602.15763)",
    ),
}  # fmt: skip
"""By name: configuration, billions of parameters published, those active, and where."""


def lengths_of(name: str) -> np.ndarray:
    log, context = LOGS[name]
    return common.log(log) if context is None else np.minimum(common.log(log), context)


def costs_of(shape: Any) -> tuple[balancer.CostModel, balancer.CostModel]:
    """Return the model's own cost, and that if all its layers had full attention, as its layer with the most has."""
    flops = shape.flops()
    most = max(sum(value for _, value in layer.pairs) for layer in shape.unlike)
    full = replace(flops, areas={"full": 3 * most * shape.layers})  # forward and backward
    return flops.cost_model(), full.cost_model()


def share_waited(lengths: np.ndarray, plan_cost: balancer.CostModel, own_cost: balancer.CostModel, steps: int) -> float:
    """Return the share of all ranks' time at which they wait, of plans by one cost, priced by the other."""
    busy = slowest = 0.0
    for of_step in common.steps_of(lengths, RANKS * SAMPLES, steps):
        plan = balancer.balance(of_step, RANKS, cost=plan_cost)
        loads = np.bincount(plan.rank_of_sample, own_cost.sample_costs(of_step).astype(float), RANKS)
        busy, slowest = busy + loads.sum(), slowest + RANKS * loads.max()
    return 1 - busy / slowest


def models(quick: bool) -> Iterator[tuple[str, Any, tuple]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, (config, *published) in list(MODELS.items())[: 2 if quick else None]:
            (path := Path(folder) / "config.json").write_text(json.dumps(config))
            yield name, read_config(path)["llm"], tuple(published)


def waiting(quick: bool) -> None:
    """Waiting, % of all ranks' time, by plans for full attention and by the model's own cost."""
    table = Table("model", "its layers see", *(f"{log}: full, own" for log in LOGS))
    for name, shape, _ in models(quick):
        own, full = costs_of(shape)
        cells = [[100 * share_waited(lengths_of(log), cost, own, 3 if quick else STEPS) for cost in (full, own)]
                 for log in LOGS]  # fmt: skip
        table.row(name, ", ".join(area for area, _ in own.areas), *(f"{a:.2f}, {b:.2f}" for a, b in cells))


def parameters(quick: bool) -> None:
    """Billions of parameters beside the published ones; active ones without the embedding that is looked up."""
    table = Table("model", "all", "published", "active", "published", "source")
    for name, shape, (whole, active, source) in models(quick):
        embedding = 0 if shape.tied else shape.hidden * shape.vocabulary
        own = shape.parameters / 1e9, (shape.active_parameters - embedding) / 1e9
        table.row(name, f"{own[0]:,.2f}", f"{whole:,g}", f"{own[1]:,.2f}", active or "", source)


if __name__ == "__main__":
    common.main(__doc__, waiting, parameters)
