"""A rank of test_shared_prompts.py: its share of responses, prompts computed once, by the code of the page."""

import sys

import numpy as np
import torch
import torch.distributed as dist
from shared_prompts_case import MODEL, drawn, page

import balancer

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
prompts, responses = drawn()
key = [k for k, of_prompt in enumerate(responses) for _ in of_prompt]
every = [(prompts[k], each) for k, of_prompt in enumerate(responses) for each in of_prompt]
lengths = [len(prompt) + len(each) for prompt, each in every]
plan = balancer.balance(lengths, dist.get_world_size(), prefix=key, prefix_length=[len(prompt) for prompt, _ in every])
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
if rank == 0:
    np.savez(sys.argv[1], loss=total.numpy(), gradients=gradients.numpy())
dist.destroy_process_group()
