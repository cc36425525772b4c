"""A tokenized data set seen as its packs, as trainers for fine-tuning read them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from balancer.errors import InputError
from balancer.offline.packs import Packs
from solvers.errors import ArgumentTypeError, UsageError


class PackedDataset:
    """A data set whose elements are packs: samples joined end to end, with their lengths.

    Parameters
    ----------
    dataset : sequence of mappings
        The tokenized samples from which the packs were made, row by row: a ``datasets.Dataset``, or any sequence of
        dictionaries.
    packs : Packs or path
        What :func:`balancer.pack` returned, or a file that it wrote.
    tokens : str
        The column whose lengths were packed.

    Notes
    -----
    An element has every column with one number for each token, joined; ``seq_lengths``, the length of each
    piece; and ``position_ids``, which begin at 0 in each piece. Given labels stay as they are. A sample is
    read when its pack is read. If its length is not the packed one, an InputError names the row: the
    data set is then not the one of the log.

    Examples
    --------
    >>> from balancer.offline.packs import pack
    >>> samples = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7]}, {"input_ids": [8]}]
    >>> packed = PackedDataset(samples, pack([3, 4, 1], 4))
    >>> packed[0]
    {'input_ids': [1, 2, 3, 8], 'seq_lengths': [3, 1], 'position_ids': [0, 1, 2, 0]}
    """

    def __init__(
        self, dataset: Sequence[Mapping[str, Any]], packs: Packs | str | os.PathLike[str], tokens: str = "input_ids"
    ) -> None:
        self._dataset, self._tokens = dataset, tokens
        self.packs = packs if isinstance(packs, Packs) else Packs.load(packs)
        rows, lengths = self.packs.rows.values, self.packs.lengths.values
        self._packed = np.zeros(int(rows.max(initial=-1)) + 1, dtype=np.int64)  # tokens of each row, in all its pieces
        np.add.at(self._packed, rows, lengths)
        if len(self._packed) > len(dataset):
            raise UsageError(
                "{packs} hold row {row}, but {dataset} has {count} rows: it is not what was packed",
                row=len(self._packed) - 1, count=len(dataset),
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> dict[str, list[Any]]:
        """Return a pack; slices are not taken."""
        number = range(len(self))[index]
        if not isinstance(number, int):
            raise ArgumentTypeError("index", "be one number", repr(index))
        of_pack = slice(*self.packs.rows.offsets[number : number + 2].tolist())
        rows, starts, lengths = (
            getattr(self.packs, name).values[of_pack].tolist() for name in ("rows", "starts", "lengths")
        )
        joined: dict[str, list[Any]] = {}
        for row, start, length in zip(rows, starts, lengths, strict=True):
            sample = self._dataset[row]
            whole = self._length_of(sample, row)
            for name, values in sample.items():
                if name not in ("position_ids", "seq_lengths") and _is_a_token(values, whole):
                    part = values[start : start + length]
                    joined.setdefault(name, []).extend(part.tolist() if hasattr(part, "tolist") else part)
        if uneven := [name for name, values in joined.items() if len(values) != sum(lengths)]:
            raise InputError(
                f"pack {number}: column {uneven[0]!r} has a value for each token of some of rows {rows}, not of all"
            )
        positions = np.arange(sum(lengths)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return joined | {"seq_lengths": lengths, "position_ids": positions.tolist()}

    def _length_of(self, sample: Mapping[str, Any], row: int) -> int:
        """Return the length of a sample; InputError where it is not the one that was packed."""
        if self._tokens not in sample:
            raise InputError(f"row {row} has no column {self._tokens!r}; name the column of tokens: tokens=...")
        whole = len(sample[self._tokens])
        if whole != self._packed[row]:
            rule = "the data set is another than the log, or has changed; pack it again"
            raise InputError(f"row {row} has {whole} tokens, but {self._packed[row]} of it were packed: {rule}")
        return whole

    def to_datasets(self) -> Any:
        """Return it as a ``datasets.Dataset``, which trainers ask for; packs are joined as they are read.

        The data set must be one too.
        """
        make = getattr(type(self._dataset), "from_dict", None)
        if make is None:
            raise ArgumentTypeError("dataset", "be a datasets.Dataset", f"a {type(self._dataset).__name__}")
        columns = list(self[0]) if len(self) else []
        empty: dict[str, Any] = {name: [None] * len(self) for name in columns if name != "seq_lengths"}
        return make(empty | {"seq_lengths": list(range(len(self)))}).with_transform(self._read)

    def _read(self, batch: Mapping[str, list[int]]) -> dict[str, list[Any]]:
        found = [self[number] for number in batch["seq_lengths"]]
        return {name: [pack[name] for pack in found] for name in (found[0] if found else ())}


def _is_a_token(values: Any, length: int) -> bool:
    """Whether a column of a sample has one value for each token."""
    return not isinstance(values, str | bytes | Mapping) and hasattr(values, "__len__") and len(values) == length
