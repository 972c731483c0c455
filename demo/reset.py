"""``make demo-reset``: removes the demo's state.

Standard library only: it needs no installation.
"""

from __future__ import annotations

import shutil
import sys

from demo.guards import alone
from demo.settings import STATE, DemoError


def main() -> int:
    """Remove ``.demo``; refuses while a demo runs. Returns the exit status."""
    if not STATE.exists():
        print("There is nothing to remove.")
        return 0
    try:
        with alone():
            shutil.rmtree(STATE)
    except DemoError as error:
        print(f"Nothing is removed: {error}", file=sys.stderr)
        return 1
    print(f"{STATE} is removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
