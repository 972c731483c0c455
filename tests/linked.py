"""A virtual environment that holds some distributions and what they need, without pip:
hard links of this one's files.

Installing Airflow by pip takes a minute; this takes seconds. Versions are this environment's.
"""

from __future__ import annotations

import os
import shutil
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def environment(folder: Path, *requirements: str, with_pip: bool = False) -> Path:
    """The Python of a new environment in the folder.

    :param requirements: as in ``Requires-Dist``; one that is not installed here is left out, as are
        command lines of the distributions (``python -m airflow`` starts Airflow).
    """
    venv.create(folder, with_pip=with_pip)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in _closure(requirements).values():
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            inside = not str(file).startswith("..")
            if inside and source.is_file() and not (packages / file).exists():
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                _link(source, packages / file)
    return folder / "bin/python"


def _closure(requirements: tuple[str, ...]) -> dict[str, Distribution]:
    """By name: the distributions and, by their own requirements, all that they need here."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    due = [(Requirement(r), "") for r in requirements]
    while due:
        required, extra = due.pop()
        if required.marker and not required.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(required.name)
        wanted = [(name, extra) for extra in ("", *required.extras) if (name, extra) not in seen]
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # of an extra that this environment lacks; pip says what is missing
        seen |= set(wanted)
        due += [(Requirement(r), extra) for _, extra in wanted for r in found[name].requires or ()]
    return found


def _link(source: Path, to: Path) -> None:
    try:
        os.link(source, to)
    except OSError:  # another disk
        shutil.copy2(source, to)
