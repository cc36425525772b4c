"""Whether a folder can be trusted with code: compiled kernels are pickles, and whoever can write one is run by us."""

import os
import stat
from pathlib import Path


def is_ours(folder: str | os.PathLike[str]) -> bool:
    """Whether nobody can change what lies in a folder but us, root, and the owner of this package's source.

    A folder that is not there yet is judged by the one that it would be made in. Where a system has no such users, all
    are ours.
    """
    if not hasattr(os, "geteuid"):
        return True
    trusted = {0, os.geteuid(), os.stat(__file__).st_uid}
    holds_it = True  # the folder itself, not one above
    path = Path(os.path.realpath(folder))
    # Every folder above counts: whoever may write to one can exchange what it holds.
    for each in (path, *path.parents):
        try:
            about = each.lstat()
        except FileNotFoundError:
            continue
        except OSError:
            return False
        kept = bool(about.st_mode & stat.S_ISVTX) and not holds_it  # in such a folder, what is ours stays ours
        # A group of nobody but its user is harmless; many systems give each user one.
        by_others = about.st_mode & stat.S_IWOTH or (
            about.st_mode & stat.S_IWGRP and not _is_alone(about.st_gid, trusted)
        )
        if about.st_uid not in trusted or (by_others and not kept):
            return False
        holds_it = False
    return True


def _is_alone(group: int, trusted: set[int]) -> bool:
    """Whether a group is that of one of these users, of its name, with no other members, as many systems make them."""
    import grp
    import pwd

    try:
        found = grp.getgrgid(group)
        return pwd.getpwnam(found.gr_name).pw_uid in trusted and set(found.gr_mem) <= {found.gr_name}
    except KeyError:
        return False
