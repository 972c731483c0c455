"""``python -m docs_site [FOLDER]``: builds the site (default: into ``site/``). It needs no network and no Airflow of yours."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Write the pages, then build. Raises SystemExit where a link, a name or a page is missing."""
    with tempfile.TemporaryDirectory(prefix="zeus-docs-") as home:
        os.environ.update(
            AIRFLOW_HOME=home,  # read once, at Airflow's first import
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db",
            AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
            CUDA_VISIBLE_DEVICES="",
        )
        from docs_site.build import build

        build(Path(arguments[0]).resolve() if arguments else None)


if __name__ == "__main__":
    main(sys.argv[1:])
