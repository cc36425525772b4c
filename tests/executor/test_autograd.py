"""Exchanges that gradients take back: a linear map whose backward is the transposed one; and the loss of all ranks."""

import warnings
from itertools import chain

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from dispatch_cases import dispatcher
from each_rank import each_rank, raises_on
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from ranks_of import ranks_of

from balancer import Phase
from balancer.executor import ExecutorError, RaggedTensor, anchored, count_labels, global_token_mean

PHASES = (Phase("vision", "images"), Phase("llm", "tokens", own="text"))

ranks = ranks_of(1, 2, 4)


def step(rank, seed, counts, phases=PHASES):
    """A step whose encoder has at most one item a sample, and some ranks no sample; rows of the encoder and of text."""
    rng = np.random.default_rng([seed, rank])
    images, text = rng.integers(0, 4, counts[rank]), rng.integers(0, 4, counts[rank])
    columns = {"images": images, "text": text, "tokens": images + text}
    made = dispatcher(phases=phases)
    made._shared.agreed.clear()  # what another test agreed on
    out = made.dispatch(*(({"id": list(range(counts[rank]))}, columns) if counts[rank] else ({},)))
    items = out.plan.phases["vision"].items
    fed = items.lengths[np.isin(items.sample_of_item, out.samples)].sum()
    return out, int(out.lengths("vision").sum()), int(out.lengths("llm").sum() - fed)


def total(value):
    value = value.detach().clone().reshape(())
    dist.all_reduce(value)
    return value.item()


@settings(max_examples=examples(6))
@given(seed=st.integers(0, 1000), counts=st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(lambda c: c[0]))
@each_rank
def test_the_backward_is_the_transposed_exchange(rank, seed, counts):
    """<y, A x> = <A' y, x> over all ranks; and a second derivative through both."""
    out, *rows = step(rank, seed, counts)
    torch.manual_seed(seed + rank)
    vision, own = (torch.randn(count, 3, dtype=torch.float64, requires_grad=True) for count in rows)
    inputs = out.inputs("llm", {"vision": vision}, own).values
    weights = torch.randn_like(inputs)
    gradients = torch.autograd.grad((inputs * weights).sum(), (vision, own))
    back = total(sum((gradient * x).sum() for gradient, x in zip(gradients, (vision, own), strict=True)))
    np.testing.assert_allclose(total((inputs * weights).sum()), back, rtol=1e-10)
    before = total(vision.square().sum() + own.square().sum())
    assert total(inputs.square().sum()) == pytest.approx(before, rel=1e-10)
    inputs = out.inputs("llm", {"vision": vision}, own).values
    first = torch.autograd.grad((inputs**3).sum(), (vision, own), create_graph=True)
    second = torch.autograd.grad(sum(gradient.sum() for gradient in first), (vision, own))
    for x, gradient in zip((vision, own), second, strict=True):
        torch.testing.assert_close(gradient, 6 * x)


@pytest.mark.parametrize("few", [True, False])
@each_rank
def test_mixed_precision(rank, few):
    """Encoders under autocast put out bfloat16, embeddings float32; ranks without a row know neither."""
    out, vision, own = step(rank, 0, [3, 0, 0, 0] if few else [4] * 4)
    encoder, embedded = torch.nn.Linear(4, 6), torch.ones(own, 6, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = encoder(torch.ones(vision, 4))
        assert encoded.dtype is torch.bfloat16
        inputs = out.inputs("llm", {"vision": encoded}, embedded).values
        anchored((inputs * 2).sum(), inputs).backward()
    torch.testing.assert_close(embedded.grad, torch.full_like(embedded, 2.0))
    assert encoder.bias.grad.tolist() == [2.0 * vision] * 6
    assert inputs.dtype is torch.float32


@each_rank
def test_ranks_without_a_row_adopt_dtype_and_shape(rank):
    out, rows, _ = step(rank, 0, [1, 0, 0, 0], (PHASES[0], Phase("llm", "images")))
    vision = torch.ones(rows, 2, dtype=torch.bfloat16) if rows else torch.empty(0, 7)
    inputs = out.inputs("llm", {"vision": vision}).values
    assert (inputs.dtype, tuple(inputs.shape[1:])) == (torch.bfloat16, (2,))


@each_rank(sizes=(2,))
def test_compiled(rank):
    out, *rows = step(rank, 2, [3, 2])
    vision, own = (torch.randn(count, 3, requires_grad=True) for count in rows)

    def forward(vision, own):
        inputs = out.inputs("llm", {"vision": vision * 2}, own.sin()).values
        return anchored((inputs.cos() * inputs).sum(), inputs)

    plain = torch.autograd.grad(forward(vision, own), (vision, own))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = torch.autograd.grad(torch.compile(forward, backend="aot_eager")(vision, own), (vision, own))
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)


@each_rank
def test_frozen_encoders(rank):
    out, vision, own = step(rank, 1, [2] * 4)
    encoded, embedded = torch.ones(vision, 2, requires_grad=True), torch.ones(own, 2)
    assert not out.inputs("llm", {"vision": encoded}, embedded, differentiable=False).values.requires_grad
    with torch.no_grad():
        assert not out.inputs("llm", {"vision": encoded}, embedded).values.requires_grad


