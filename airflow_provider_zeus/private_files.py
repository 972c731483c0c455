"""Creates the folders and files of this package on a host: for this user alone, or for one group.

A folder gets mode 0700 and a file 0600. If ``[zeus] shared_group`` names a group, a folder of that
group with mode 2770 is shared, and files created inside it get 2770 and 0660. The environment
variable ``ZEUS_SHARED_GROUP`` passes the group to processes without Airflow. Existing files keep
their modes.

Another user may have put a file there first. So no symbolic link is followed, opening never blocks,
and only a regular file of this user, of root or of the folder's group is used. Standard library
only.
"""

from __future__ import annotations

import errno
import grp
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SHARE = "name a group of both users by [zeus] shared_group"
SHARED_GROUP = "ZEUS_SHARED_GROUP"  # tasks of several users may share a host


def share_with(group: str) -> None:
    """Share with a group, given by name or number, in this process and the processes that it
    starts.
    """
    if group:
        os.environ[SHARED_GROUP] = group


def make_folder(path: str | os.PathLike[str], group: str = "") -> None:
    """Create a folder and its missing parents.

    :param group: group that shares the new folders; empty: shared if the parent folder is shared.

    Raises OSError: it cannot be created, there is no such group, or another user may have created
    it.
    """
    place = Path(os.path.abspath(path))
    # Folders that are there keep their modes: they may be shared with others.
    missing = [folder for folder in (place, *place.parents) if not folder.exists()]
    # before anything is created behind a link
    _check_owners(missing[-1].parent if missing else place)
    # From the outermost on: each is made inside one whose owner is known.
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process was first
            new_folder(folder, group)
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    _check_owners(place)


def new_folder(path: str | os.PathLike[str], group: str = "") -> None:
    """Create one folder that does not exist yet. Raises OSError."""
    gid = _gid_of(group) if group else None
    parent = os.stat(Path(path).parent)
    os.mkdir(path, 0o700)
    if gid is None and shares(parent):
        gid = parent.st_gid
    if gid is None:
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(path, flags)) as descriptor:
        if os.fstat(descriptor).st_uid != os.geteuid():  # a member of the group has replaced it
            raise PermissionError(errno.EPERM, "was replaced while it was created", str(path))
        os.fchown(descriptor, -1, gid)
        os.fchmod(descriptor, 0o2770)


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close an open file or folder at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file and return its descriptor; ``os.O_CREAT`` and ``os.O_EXCL`` work as in
    ``os.open``.

    Raises OSError: it cannot be opened, is no regular file, or it or its folder is another user's
    (PermissionError).
    """
    place = Path(os.path.abspath(path)).parent
    _check_owners(place)
    folder = os.stat(place)
    empties = flags & os.O_TRUNC
    flags = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    is_new = bool(flags & os.O_CREAT)
    try:
        try:
            # O_EXCL tells whether the file is new: one that was there must be looked at.
            descriptor = os.open(path, flags | os.O_EXCL if is_new else flags, 0o600)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            is_new = False
            descriptor = os.open(path, flags & ~os.O_CREAT)
    except PermissionError as error:
        raise PermissionError(
            error.errno, f"{error.strerror} (another user's? Then {SHARE})", str(path)
        ) from None
    try:
        if not is_new:
            _check_file(os.fstat(descriptor), folder, path)
        elif shares(folder):
            os.chmod(descriptor, 0o660)  # setgid gave it the group, and 0600 no right of it
        if empties:  # not before it was looked at
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def shares(folder: os.stat_result) -> bool:
    """Whether new files in a folder of this status are shared with its group."""
    group = os.environ.get(SHARED_GROUP, "")
    # Only setgid hands the group on to new files, and a folder that all may write is no group's.
    if not group or folder.st_mode & 0o2022 != 0o2020:
        return False
    with suppress(OSError):  # there is no such group
        return folder.st_gid == _gid_of(group)
    return False


def _check_file(found: os.stat_result, folder: os.stat_result, path: Any) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    if shares(folder):
        return
    # Another user could swap the file between our look and our write.
    if found.st_uid not in (0, os.geteuid()):
        problem = (
            f"belongs to user {found.st_uid}, who is neither this one nor root: remove it, or "
            f"{SHARE}"
        )
        raise PermissionError(errno.EPERM, problem, str(path))
    # Another user may have made it as a link to a file of this one, to be overwritten.
    if found.st_nlink > 1 and folder.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "has another name elsewhere: remove it", str(path))


def _check_owners(place: Path) -> None:
    """Raise PermissionError if another user created a folder of this path inside a
    world-writable one.
    """
    real = Path(os.path.realpath(place))
    # A link on the way could be turned to another folder by its owner.
    for folder in {place, *place.parents, real, *real.parents}:
        owner = os.lstat(folder).st_uid
        if owner not in (0, os.geteuid()) and os.stat(folder.parent).st_mode & stat.S_IWOTH:
            problem = (
                f"user {owner} made {folder}, where every user may: use a folder that this user or "
                "root made, by [zeus] state_dir or ZEUS_STATE_DIR"
            )
            raise PermissionError(errno.EPERM, problem, str(place))


def _gid_of(group: str) -> int:
    """The id of a group, given by name or number. Raises OSError."""
    with suppress(KeyError):
        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    raise OSError(
        errno.EINVAL,
        f"[zeus] shared_group = {group!r}: there is no such group on this host; add it",
    )
