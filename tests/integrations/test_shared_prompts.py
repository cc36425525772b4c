"""docs/how_to/shared_prompts.md: its code on two ranks gives loss and gradients of samples by themselves."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rank_processes import Ranks  # noqa: E402
from shared_prompts_case import MODEL, drawn, page, trains  # noqa: E402


def alone():
    """Compute every response with a prompt of its own, in one process."""
    model, (prompts, responses) = MODEL(), drawn()
    count = sum(len(each) for of_prompt in responses for each in of_prompt)
    total = torch.zeros((), dtype=torch.float64)
    for prompt, of_prompt in zip(prompts, responses, strict=True):
        for each in of_prompt:
            tokens = torch.cat([prompt, each])
            logits = model(tokens[None], use_cache=False).logits[0]
            total = total + torch.nn.functional.cross_entropy(
                logits[len(prompt) - 1 : -1], tokens[len(prompt) :], reduction="sum"
            )
    (total / count).backward()
    return float(total.detach() / count), torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters()]
    ).numpy()


def test_two_ranks_compute_what_one_does():
    loss, gradients = alone()
    with Ranks(2) as ranks:
        for found, summed in ranks.run(trains):
            assert abs(found - loss) < 1e-9
            assert np.abs(summed - gradients).max() < 1e-9


def test_responses_do_not_see_each_other():
    _, _, segment, predicts, predicted = page()["packed"](torch.arange(3), [torch.arange(2), torch.arange(1)])
    mask = page()["mask_of"](segment).tolist()
    assert [[int(sees) for sees in row] for row in mask] == [
        [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 1],
    ]  # fmt: skip
    assert predicts.tolist() == [2, 3, 2]
    assert predicted.tolist() == [3, 4, 5]
