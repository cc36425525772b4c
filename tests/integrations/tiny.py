"""A model, samples of very unequal lengths and optimisation, so small that ten steps take no time; in float64."""

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS = 10
MEAN = 4  # samples a rank and step
WORDS = 17


class Samples(Dataset):
    """Token ids of lengths from a few to a hundred, drawn from a seed; the first labels are masked, as prompts are."""

    def __init__(self, count, seed=0):
        lengths = np.minimum(np.random.default_rng(seed).lognormal(3, 1, count), 99).astype(int) + 1
        self.ids = [
            torch.from_numpy(np.random.default_rng([seed, i]).integers(0, WORDS, n)) for i, n in enumerate(lengths)
        ]
        self.masked = np.random.default_rng([seed, count]).integers(0, lengths)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        labels = (3 * self.ids[index] + 1) % WORDS
        labels[: self.masked[index]] = -100
        return {"input_ids": self.ids[index], "labels": labels}


def counted(labels, shift=True):
    """How many labels the model's loss counts."""
    return sum(label != -100 for row in labels for label in row.tolist()[int(shift) :])


def as_fields(samples):
    """Collate as the dispatcher takes it: by field a list of tensors, nothing padded."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


class Model(torch.nn.Module):
    """Given a rank's samples, unpadded, returns the sum of the losses of their tokens; it shifts labels by one."""

    def __init__(self, shift=True):
        super().__init__()
        self.shift = shift
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(WORDS, 8, dtype=torch.float64)
        self.hidden = torch.nn.Linear(8, 8, dtype=torch.float64)
        self.head = torch.nn.Linear(8, WORDS, dtype=torch.float64)

    def forward(self, input_ids, labels):
        none = torch.empty(0, dtype=torch.int64)
        logits = self.head(torch.tanh(self.hidden(self.embed(torch.cat([none, *input_ids])))))
        if self.shift:
            labels = [torch.cat([row[1:], torch.tensor([-100])]) for row in labels]
        return torch.nn.functional.cross_entropy(logits, torch.cat([none, *labels]), reduction="sum")


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def sampler_of(samples):
    return DistributedSampler(samples, shuffle=True, seed=5)


def loader_of(samples, workers=0, kind=DataLoader):
    """A rank's own share of every global batch, as anyone would load it."""
    how = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    return kind(samples, MEAN, sampler=sampler_of(samples), collate_fn=as_fields, **how)


def samples_of(ranks, steps=STEPS):
    return Samples(ranks * MEAN * steps)


def unbalanced(loader, epochs=1, shift=True):
    """Train on the same global batches with no dispatcher; return the global losses and the final weights.

    A step's loss is the mean over its tokens by definition, summed over ranks, with no trainer. A rank whose loader
    ends early has nothing in later steps.
    """
    model = Model(shift)
    optimizer, losses = optimizer_of(model), []
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        batches = list(loader)
        for step in range(STEPS // epochs):
            batch = batches[step] if step < len(batches) else {"input_ids": [], "labels": []}
            loss = model(batch["input_ids"], batch["labels"])
            loss.backward()
            total = torch.stack([loss.detach(), torch.tensor(float(counted(batch["labels"], shift)))])
            dist.all_reduce(total)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= total[1]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(total[0] / total[1]))
    return losses, weights_of(model)


def weights_of(model):
    """The weights by their bare names, whole, whoever wraps them or holds them in shards."""
    state = {name.removeprefix("module."): value for name, value in model.state_dict().items()}
    return {n: (v.full_tensor() if hasattr(v, "full_tensor") else v).detach().clone() for n, v in state.items()}


def assert_same_training(found, wanted, rounding=1e-9):
    """Equal to rounding: sums are taken in another order."""
    np.testing.assert_allclose(found[0], wanted[0], rtol=rounding)
    for name, weights in wanted[1].items():
        torch.testing.assert_close(
            found[1][name], weights, rtol=1e-7, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}"
        )


def assert_equal(found, wanted):
    """Bit for bit."""
    assert found[0] == wanted[0]
    assert all(torch.equal(found[1][name], weights) for name, weights in wanted[1].items())
