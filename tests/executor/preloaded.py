"""Imported once by the server from which ranks are forked."""

import torch
import torch._dynamo
import torch.distributed

import balancer
import balancer.executor
import balancer.planning.step
from balancer.executor.byte_runs import compile_runs

torch.set_num_threads(1)
balancer.warmup(["auto"])
compile_runs()
