"""The index of a Megatron data set (``.idx``): how many tokens each of its sequences has, and nothing else of it.

An index is a header (magic, version 1 as 8 bytes, the tokens' type as 1 byte, numbers of sequences and of documents as
8 bytes each), the lengths as int32, where each sequence begins and where each document ends as int64, and for
multimodal sets a byte a sequence; all little-endian.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.errors import InputError

INDEX_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = np.dtype([("magic", "S9"), ("version", "<u8"), ("tokens", "u1"), ("sequences", "<u8"), ("documents", "<u8")])


def sequence_lengths(path: Path) -> NDArray[Any]:
    """Return the lengths of an index's sequences, mapped from the file: int32[n]."""
    size = os.path.getsize(path)
    if size < _HEADER.itemsize:
        raise InputError(f"{path}: is too short for the header of a Megatron index; it is truncated")
    header = np.fromfile(path, _HEADER, 1)[0]
    if header["version"] != 1:
        raise InputError(f"{path}: is a Megatron index of version {header['version']}; version 1 is read")
    sequences, documents = int(header["sequences"]), int(header["documents"])
    # 12 = 4 for the length + 8 for where the sequence begins. Multimodal sets have one byte more for each.
    needed = _HEADER.itemsize + 12 * sequences + 8 * documents
    if size not in (needed, needed + sequences):
        told = f"{sequences} sequences and {documents} document bounds"
        raise InputError(f"{path}: its header tells of {told}, {needed} bytes, but it has {size}; it is damaged")
    if sequences == 0:
        return np.empty(0, dtype="<i4")
    return np.memmap(path, "<i4", "r", _HEADER.itemsize, (sequences,))
