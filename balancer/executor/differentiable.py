"""The differentiable move: rows of activations along a route, and their gradients along the way back."""

from typing import Any

import torch
from torch import Tensor

from balancer.executor.peers import Peers
from balancer.executor.route import Route

__all__ = ["move_activations"]


class _Move(torch.autograd.Function):
    """Its own backward, on the way back: so that derivatives of any order are exchanges."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, route: Route, peers: Peers) -> Tensor:
        ctx.route, ctx.peers = route, peers
        return peers.move_activations(route, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Move.apply(gradients[0], ctx.route.back, ctx.peers), None, None


def move_activations(values: Tensor, route: Route, peers: Peers, differentiable: bool) -> Tensor:
    """Bring a rank's rows, on all ranks of one dtype and trailing shape, along a route.

    Whether gradients return is the same on all ranks: a rank whose own rows need no gradient, because it has none,
    takes part in the backward exchange nonetheless, or the others would wait for it.
    """
    if not (differentiable and torch.is_grad_enabled()):
        return _Move.apply(values.detach(), route, peers)
    if not values.requires_grad:
        values = values.detach().requires_grad_()
    return _Move.apply(values, route, peers)
