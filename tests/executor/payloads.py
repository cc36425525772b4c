"""Payload for tests: fields of every kind that dispatch takes, made from seeds so that every rank knows all of them."""

import numpy as np
import torch

from balancer.executor import RaggedTensor

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64, torch.float16)
TRAILING = ((), (3,), (2, 0), (1, 2))


def _tensor(rng, shape, dtype):
    size = int(np.prod(shape))
    return torch.from_numpy(rng.integers(0, 2 if dtype is torch.bool else 100, size)).to(dtype).reshape(shape)


def _ragged(rng, n, dtype, trailing, least=0):
    return [_tensor(rng, (int(length), *trailing), dtype) for length in rng.integers(least, 9, n)]


def _nested(rng, n, dtype, trailing):
    rows = _ragged(rng, n, torch.float32, (2,), 1)
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    return torch.nested.nested_tensor_from_jagged(torch.cat(rows) if rows else torch.empty(0, 2), offsets)


def _ragged_tensor(rng, n, dtype, trailing):
    rows = _ragged(rng, n, dtype, trailing)
    values = torch.cat(rows) if rows else torch.empty((0, *trailing), dtype=dtype)
    return RaggedTensor(values, [len(row) for row in rows])


def _words(rng, n):
    letters = "aé漢\ud800 \0z"
    return ["".join(rng.choice(list(letters), rng.integers(0, 6))) for _ in range(n)]


KINDS = {
    "list": _ragged,
    "lists": lambda rng, n, dtype, trailing: [
        _ragged(rng, int(count), dtype, trailing) for count in rng.integers(0, 3, n)
    ],
    "dense": lambda rng, n, dtype, trailing: _tensor(rng, (n, *trailing), dtype),
    "numpy": lambda rng, n, dtype, trailing: rng.standard_normal((n, 2)),
    "ragged": _ragged_tensor,
    "jagged": _nested,
    "scalars": lambda rng, n, dtype, trailing: [_tensor(rng, (), dtype) for _ in range(n)],
    "str": lambda rng, n, dtype, trailing: _words(rng, n),
    "bytes": lambda rng, n, dtype, trailing: [word.encode("utf-8", "surrogatepass") for word in _words(rng, n)],
    "ints": lambda rng, n, dtype, trailing: rng.integers(-(2**63), 2**63 - 1, n).tolist(),
    "floats": lambda rng, n, dtype, trailing: rng.standard_normal(n).tolist(),
    "bools": lambda rng, n, dtype, trailing: (rng.integers(0, 2, n) > 0).tolist(),
    "objects": lambda rng, n, dtype, trailing: [{"turns": _words(rng, 2), "of": None} for _ in range(n)],
}


def batch_of(seed, rank, n, fields):
    """A rank's mini-batch of n samples; fields: name -> (kind, dtype index, trailing index)."""
    return {
        name: KINDS[kind](np.random.default_rng([seed, rank, index]), n, DTYPES[dtype], TRAILING[trailing])
        for index, (name, (kind, dtype, trailing)) in enumerate(sorted(fields.items()))
    }


def plain(data):
    """A field's entries as plain values that compare equal only if type, shape and bytes do; arrays as tensors."""
    if isinstance(data, RaggedTensor):
        return [plain(row) for row in data.rows()]
    if _stacks(data):
        data = torch.stack(data)
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    if isinstance(data, torch.Tensor) and data.is_nested:
        return [plain(row) for row in data.unbind()]
    if isinstance(data, torch.Tensor):
        if data.ndim == 1:
            return [(str(data.dtype), value) for value in data.tolist()]
        return [(str(row.dtype), tuple(row.shape), _memory(row)) for row in data.unbind()]
    return [plain(entry) if isinstance(entry, list | torch.Tensor) else entry for entry in data]


def _memory(row):
    return row.contiguous().view(-1).view(torch.uint8).tolist() if row.numel() else []


def _stacks(data):
    """Whether a field comes back as one tensor: a list of tensors of one number does."""
    return isinstance(data, list) and bool(data) and isinstance(data[0], torch.Tensor) and data[0].ndim == 0


def form(data):
    if isinstance(data, np.ndarray) or _stacks(data):
        return form(torch.empty(0))
    return type(data), getattr(data, "layout", None), getattr(data, "is_nested", None)
