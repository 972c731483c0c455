"""``python -m docs_site [SITE [PAGES]]`` builds the site,
by default ``site/`` from ``build/docs/``; no network.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Write the pages, then build.

    Raises mkdocs.exceptions.Abort where a link, a name or a page is missing.
    """
    with tempfile.TemporaryDirectory(prefix="zeus-docs-") as home:
        os.environ.update(
            AIRFLOW_HOME=home,  # read once, at Airflow's first import
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db",
            AIRFLOW__LOGGING__LOGGING_LEVEL="ERROR",
            CUDA_VISIBLE_DEVICES="",
        )
        from docs_site.build import build

        site, pages = ([Path(argument).resolve() for argument in arguments] + [None, None])[:2]
        print(f"The site is in {build(site, pages)}.")


if __name__ == "__main__":
    main(sys.argv[1:])
