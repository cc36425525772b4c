"""Tests whose body is what each rank does: it runs on all ranks of the module's fixture ``ranks`` at once."""

import functools
import inspect
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist

BODIES = {}
"""By file and name: a rank finds what it is to run after importing the file."""


def each_rank(body=None, *, sizes=None):
    """Make a test of a function of a rank, and of what is parametrized; on some numbers of ranks alone, if named."""
    if body is None:
        return functools.partial(each_rank, sizes=sizes)
    BODIES[Path(body.__code__.co_filename).stem, body.__name__] = body

    of_ranks = inspect.Parameter("ranks", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _, *given = inspect.signature(body).parameters.values()
    signature = inspect.Signature([of_ranks, *given])

    @functools.wraps(body)
    def test(*positional, **named):
        arguments = signature.bind(*positional, **named).arguments
        ranks = arguments.pop("ranks")
        if sizes is not None and ranks.size not in sizes:
            pytest.skip(f"for {' or '.join(map(str, sizes))} ranks")
        ranks.run(body, **arguments)

    test.__signature__ = signature
    return test


def everywhere(value):
    """Return what all ranks give, by rank."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def same_everywhere(value):
    """Check that all ranks give the same, and return it."""
    assert all(other == value for other in everywhere(value))
    return value


@contextmanager
def raises_on(blamed, error, text):
    """All ranks must raise: those blamed their own error, all others an ExecutorError that names them and says why."""
    from balancer.executor import ExecutorError

    own = dist.get_rank() in blamed and error is not ExecutorError
    with pytest.raises(error if own else ExecutorError) as caught:
        yield
    assert text in str(caught.value)
    assert own or caught.value.ranks == tuple(blamed), caught.value
