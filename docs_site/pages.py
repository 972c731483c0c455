"""Which pages the site has, and where each lies on it.

``staged`` writes them all into a folder for the builder.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from docs_site import ROOT
from docs_site.prose import prepared
from docs_site.reference import GENERATED

MOVED = {  # pages outside of docs/, and where they lie on the site
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docker/README.md": "how-to/containers.md",
    "README.md": "index.md",
}
OWN_HOME = "README.md"  # docs/index.md is the site's first page; links to the README lead there
ASSETS = (".png", ".json", ".svg")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".md": "markdown", ".json": "json"}


def staged(folder: Path) -> list[str]:
    """Write all pages and their pictures into the folder, made empty before;
    returns the paths of the pages.

    Raises ValueError: a page links to a file that is not there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    sources: set[str] = set()
    for path in _written():
        place = MOVED.get(path, path.removeprefix("docs/"))
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            _write(folder / place, prepared(text, _linker(path, place, sources)))
        else:
            _copy(ROOT / path, folder / place)
    for file in sorted((ROOT / "docs_site" / "static").iterdir()):
        _copy(file, folder / "assets" / file.name)
    for place, page in GENERATED.items():
        _write(folder / place, page())
    for path in sorted(sources):
        _write(folder / source_page(path), _source(path))
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.md"))


def _written() -> Iterator[str]:
    """Paths of the pages and pictures that people wrote, relative to the repository."""
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in (".md", *ASSETS):
            yield str(path.relative_to(ROOT))
    yield from (path for path in MOVED if path != OWN_HOME)


def _linker(page: str, place: str, sources: set[str]) -> Callable[[str], str]:
    """Gives the target of a link on the site; a linked file that is no page gets one,
    and is added to ``sources``.
    """

    def link(target: str) -> str:
        path, mark, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if not (ROOT / found).exists():
            raise ValueError(f"{page} links to {target}, which is not there")
        inside = found.startswith("docs/") and Path(found).suffix in (".md", *ASSETS)
        if inside or found in MOVED:
            to = MOVED.get(found, found.removeprefix("docs/"))
        else:
            sources.add(found)
            to = source_page(found)
        return posixpath.relpath(to, posixpath.dirname(place) or ".") + mark + anchor

    return link


def source_page(path: str) -> str:
    """Where a file of the repository that is no page, or a folder, lies on the site."""
    return f"source/{path.replace('/', '-').replace('.', '-')}.md"


def _source(path: str) -> str:
    """A page that shows a file, or lists what a folder holds."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(
            each.name for each in file.iterdir() if not each.name.startswith((".", "__pycache__"))
        )
        return f"# {path}\n\nThe folder `{path}` of the repository holds:\n\n" + "".join(
            f"- `{n}`\n" for n in names
        )
    language = LANGUAGES.get(file.suffix, "text")
    return (
        f"# {file.name}\n\n`{path}` in the"
        f" repository:\n\n``````{language}\n{file.read_text()}``````\n"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)
    os.chmod(to, 0o644)
