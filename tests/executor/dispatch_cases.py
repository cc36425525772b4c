"""A dispatcher, and a small model of several phases with its mini-batches: what tests of exchanges share."""

import numpy as np
import torch

from balancer import Phase
from balancer.executor import Dispatcher

_DISPATCHERS = {}


def dispatcher(**arguments):
    """The same dispatcher for the same arguments: making one takes a group."""
    key = repr(sorted(arguments.items()))
    if key not in _DISPATCHERS:
        _DISPATCHERS[key] = Dispatcher(**arguments)
    return _DISPATCHERS[key]


def lengths_of(seed, rank, n):
    return np.random.default_rng([seed, rank, 99]).integers(0, 40, n)


# Phases: images as several items a sample, audio as at most one, text in between.

PHASES = (
    Phase("vision", "pixels", outputs="tokens_of_image"),
    Phase("audio", "mel"),
    Phase("llm", "total", own="text"),
)
FIELDS = {"pixels": "vision", "mel": "audio", "text": "llm:own"}
WIDTH = 5


def multimodal_batch(seed, rank, n):
    """Samples with 0 to 3 images (two pixels a token), audio or none, and text or none."""
    rng = np.random.default_rng([seed, rank])
    counts = rng.integers(0, 4, n)
    tokens = [rng.integers(1, 4, count).tolist() for count in counts]
    mel = rng.integers(0, 6, n) * rng.integers(0, 2, n)
    text = rng.integers(0, 7, n)
    fields = {
        "pixels": [[_values(rng, 2 * size, 4) for size in sizes] for sizes in tokens],
        "mel": [_values(rng, size, 3) for size in mel],
        "text": [torch.from_numpy(rng.integers(0, 11, size)) for size in text],
        "id": [f"{rank}.{i}" for i in range(n)],
    }
    total = [sum(sizes) + a + b for sizes, a, b in zip(tokens, mel.tolist(), text.tolist(), strict=True)]
    return fields, {"tokens_of_image": tokens, "total": total}


def _values(rng, rows, width):
    return torch.from_numpy(rng.standard_normal((int(rows), width))).double()


class Encoders(torch.nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.vision = torch.nn.Linear(8, WIDTH, dtype=dtype)
        self.audio = torch.nn.Linear(3, WIDTH, dtype=dtype)
        self.embed = torch.nn.Embedding(11, WIDTH, dtype=dtype)
        self.head = torch.nn.Linear(WIDTH, WIDTH, dtype=dtype)

    def images(self, pixels):
        """One token of two rows of pixels."""
        return self.vision(pixels.reshape(-1, 8))


def stacked(rows, width, dtype=torch.float64):
    return torch.cat(rows) if len(rows) else torch.empty((0, width), dtype=dtype)


def gradient(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def alone(model, batches):
    """Every sample's inputs and loss, computed without any exchange."""
    inputs = []
    for fields, _ in batches:
        for pixels, mel, text in zip(fields["pixels"], fields["mel"], fields["text"], strict=True):
            parts = [model.images(image) for image in pixels] + [model.audio(mel), model.embed(text)]
            inputs.append(torch.cat(parts))
    return inputs


def losses(model, rows, samples):
    """A loss that differs by sample and by place."""
    return [(model.head(row).sin() * torch.arange(1, row.numel() + 1).reshape(row.shape)).sum() * (sample + 1)
            for row, sample in zip(rows, samples, strict=True)]  # fmt: skip
