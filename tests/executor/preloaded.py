"""Imported once by the server from which ranks are forked."""

import torch
import torch._dynamo
import torch.distributed

import balancer
import balancer.executor
import balancer.orchestrator

torch.set_num_threads(1)
balancer.warmup(["auto"]) if "auto" in balancer.planner.COUNTED_METHODS else balancer.warmup()
