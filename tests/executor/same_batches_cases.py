"""What ranks do in tests of loaders that deal nothing out: mini-batches of lengths that all ranks know."""

import torch

from balancer.executor import Dispatcher, PrefetchDispatcher


def batch(lengths, rank):
    return {"ids": [torch.full((length,), rank) for length in lengths]}


def dispatches(rank, steps, arguments):
    """Dispatch steps, each the lengths of all ranks, or of every rank; return how many went well."""
    dispatcher, done = Dispatcher(length="ids", **arguments), 0
    for lengths in steps:
        dispatcher.dispatch(batch(lengths[rank] if lengths and isinstance(lengths[0], list) else lengths, rank))
        done += 1
    return done


def prefetches(rank, steps):
    """The same with steps made ahead."""
    loader = [batch(lengths, rank) for lengths in steps]
    return len(list(PrefetchDispatcher(loader, Dispatcher(length="ids"))))


def dispatches_columns(rank, steps, arguments):
    """Lengths are told beside a field of one number a sample."""
    dispatcher = Dispatcher(length="tokens", **arguments)
    for tokens in steps:
        dispatcher.dispatch(list(range(len(tokens))), {"tokens": tokens, "prompt": [3, 1, 2][: len(tokens)]})
    return len(steps)
