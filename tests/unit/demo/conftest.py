"""The DAG folder on the import path, as Airflow puts it there."""

from __future__ import annotations

import sys
from pathlib import Path

DAGS = Path(__file__).parents[3] / "dags"
if str(DAGS) not in sys.path:
    sys.path.append(str(DAGS))
