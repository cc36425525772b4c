"""What a run does, whoever runs its loop: the global losses of its steps; saved and killed where it is to be."""

import os
import signal

import tiny
import torch
import torch.distributed as dist


class Recorded:
    """Listens to a model and its optimizer.

    `loss_of` returns of a call of the model (its arguments, its output) this rank's sums: of losses, and of what they
    are divided by. After step number `at` `saves` is called; after step `dies_at` the rank kills itself.
    """

    def __init__(self, model, optimizer, loss_of, at=None, saves=None, dies_at=None):
        self.losses, self.done, self._total = [], 0, torch.zeros(2, dtype=torch.float64)
        self._loss_of, self._at, self._saves, self._dies_at = loss_of, at, saves, dies_at
        model.register_forward_hook(self._ran)
        optimizer.register_step_post_hook(self._stepped)

    def _ran(self, module, given, output):
        self._total += torch.stack([torch.as_tensor(one).detach().double() for one in self._loss_of(given, output)])

    def _stepped(self, *_):
        dist.all_reduce(self._total)
        self.losses.append(float(self._total[0] / (self._total[1] or 1)))
        self._total.zero_()
        self.done += 1
        if self._saves is not None and self.done == self._at:
            self._saves()
        if self.done == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


def sum_and_tokens(given, loss):
    """Of the tiny model."""
    return loss, float(tiny.counted(given[1]))
