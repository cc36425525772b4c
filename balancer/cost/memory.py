"""What a module holds on a GPU: parameters, gradients and optimizer by ZeRO stage, and what each layer keeps of tokens.

Parameters and gradients are bfloat16, Adam's two moments and a master copy float32: 2 + 2 + 12 bytes a parameter
(Rajbhandari et al. 2020, arXiv:1910.02054). Of a token each layer keeps what its products need of their inputs for the
backward (Korthikanti et al. 2022, arXiv:2205.05198), bfloat16, without dropout, and with attention that keeps no
weights (fused): their ``34 + 5 a s / h`` bytes a value of hidden size, less 2 for masks and all that grows with s.
"""

from typing import NamedTuple

from balancer.cost.shapes import AudioEncoder, Decoder, Module

ZERO_STAGES = (0, 1, 2, 3)
"""What data-parallel ranks share: nothing; the optimizer; gradients too; parameters too."""

_BYTES = 2  # of an activation, a parameter, a gradient: bfloat16
_OPTIMIZER_BYTES = 12
_LOGIT_BYTES = 6  # logits stand once in bfloat16, and once in float32 for the loss


class Kept(NamedTuple):
    """Bytes of one element of length, before any sharding."""

    per_layer: float  # that a layer keeps for the backward
    at_work: float  # of the one layer that is recomputed, besides; 0 without recomputation
    head: float  # of the vocabulary head


def state_bytes(parameters: float, zero_stage: int, num_shards: int, *, trained: bool = True) -> float:
    """Bytes of parameters, gradients and optimizer on a GPU.

    `parameters` are those that the GPU computes with, tensor and pipeline parallelism considered; `num_shards` ranks
    share what is sharded at this one of :data:`ZERO_STAGES`. What is not trained has parameters alone.

    Examples
    --------
    The figures of the ZeRO paper, 7.5 billion parameters on 64 GPUs, in GB:

    >>> [round(state_bytes(7.5, stage, 64), 1) for stage in (0, 1, 2, 3)]
    [120.0, 31.4, 16.6, 1.9]
    """
    parts = (_BYTES, _BYTES, _OPTIMIZER_BYTES) if trained else (_BYTES, 0, 0)
    shared_from = (3, 2, 1)
    return parameters * sum(
        part / (num_shards if zero_stage >= stage else 1) for part, stage in zip(parts, shared_from, strict=True)
    )


def kept_bytes(module: Module, *, recompute: bool) -> Kept:
    """Bytes that a module keeps of one element of length; with `recompute` layers keep their inputs alone."""
    per_element = 1 / module.frames_per_token if isinstance(module, AudioEncoder) else 1.0
    head = float(module.vocabulary * _LOGIT_BYTES) if isinstance(module, Decoder) else 0.0
    whole = sum(layer.kept for layer in module.parts) / module.layers * _BYTES * per_element
    if recompute:
        return Kept(module.hidden * _BYTES * per_element, whole, head)
    return Kept(whole, 0.0, head)
