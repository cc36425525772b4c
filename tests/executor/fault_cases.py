"""What ranks do in tests of faults: steps of random length, until some rank is lost."""

import random
import time
from datetime import timedelta

import torch
from dispatch_cases import FIELDS, PHASES, WIDTH, Encoders, multimodal_batch, stacked

from balancer.executor import Dispatcher, PrefetchDispatcher, lookout

TIMEOUT = timedelta(seconds=4)
LATE_S = TIMEOUT.total_seconds() / 2

made = None


def prepares(rank, prefetches, exchange):
    """Make what must be there before a rank may be lost: groups are made with the store's own timeouts."""
    global made
    made = Dispatcher(ranks_per_node=2, phases=PHASES, fields=FIELDS, timeout=TIMEOUT, exchange=exchange)
    if prefetches:
        made = PrefetchDispatcher(_Batches(rank), made, lengths=lambda batch: batch.lengths)
    next(_steps(rank))


class _Batch(dict):
    lengths = None


class _Batches:
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        for number in range(10**6):
            data, lengths = multimodal_batch(number % 5, self.rank, 4)
            batch = _Batch(data)
            batch.lengths = lengths
            yield batch


def _steps(rank):
    """Yield at each step the dispatched mini-batch."""
    if isinstance(made, PrefetchDispatcher):
        for _ in made:
            yield made.dispatcher.current
    else:
        for batch in _Batches(rank):
            yield made.dispatch(dict(batch), batch.lengths)


def works_until_one_is_lost(rank, seed, hasty=None):
    """Go on until a call breaks; return its error's name, whom it names, and its text.

    With a rank that is hasty all others look for reports so seldom that it has its verdict long before they do.
    """
    lookout.POLL_S = 0.02 if hasty in (None, rank) else TIMEOUT.total_seconds() / 8
    chance, model = random.Random(f"{seed} {rank}"), Encoders()
    steps = _steps(rank)
    while True:
        try:
            step = next(steps)
            pixels, own = stacked(step["pixels"], 4), torch.empty(0, WIDTH, dtype=torch.float64)
            own = model.embed(torch.cat(step["text"])) if step["text"] else own
            outputs = {"vision": model.images(pixels), "audio": model.audio(stacked(step["mel"], 3))}
            step.inputs("llm", outputs, own).values.sum().backward()
            step.restore()
        except Exception as error:
            return type(error).__name__, getattr(error, "ranks", None), str(error)
        time.sleep(chance.choice([0, 0.001, 0.01, 0.03]) if chance.random() < 0.98 else LATE_S)
