"""What ranks do in tests of derivatives: the exchange is a linear map, and its backward must be the transposed one."""

import warnings
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist
from dispatch_cases import dispatcher

from balancer import Phase
from balancer.executor import anchored

PHASES = (Phase("vision", "images"), Phase("llm", "tokens", own="text"))


def step(rank, seed, counts, **arguments):
    """A step whose encoder has at most one item a sample, and some ranks no sample."""
    rng = np.random.default_rng([seed, rank])
    images, text = rng.integers(0, 4, counts[rank]), rng.integers(0, 4, counts[rank])
    lengths = {"images": images, "text": text, "tokens": images + text}
    made = dispatcher(phases=PHASES, **arguments)
    made._shared.agreed.clear()  # what another test agreed on
    return made.dispatch(*(({"id": list(range(counts[rank]))}, lengths) if counts[rank] else ({},)))


def rows_of(out):
    vision = int(out.lengths("vision").sum())
    return vision, int(out.lengths("llm").sum()) - int(_images_of(out))


def _images_of(out):
    plan = out.plan
    items = plan.phases["vision"].items
    return items.lengths[np.isin(items.sample_of_item, out.samples)].sum()


def total(value):
    value = value.detach().clone().reshape(())
    dist.all_reduce(value)
    return value.item()


def transposed(rank, seed, counts):
    """<y, A x> = <A' y, x> over all ranks; and a second derivative through both."""
    out = step(rank, seed, counts)
    torch.manual_seed(seed + rank)
    vision, own = (torch.randn(rows, 3, dtype=torch.float64, requires_grad=True) for rows in rows_of(out))
    inputs = out.inputs("llm", {"vision": vision}, own).values
    weights = torch.randn_like(inputs)
    gradients = torch.autograd.grad((inputs * weights).sum(), (vision, own))
    forth = total((inputs * weights).sum())
    back = total(sum((gradient * x).sum() for gradient, x in zip(gradients, (vision, own), strict=True)))
    np.testing.assert_allclose(forth, back, rtol=1e-10)
    assert total(inputs.square().sum()) == _near(total(vision.square().sum() + own.square().sum()))
    inputs = out.inputs("llm", {"vision": vision}, own).values
    first = torch.autograd.grad((inputs**3).sum(), (vision, own), create_graph=True)
    second = torch.autograd.grad(sum(gradient.sum() for gradient in first), (vision, own))
    for x, gradient in zip((vision, own), second, strict=True):
        torch.testing.assert_close(gradient, 6 * x)


def _near(value):
    import pytest

    return pytest.approx(value, rel=1e-10)


def mixed_precision(rank, counts, set_to):
    """Encoders under autocast put out bfloat16, embeddings float32; ranks without a row know neither."""
    out = step(rank, 0, counts)
    vision, own = rows_of(out)
    encoder = torch.nn.Linear(4, 6)
    embedded = torch.ones(own, 6, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=set_to):
        encoded = encoder(torch.ones(vision, 4))
        assert encoded.dtype is (torch.bfloat16 if set_to else torch.float32)
        inputs = out.inputs("llm", {"vision": encoded}, embedded).values
        anchored((inputs * 2).sum(), inputs).backward()
    torch.testing.assert_close(embedded.grad, torch.full_like(embedded, 2.0))
    assert encoder.bias.grad.tolist() == [2.0 * vision] * 6
    return inputs.dtype is torch.float32


def only_half(rank, counts):
    """With nothing but bfloat16, what arrives is bfloat16, on ranks that sent nothing too."""
    made = dispatcher(phases=(PHASES[0], Phase("llm", "tokens")))
    rng = np.random.default_rng(rank)
    images = rng.integers(1, 4, counts[rank])
    arguments = ({"id": list(range(counts[rank]))}, {"images": images, "tokens": images}) if counts[rank] else ({},)
    out = made.dispatch(*arguments)
    rows = int(out.lengths("vision").sum())
    vision = torch.ones(rows, 2, dtype=torch.bfloat16) if rows else torch.empty(0, 7)
    inputs = out.inputs("llm", {"vision": vision})
    assert inputs.values.dtype is torch.bfloat16
    assert inputs.values.shape[1:] == (2,)


def compiled(rank, counts, backend):
    out = step(rank, 2, counts)
    vision, own = (torch.randn(rows, 3, requires_grad=True) for rows in rows_of(out))

    def forward(vision, own):
        inputs = out.inputs("llm", {"vision": vision * 2}, own.sin()).values
        return anchored((inputs.cos() * inputs).sum(), inputs)

    plain = torch.autograd.grad(forward(vision, own), (vision, own))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = torch.autograd.grad(torch.compile(forward, backend=backend)(vision, own), (vision, own))
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)


