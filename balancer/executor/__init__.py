"""Plans applied inside a training step, on torch.distributed.

It decides nothing: it gathers lengths, asks the planner, moves elements once, and puts things back. Start with
:class:`Dispatcher`.
"""

from solvers.errors import not_installed

try:
    import torch.distributed  # noqa: F401
except ImportError as error:
    raise ImportError(not_installed("balancer.executor", "PyTorch", "torch")) from error

from balancer.executor.context_exchange import ContextExchange, shift_labels
from balancer.executor.context_rows import ShardRows
from balancer.executor.dispatched import Dispatched
from balancer.executor.dispatcher import Dispatcher
from balancer.executor.fields import RaggedTensor
from balancer.executor.loss import anchored, count_labels, global_token_mean
from balancer.executor.prefetch import PrefetchDispatcher
from balancer.executor.ranks import ExecutorError
from balancer.executor.step_timer import StepTimer

__all__ = [
    "ContextExchange", "Dispatched", "Dispatcher", "ExecutorError", "PrefetchDispatcher", "RaggedTensor", "ShardRows",
    "StepTimer", "anchored", "count_labels", "global_token_mean", "shift_labels",
]  # fmt: skip
