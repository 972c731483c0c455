"""How this package makes its folders and files on a host: for this user alone, or for one group.

A folder gets mode 0700 and a file 0600. Where ``[zeus] shared_group`` names a group, a folder of that group with mode
2770 is shared, and so is what is made inside it: 2770 and 0660. ``ZEUS_SHARED_GROUP`` in the
environment hands the group on to processes without Airflow. What is there already keeps its modes.

Another user may have put a file there first. So no symbolic link is followed, opening never waits, and only a plain
file of this user, of root or of the folder's group counts. Standard library only.
"""

from __future__ import annotations

import errno
import grp
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

SHARE = "name a group of both users by [zeus] shared_group"
SHARED_GROUP = "ZEUS_SHARED_GROUP"  # environment variable: a group by name or number

_FOLDER, _SHARED_FOLDER, _FILE, _SHARED_FILE = 0o700, 0o2770, 0o600, 0o660


def share_with(group: str) -> None:
    """Share with a group, given by name or number, from now on and in processes that this one starts."""
    if group:
        os.environ[SHARED_GROUP] = group


def make_folder(path: str | os.PathLike[str], group: str = "") -> None:
    """Make a folder, and those above it that are missing.

    :param group: whose members share what is made here; empty: as the folder above is shared, or not.

    Raises OSError: it cannot be made, there is no such group, or another user may have made it.
    """
    place = Path(os.path.abspath(path))
    missing = [each for each in (place, *place.parents) if not each.exists()]
    _check_owners(missing[-1].parent if missing else place)  # before anything is made behind a link
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was first
            new_folder(each, group)
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    _check_owners(place)


def new_folder(path: str | os.PathLike[str], group: str = "") -> None:
    """Make one folder that is not there yet. Raises OSError."""
    gid = _gid_of(group) if group else None
    above = os.stat(Path(path).parent)
    os.mkdir(path, _FOLDER)
    if gid is None and _shares(above):
        gid = above.st_gid
    if gid is not None:
        _share_folder(path, gid)


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a plain file; ``os.O_CREAT`` makes it where it is missing, with ``os.O_EXCL`` only there.

    Raises OSError: it cannot be opened, is no plain file, or it or its folder is another user's (PermissionError).
    """
    place = Path(os.path.abspath(path)).parent
    _check_owners(place)
    folder = os.stat(place)
    try:
        descriptor, made = _opened(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise PermissionError(error.errno, f"{error.strerror} (another user's? Then {SHARE})", str(path)) from None
    try:
        if not made:
            _check_file(os.fstat(descriptor), folder, path)
        elif _shares(folder):
            os.chmod(descriptor, _SHARED_FILE)  # its group is the folder's already
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_shared(folder: str | os.PathLike[str]) -> bool:
    """Whether what is made in this folder is shared with its group. Raises OSError."""
    return _shares(os.stat(folder))


def _share_folder(path: str | os.PathLike[str], gid: int) -> None:
    """Give a folder that was just made to a group; whatever a member of it swaps it for is left as it is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "was replaced while it was made", str(path))
        os.fchown(descriptor, -1, gid)
        os.fchmod(descriptor, _SHARED_FOLDER)
    finally:
        os.close(descriptor)


def _opened(path: str | os.PathLike[str], flags: int) -> tuple[int, bool]:
    """(descriptor, whether the file was made here)."""
    if flags & os.O_CREAT:
        try:
            return os.open(path, flags | os.O_EXCL, _FILE), True
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
    return os.open(path, flags & ~os.O_CREAT), False


def _check_file(found: os.stat_result, folder: os.stat_result, path: Any) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    if _shares(folder):
        return
    if _is_foreign(found):
        said = f"belongs to user {found.st_uid}, who is neither this one nor root: remove it, or {SHARE}"
        raise PermissionError(errno.EPERM, said, str(path))
    if found.st_nlink > 1 and folder.st_mode & 0o022:  # a link that another user made to a file of this one
        raise PermissionError(errno.EPERM, "has another name elsewhere: remove it", str(path))


def _check_owners(place: Path) -> None:
    """Raises PermissionError where another user made a folder of this path, in one in which every user may."""
    real = Path(os.path.realpath(place))
    for each in {place, *place.parents, real, *real.parents}:
        if _is_foreign(os.lstat(each)) and os.stat(each.parent).st_mode & stat.S_IWOTH:
            said = (
                f"user {os.lstat(each).st_uid} made {each}, where every user may: use a folder that this user or root "
                "made, by [zeus] state_dir or ZEUS_STATE_DIR"
            )
            raise PermissionError(errno.EPERM, said, str(place))


def _shares(folder: os.stat_result) -> bool:
    group = os.environ.get(SHARED_GROUP, "")
    if not group or folder.st_mode & 0o2022 != 0o2020:  # setgid, the group may write, others may not
        return False
    with suppress(OSError):  # there is no such group
        return folder.st_gid == _gid_of(group)
    return False


def _is_foreign(found: os.stat_result) -> bool:
    return found.st_uid not in (0, os.geteuid())


def _gid_of(group: str) -> int:
    """The id of a group, given by name or number. Raises OSError."""
    with suppress(KeyError):
        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    raise OSError(errno.EINVAL, f"[zeus] shared_group = {group!r}: there is no such group on this host; add it")
