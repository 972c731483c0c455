"""The data routes of the page of all jobs. Loaded by the api-server alone."""

# No "from __future__ import annotations": FastAPI would take its dependencies for query parameters.
from fastapi import APIRouter  # noqa: TID253 - see above

router = APIRouter(prefix="/api/jobs")
