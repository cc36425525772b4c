"""A plan as a folder of parts, each of which is a plan file: their names, and which of them are there.

Whoever writes a part, the part has its name when it is whole, and the name says of which plan it is, which part, and of
how many. So a run that was killed is gone on from by the same command, which makes the parts that are missing. Nothing
else lies in the folder under a name without a leading dot: readers of Parquet folders read a plan as it is.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from balancer.errors import InputError
from balancer.io._atomic import check_folder, reported
from balancer.io.store import as_path, is_remote, names_in, remove

_PART = re.compile(r"part-([0-9a-f]{16})-(\d{5,})-of-(\d{5,})\.parquet")
KEY_DIGITS = 16


class PartName(NamedTuple):
    """What the name of a part says."""

    key: str  # that tells its plan from all others: of source, settings and version
    number: int
    total: int  # parts of the plan

    def __str__(self) -> str:
        return f"part-{self.key}-{self.number:05d}-of-{self.total:05d}.parquet"


def parts_in(folder: str | os.PathLike[str]) -> list[PartName]:
    """Return the parts that are in a folder, those of a plan in order; none where there is no folder."""
    names = names_in(folder) if is_remote(folder) or os.path.isdir(folder) else []
    found = (_PART.fullmatch(name) for name in names)
    return sorted(PartName(each[1], int(each[2]), int(each[3])) for each in found if each)


def whole_plan(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the parts of the plan that a folder holds, in order; InputError unless it holds one, and all of it."""
    where, there = os.fspath(folder), parts_in(folder)
    if not there:
        raise InputError(f"{where}: holds no plan: no part of one, such as {PartName('0' * KEY_DIGITS, 0, 1)}")
    plans = {(part.key, part.total): [each for each in there if (each.key, each.total) == (part.key, part.total)]
             for part in there}  # fmt: skip
    whole = [parts for (_, count), parts in plans.items() if [part.number for part in parts] == list(range(count))]
    if len(whole) > 1:
        names = " and ".join(str(parts[0]) for parts in whole)
        raise InputError(f"{where}: holds the parts of {len(whole)} plans, {names}: remove those of all but one")
    if not whole:
        of_first = next(iter(plans.values()))
        total, numbers = of_first[0].total, [part.number for part in of_first]
        missing = min(set(range(total)) - set(numbers), default=None)
        if missing is None:
            odd = next(part for at, part in enumerate(of_first) if part.number >= total or part.number in numbers[:at])
            raise InputError(
                f"{where}: holds {len(of_first)} files of a plan of {total} parts: {odd} is beyond them, or there in "
                "two spellings; remove what is too much"
            )
        raise InputError(
            f"{where}: holds {len(of_first)} of the {of_first[0].total} parts of its plan, and "
            f"{of_first[0]._replace(number=missing)} is missing: the command that planned it makes the rest"
        )
    return [as_path(where) / str(part) for part in whole[0]]


@contextmanager
def written(folder: str, key: str) -> Iterator[None]:
    """Make the folder of a plan while its parts are written, if only its last component is missing.

    In the end nothing is left of parts that were begun and are not whole: whoever wrote them has ended. A folder that
    was made here goes, too, if it has no part.
    """
    if is_remote(folder):
        yield
        return
    doing, made = "write a plan here", False
    with reported(folder, doing):
        target = os.path.realpath(folder)
        if not os.path.lexists(target):
            check_folder(folder, os.path.dirname(target), doing)
            os.mkdir(target)
            made = True
        check_folder(folder, target, doing)
    try:
        yield
    finally:
        begun = [name for name in os.listdir(target) if name.startswith(f".part-{key}-")]
        remove_parts(target, begun)
        if made:
            with suppress(OSError):
                os.rmdir(target)  # if it has no parts


def remove_parts(folder: str, parts: Iterable[Any]) -> None:
    """Delete parts of a folder; one that cannot be deleted is litter, not a failure."""
    for part in parts:
        path = os.path.join(folder, str(part))
        if is_remote(folder):
            remove(path)
        else:
            with suppress(OSError):
                os.unlink(path)
