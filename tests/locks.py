"""What another thread sees of a lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any


def free_for_others(lock: Any) -> bool:
    """Whether another thread could take a lock now."""

    def take() -> bool:
        taken: bool = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    with ThreadPoolExecutor(1) as other:
        return other.submit(take).result()