@each_rank
def test_inputs_that_do_not_fit(rank):
    out, vision, own = step(rank, 4, [4] * 4)
    good, text = {"vision": torch.ones(vision, 2)}, torch.ones(own, 2)
    for phase, outputs, own_rows, error, said in [
        (
            "llm",
            {"vision": torch.ones(vision + 1, 2)},
            text,
            ValueError,
            "rows on this rank, one for each element",
        ),
        ("llm", {"vision": [torch.ones(1, 2)] * (vision + 1)}, text, ValueError, "torch.cat makes one tensor of it"),
        ("llm", {}, text, KeyError, "outputs must have what 'vision' puts out"),
        ("llm", good | {"smell": torch.ones(1)}, text, KeyError, "'smell' does not feed phase 'llm'"),
        ("llm", good, None, ValueError, "own must have"),
        ("vision", good, text, KeyError, "encoders feed the last, 'llm'"),
    ]:
        with pytest.raises(error) as caught:
            out.inputs(phase, outputs, own_rows)
        assert said in str(caught.value)
    if dist.get_world_size() > 1:
        width = 3 if rank == 1 else 2
        with raises_on([1], ExecutorError, "in the shape of an element of the inputs of phase 'llm' ([3], not [2])"):
            out.inputs("llm", {"vision": torch.ones(vision, width)}, torch.ones(own, width))
    out.inputs("llm", good, text)
    with pytest.raises(ValueError, match="a model that changes them needs a new Dispatcher"):
        out.inputs("llm", {"vision": torch.ones(vision, 2).double()}, text)


# The loss.


@pytest.mark.parametrize("gradients", ["averaged", "summed"])
@each_rank
def test_global_token_mean(rank, gradients):
    """Value and gradient equal those of one process, whoever holds which tokens."""
    size = dist.get_world_size()
    counts = [3] if size == 1 else [0, 7, 2, 5][:size]
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
    assert nothing.item() == weight.grad.item() == 0.0


@each_rank
def test_masked_labels_are_not_counted(rank):
    """Half of the labels are masked, unevenly: the loss is that of one process, and by lengths another."""
    random = torch.Generator().manual_seed(0)
    rows = [[torch.randint(0, 9, (4 + 5 * other + row,), generator=random) for row in range(3)] for other in range(4)]
    rows = rows[: dist.get_world_size()]
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
    assert global_token_mean(loss_of(logits[rank], rows[rank]), sum(map(len, rows[rank]))) < 0.6 * found


@pytest.mark.parametrize(
    ("count", "loss", "why"),
    [
        (-2, 1.5, "count must be a finite number >= 0, got -2"),
        (float("nan"), 1.5, "count must be a finite number >= 0, got nan"),
        (0, 1.5, "got 0 beside a loss_sum of 1.5"),
        (0, float("inf"), "got 0 beside a loss_sum of inf"),
    ],
)
@each_rank
def test_a_count_that_cannot_be_the_batchs_is_refused_on_all_ranks(rank, count, loss, why):
    odd = dist.get_world_size() - 1
    for said in (count, torch.tensor(count)):
        with pytest.raises(ValueError, match=why if rank == odd else "count of another rank"):
            global_token_mean(torch.tensor(loss, requires_grad=True), said if rank == odd else 3)
    labels = torch.ones(2, 3)
    for wrong in (labels, list(labels)):
        with pytest.raises(ValueError, match=r"of labels it is count_labels\(labels\)"):
            global_token_mean(torch.tensor(1.0), wrong)


ROWS = [[-100, 4, 5], [6], [-100, -100, 1, -100, 2]]
FORMS = {
    "list": lambda rows: list(map(torch.tensor, rows)),
    "padded": lambda rows: torch.tensor([row + [-100] * (5 - len(row)) for row in rows]),
    "jagged": lambda rows: torch.nested.nested_tensor(list(map(torch.tensor, rows)), layout=torch.jagged),
    "ragged": lambda rows: RaggedTensor(torch.tensor(list(chain(*rows))), list(map(len, rows))),
    "packed": lambda rows: torch.tensor([list(chain(*rows))]),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_that_a_loss_counts(form):
    labels = FORMS[form](ROWS)
    assert int(count_labels(labels, shift=False)) == 5
    assert int(count_labels(labels)) == (5 if form == "packed" else 4)  # packed, 6 is the label of the token before it


def test_labels_of_nothing_and_labels_that_are_no_rows():
    assert int(count_labels([])) == int(count_labels([torch.empty(0, dtype=torch.int64)])) == 0
    assert int(count_labels(torch.empty(0, 4))) == 0
    with pytest.raises(ValueError, match="a row of labels for each sample, got one number a sample"):
        count_labels([torch.tensor(3)])
    for labels in torch.tensor([1, 2, 3]), torch.tensor(3):
        with pytest.raises(ValueError, match=r"a row of labels for each sample, got shape .*shift=False, for one row"):
            count_labels(labels)
    assert int(count_labels(torch.tensor([1, -100, 3]), shift=False)) == 2


def test_the_loss_of_a_process_alone_is_its_own_mean():
    """Where a loop is tried out, nobody begins torch.distributed."""
    assert not dist.is_initialized()
    loss = torch.tensor(6.0, requires_grad=True)
    found = global_token_mean(loss, 4)
    found.backward()
    assert (found.item(), loss.grad.item()) == (1.5, 0.25)


def test_the_loss_of_a_batch_in_which_nothing_counts_is_no_matter():
    """A model's mean over no label is not a number, and so is that times zero."""
    logits = torch.zeros(3, 5, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, torch.full((3,), -100))
    found = global_token_mean(loss * 0, 0)
    found.backward()
    assert found.item() == 0
    assert not logits.grad.any()
