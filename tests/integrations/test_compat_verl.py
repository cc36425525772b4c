"""verl's functions on real TensorDicts, beside what the installed verl does where there is one."""

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")

from balancer.compat import verl  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

LENGTHS = [7, 3, 9, 1, 4, 4, 8, 2]


def dense():
    ids = torch.arange(80).reshape(8, 10)
    mask = (torch.arange(10) < torch.tensor(LENGTHS)[:, None]).long()
    fields = {"input_ids": ids, "attention_mask": mask, "step": tensordict.NonTensorData(3)}
    return tensordict.TensorDict(fields, batch_size=8)


def jagged():
    rows = [torch.arange(length) + 10 * row for row, length in enumerate(LENGTHS)]
    names = tensordict.NonTensorStack(*[f"sample {row}" for row in range(8)])
    ids = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    return tensordict.TensorDict({"input_ids": ids, "name": names}, batch_size=8)


@pytest.mark.parametrize("made", [dense, jagged])
def test_micro_batches_of_a_tensordict(made):
    batch = made()
    micro_batches, groups = verl.rearrange_micro_batches(batch, 12, num_batches_divided_by=2)
    assert sorted(index for group in groups for index in group) == list(range(8))
    assert len(groups) % 2 == 0
    for micro_batch, group in zip(micro_batches, groups, strict=True):
        assert sum(LENGTHS[index] for index in group) <= 12
        assert micro_batch.batch_size == (len(group),)
        for index, row in zip(group, micro_batch["input_ids"].unbind(), strict=True):
            assert torch.equal(row, batch["input_ids"].unbind()[index])
    if made is jagged:
        assert [list(part["name"]) for part in micro_batches] == [[f"sample {i}" for i in group] for group in groups]
    else:
        assert [part["step"] for part in micro_batches] == [3] * len(groups)


class Proto:
    """What is asked of a DataProto."""

    def __init__(self, batch, non_tensor_batch, meta_info):
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch, meta_info

    @classmethod
    def from_dict(cls, tensors, non_tensors, meta_info):
        return cls(tensors, non_tensors, meta_info)


def test_a_proto_is_split_with_what_it_carries():
    data = Proto(dense(), {"uid": np.array(list("abcdefgh"), dtype=object)}, {"temperature": [1.0]})
    parts, groups = verl.prepare_dynamic_batch(data, 12, min_num_micro_batch=4)
    assert len(parts) == len(groups) >= 4
    for part, group in zip(parts, groups, strict=True):
        assert type(part) is Proto
        assert part.non_tensor_batch["uid"].tolist() == [list("abcdefgh")[index] for index in group]
        assert part.meta_info == data.meta_info
        assert part.meta_info["temperature"] is not data.meta_info["temperature"]
    with pytest.raises(ValueError, match="9"):
        verl.prepare_dynamic_batch(data, 8)


def test_an_installed_verl_has_the_same_signatures():
    theirs = pytest.importorskip("verl.utils.seqlen_balancing", reason="verl needs Ray and a GPU stack")
    for name in set(verl.__all__) - {"rearrange_micro_batches_idx"}:
        own = inspect.signature(getattr(verl, name)).parameters
        assert list(inspect.signature(getattr(theirs, name)).parameters) == list(own), name
    batch = dense()
    micro_batches, groups = verl.rearrange_micro_batches(batch, 12)
    back = theirs.restore_dynamic_batch(torch.cat([part["input_ids"] for part in micro_batches]), groups)
    assert torch.equal(back, batch["input_ids"])
