"""Prompts, responses, a model and what ranks do with them, by the code of docs/how_to/shared_prompts.md."""

import re
from pathlib import Path

import torch
import torch.distributed as dist
import transformers

import balancer

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


def trains(rank):
    """Return loss and gradients of a rank's share of responses, summed over ranks; prompts are computed once."""
    prompts, responses = drawn()
    key = [k for k, of_prompt in enumerate(responses) for _ in of_prompt]
    every = [(prompts[k], each) for k, of_prompt in enumerate(responses) for each in of_prompt]
    lengths = [len(prompt) + len(each) for prompt, each in every]
    prompt_lengths = [len(prompt) for prompt, _ in every]
    plan = balancer.balance(lengths, dist.get_world_size(), prefix=key, prefix_length=prompt_lengths)
    assert plan.prompt_copies.max() > 1  # else nothing is tried of copies
    code, model = page(), MODEL()
    count = sum(len(each) for _, each in every)
    total = torch.zeros((), dtype=torch.float64)
    mine = plan.samples_on_rank(rank).tolist()
    for k in dict.fromkeys(key[i] for i in mine):
        loss = code["summed_loss"](model, prompts[k], [every[i][1] for i in mine if key[i] == k]) / count
        loss.backward()
        total += loss.detach()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for each in (total, gradients):
        dist.all_reduce(each)
    return float(total), gradients.numpy()