def frozen(rank, counts):
    out = step(rank, 1, counts)
    vision, own = rows_of(out)
    encoded, embedded = torch.ones(vision, 2, requires_grad=True), torch.ones(own, 2)
    inputs = out.inputs("llm", {"vision": encoded}, embedded, differentiable=False).values
    assert not inputs.requires_grad
    with torch.no_grad():
        assert not out.inputs("llm", {"vision": encoded}, embedded).values.requires_grad


def wrong_rows(rank, what):
    out = step(rank, 4, [4] * dist.get_world_size())
    vision, own = rows_of(out)
    outputs = {"vision": torch.ones(vision, 2)}
    embedded = torch.ones(own, 2)
    if what == "rows":
        outputs = {"vision": torch.ones(vision + 1, 2)}
    elif what == "missing":
        outputs = {}
    elif what == "strange":
        outputs["smell"] = torch.ones(1)
    elif what == "own":
        embedded = None
    elif what == "width" and rank == 1:
        outputs = {"vision": torch.ones(vision, 3)}
        embedded = torch.ones(own, 3)
    elif what == "phase":
        return out.inputs("vision", outputs, embedded)
    return out.inputs("llm", outputs, embedded)


def wider_later(rank):
    out = step(rank, 4, [4] * dist.get_world_size())
    vision, own = rows_of(out)
    out.inputs("llm", {"vision": torch.ones(vision, 2)}, torch.ones(own, 2))
    out.inputs("llm", {"vision": torch.ones(vision, 2).double()}, torch.ones(own, 2))


def token_mean(rank, gradients):
    """Value and gradient equal those of one process, whoever holds which tokens."""
    from balancer.executor import global_token_mean

    size = dist.get_world_size()
    counts = [0, 7, 2, 5, 1, 0, 3, 4][:size]
    if size == 1:
        counts = [3]
    weight = torch.tensor(2.0, requires_grad=True)
    everything = [torch.arange(1.0, n + 1) + other for other, n in enumerate(counts)]
    whole = (torch.cat(everything) * weight).sin().mean()
    (wanted,) = torch.autograd.grad(whole, weight)
    loss = global_token_mean((everything[rank] * weight).sin().sum(), counts[rank], gradients=gradients)
    (mine,) = torch.autograd.grad(loss, weight)
    dist.all_reduce(mine)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(mine / (size if gradients == "averaged" else 1), wanted)
    nothing = global_token_mean((weight * torch.empty(0)).sum(), torch.tensor(0), gradients=gradients)
    nothing.backward()
    assert nothing.item() == 0.0
    assert weight.grad.item() == 0.0


def counts_that_cannot_be(rank, odd, count, loss):
    """One rank's count cannot be that of its batch, of which all others hear in the same collective."""
    from balancer.executor import global_token_mean

    global_token_mean(torch.tensor(loss, requires_grad=True), count if rank == odd else 3)


def labels_for_a_count(rank, listed):
    from balancer.executor import global_token_mean

    labels = torch.ones(2, 3)
    global_token_mean(torch.tensor(1.0), list(labels) if listed else labels)


def masked_labels(rank):
    """Half of the labels are masked, unevenly: the loss is that of one process, and by lengths another."""
    from balancer.executor import count_labels, global_token_mean

    random = torch.Generator().manual_seed(0)
    rows = [
        [torch.randint(0, 9, (4 + 5 * other + row,), generator=random) for row in range(3)]
        for other in range(dist.get_world_size())
    ]
    for of_rank in rows:
        for place, row in enumerate(of_rank):
            row[1 : len(row) // 2 + 1 + place] = -100  # the first label is of no token, masked or not
    logits = [[torch.randn(len(row), 9, generator=random) for row in of_rank] for of_rank in rows]

    def loss_of(scores, labels, reduction="sum"):  # as causal language models shift them
        ahead = torch.cat([one[:-1] for one in scores]), torch.cat([one[1:] for one in labels])
        return torch.nn.functional.cross_entropy(*ahead, reduction=reduction)

    whole = loss_of(list(chain(*logits)), list(chain(*rows)), "mean")
    found = global_token_mean(loss_of(logits[rank], rows[rank]), count_labels(rows[rank]))
    torch.testing.assert_close(found, whole)
    by_lengths = global_token_mean(loss_of(logits[rank], rows[rank]), sum(map(len, rows[rank])))
    return float(found), float(by_lengths)
