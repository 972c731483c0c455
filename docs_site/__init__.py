"""Makes the documentation site: the pages of this repository,
and a reference that is read off the code.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
