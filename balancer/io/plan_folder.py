"""A plan as a folder of parts that several processes write, put in place by its manifest alone.

Whoever writes, each part is a file of its own, complete as soon as it has its name; its name and its description say
to which plan it belongs. What a killed run left is told from what belongs to another one, and can be gone on from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from balancer.errors import InputError
from balancer.io._atomic import (
    check_folder,
    claim_temporary,
    leftovers_of,
    remove_files,
    remove_leftovers,
    reported,
    sync_file,
    sync_folder,
)
from balancer.io.plan_format import (
    FORMAT,
    MANIFEST,
    PART_FORMAT,
    PART_NAME,
    VERSION,
    header,
    manifest_of,
    read_manifest,
    to_json,
)
from balancer.io.plan_reader import read_footer
from balancer.io.store import as_path, exists, is_remote, names_in, remove, write

_HERE = "write a plan here"
_FOREIGN = f"the {MANIFEST} in it is not a plan's"
_OF_PART = ("file", "rows", "first_step", "last_step", "digest")
_TOKEN_DIGITS = 8
_TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{8}\.tmp")


class PlanFolder:
    """The folder of one plan while it is written; what was there before stays until :meth:`commit`.

    Leaving its ``with`` block before that keeps whole parts, from which a run that resumes goes on.

    Parameters
    ----------
    path : str or path
        Created if only its last component is missing. In a store nobody can lock it: two runs of different plans there
        end with one of them, and parts of the other remain.
    key : str
        At least 8 hexadecimal digits that tell the plan from all others: of source, settings and version.
    resume : bool
        Go on from what is there, and refuse a folder with anything that is not of this plan.
    """

    def __init__(self, path: str | os.PathLike[str], key: str, *, resume: bool = False) -> None:
        self._where, self._key, self._token = os.fspath(path), key, key[:_TOKEN_DIGITS]
        self._resume, self._remote, self._made = resume, is_remote(path), False
        if self._remote:
            self._folder = str(as_path(self._where))
            self._old_parts = self._parts_of_old()
            if resume:
                self._check_entries()
            return
        with reported(self._where, _HERE):
            self._folder = os.path.realpath(self._where)
            self._made = self._make_folder()
            if resume:
                self._check_entries()
            self._file, self._temporary = claim_temporary(self._folder, MANIFEST, self._token)

    def _make_folder(self) -> bool:
        """Create the folder if need be (True); refuse one whose manifest belongs to something else."""
        where, path = self._where, self._folder
        if not os.path.lexists(path):
            check_folder(where, os.path.dirname(path), _HERE)
            os.mkdir(path)
            return True
        check_folder(where, path, _HERE)
        if os.path.lexists(os.path.join(path, MANIFEST)):
            try:
                is_ours = manifest_of(where).get("format") == FORMAT  # of any version: the new one replaces it
            except InputError:
                is_ours = False
            if not is_ours:
                raise InputError(f"{where}: cannot {_HERE}: {_FOREIGN}; choose another folder")
        return False

    def _parts_of_old(self) -> list[str]:
        """Return the parts of the plan that is in a store's folder, which the new one will replace."""
        if not exists(f"{self._folder}/{MANIFEST}"):
            return []
        found = manifest_of(self._folder)
        if found.get("format") != FORMAT:
            raise InputError(f"{self._where}: cannot {_HERE}: {_FOREIGN}")
        if found.get("version") != VERSION:
            return []
        return [part["file"] for part in read_manifest(self._folder)["parts"]]

    @cached_property
    def _there(self) -> set[str]:
        """What was in the folder when it was first asked for."""
        return set(names_in(self._folder))

    def _check_entries(self) -> None:
        for entry in sorted(self._there):
            told = _TEMPORARY.fullmatch(entry)
            name = told[1] if told else entry
            # A temporary manifest is none yet: only one that is in place says whose the folder is.
            if name == MANIFEST and not told and manifest_of(self._where).get("key") != self._key:
                raise self._foreign(entry)
            part = PART_NAME.fullmatch(name)
            if name != MANIFEST and (part is None or part[1] != self._token):
                raise self._foreign(entry)

    def _foreign(self, entry: str) -> InputError:
        return InputError(
            f"{os.path.join(self._where, entry)}: is not of the plan to resume: its source, its settings or the "
            "version differ; remove it, choose another folder, or plan without resuming"
        )

    def part(self, number: int) -> str:
        """Return the path of a part's file."""
        return os.path.join(self._folder, f"part-{self._token}-{number:05d}.parquet")

    def whole(self, number: int) -> dict[str, Any] | None:
        """Return the description of a part that a run before has written whole, if this one resumes; else None."""
        path = self.part(number)
        if not self._resume or os.path.basename(path) not in self._there:
            return None
        try:
            _, _, rows, found = read_footer(as_path(path))
        except InputError:
            return None  # which is damaged, and is written anew
        if (found.get("format"), found.get("version"), found.get("key")) != (
            PART_FORMAT, VERSION, self._key,
        ):  # fmt: skip
            raise self._foreign(os.path.basename(path))
        # A part with other rows than it says is written anew.
        return found if found.get("part") == number and found.get("rows") == rows else None

    def commit(self, description: Mapping[str, object], parts: Sequence[Mapping[str, Any]]) -> Path:
        """Put the plan in place of what was there, and remove parts of plans that nobody writes any more.

        `description` is the plan's; `parts` are the descriptions of its parts, in order.
        """
        named = [
            {name: os.path.basename(self.part(part["part"])) if name == "file" else part[name] for name in _OF_PART}
            for part in parts
        ]
        if self._remote:
            # The manifest first: until it is replaced, readers need the old parts.
            write(f"{self._folder}/{MANIFEST}", to_json(header(description, key=self._key, parts=named)))
            for name in set(self._old_parts) - {part["file"] for part in named}:
                remove(f"{self._folder}/{name}")
            return as_path(self._where)
        with reported(self._where, "write the plan"):
            self._file.write(to_json(header(description, key=self._key, parts=named)))
            sync_file(self._file)
            sync_folder(self._folder)
            # Listed before the new manifest is in place, removed after it: a kill in between leaves one whole plan.
            leftovers = leftovers_of(self._folder, MANIFEST, self._token, PART_NAME)
            leftovers += self._begun()
            os.replace(self._temporary, os.path.join(self._folder, MANIFEST))
        sync_folder(self._folder)
        self._file.close()
        remove_leftovers(leftovers)
        return Path(self._where)

    def _begun(self) -> list[str]:
        """Return the files of parts of this plan that were begun and are not whole; whoever wrote them has ended."""
        found = ((entry, _TEMPORARY.fullmatch(entry)) for entry in os.listdir(self._folder))
        parts = [(entry, PART_NAME.fullmatch(told[1])) for entry, told in found if told]
        return [os.path.join(self._folder, entry) for entry, part in parts if part and part[1] == self._token]

    def __enter__(self) -> PlanFolder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._remote or self._file.closed:
            return
        self._file.close()
        with suppress(OSError):
            remove_files([self._temporary])
            remove_leftovers(self._begun())
            if self._made:
                os.rmdir(self._folder)  # if it has no parts
