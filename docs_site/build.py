"""Pages to site: writes the pages, and lets MkDocs build them."""

from __future__ import annotations

import logging
import shutil
import tomllib
from pathlib import Path

from mkdocs.commands.build import build as mkdocs_build
from mkdocs.config import load_config

from docs_site import ROOT
from docs_site.pages import staged

SCHEMAS = ROOT / "airflow_provider_zeus" / "schemas"


def address() -> str:
    """Where the site is published, as ``pyproject.toml`` says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Documentation"])


def build(site: Path | None = None, pages: Path | None = None) -> Path:
    """Build the site into a folder (default: ``site/``) and return it.

    :param pages: folder for the pages that are built from; default: ``build/docs``.

    Raises mkdocs.exceptions.Abort: a link, an anchor,
    a public name or a page of the menu is missing.
    """
    more = {name: str(path) for name, path in (("site_dir", site), ("docs_dir", pages)) if path}
    staged(pages or ROOT / "build" / "docs")
    log = logging.getLogger("mkdocs")
    log.setLevel(logging.WARNING)  # strict counts what is logged, at any level of Airflow's own
    log.addHandler(logging.StreamHandler())
    config = load_config(str(ROOT / "mkdocs.yml"), site_url=address(), **more)
    config.plugins.run_event("startup", command="build", dirty=False)
    try:
        mkdocs_build(config)
    finally:
        config.plugins.run_event("shutdown")
    shutil.copytree(SCHEMAS, Path(config.site_dir) / "schemas", dirs_exist_ok=True)
    return Path(config.site_dir)
