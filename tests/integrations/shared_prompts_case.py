"""Prompts, responses and a model, the same in every process, and the code of docs/how_to/shared_prompts.md."""

import re
from pathlib import Path

import torch
import transformers

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "shared_prompts.md"


def page():
    """Run the page's code for trainers, and return its names."""
    found = {}
    exec(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[1], found)
    return found


def drawn():
    """Return prompts, and of each its responses: tokens."""
    torch.manual_seed(3)
    sizes = [(7, (3, 9, 1)), (12, (4, 4, 6, 2)), (5, (11, 8))]
    prompts = [torch.randint(0, 50, (size,)) for size, _ in sizes]
    return prompts, [[torch.randint(0, 50, (size,)) for size in of_prompt] for _, of_prompt in sizes]


def MODEL():  # noqa: N802
    """Return a small Llama in float64."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double()
    norms = [name for name, module in model.named_modules() if type(module).__name__ == "LlamaRMSNorm"]
    for name in norms:  # which the library computes in float32
        model.set_submodule(name, torch.nn.RMSNorm(16, eps=config.rms_norm_eps, dtype=torch.float64))
    return model
