"""What viewers who only export cost everybody else: ``python -m benchmarks.page --hostile``.

A real api-server over a log of ``--runs`` runs. Forty clients, each another user, ask without a pause: first for
Airflow's own list of runs, then for the whole log as CSV, whatever they are answered. Beside each of the two one more
client looks at ``/api/v2/dags``. Promised: beside the exports it waits at most twice as long as beside Airflow's own
lists (medians of one run of this program), and the server's memory grows by at most 100 MB.
"""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

CLIENTS = 40
MOST_RATIO = 2.0
MOST_GROWTH_MB = 100.0
OWN = "/api/v2/dags/~/dagRuns?limit=50"


def measured(folder: Path, dag_id: str, seconds: float) -> bool:
    """Print the figures; whether the promises are kept. ``seconds``: how long each load lasts."""
    from tests.ui.site import api_server

    with api_server(folder) as server:
        url, tokens = server.ready(), _tokens()
        export = f"/zeus/api/dags/{dag_id}/export"
        for path in (OWN, export, f"/zeus/api/dags/{dag_id}/charts"):
            _asked(url, path, tokens[0])
        looks = {"alone": _looks(url, tokens[0], min(seconds, 10.0))}
        grown = {}
        for name, path in (("Airflow's own lists", OWN), ("exports", export)):
            before = _memory_mb(server.process.pid)
            with _load(url, path, folder / "answers.txt"):
                time.sleep(2)  # all of them have begun
                looks[name] = _looks(url, tokens[0], seconds)
                grown[name] = _memory_mb(server.process.pid) - before
            print(f"{CLIENTS} clients of {name} were answered: {(folder / 'answers.txt').read_text().strip()}")
    heads = f"{'median ms':>10} {'mean ms':>9} {'p95 ms':>9} {'looks':>6} {'memory MB':>10}"
    print(f"{'/api/v2/dags beside':<22} {heads}")
    for name, times in looks.items():
        p95_ms = sorted(times)[int(0.95 * (len(times) - 1))]
        more = f"{grown[name]:+10.0f}" if name in grown else ""
        figures = f"{statistics.median(times):10.0f} {statistics.fmean(times):9.0f} {p95_ms:9.0f} {len(times):6}"
        print(f"{name:<22} {figures} {more}")
    ratio = statistics.median(looks["exports"]) / statistics.median(looks["Airflow's own lists"])
    print(f"exports / lists: {ratio:.2f} (at most {MOST_RATIO:g}); memory: at most {MOST_GROWTH_MB:+g} MB")
    return ratio <= MOST_RATIO and grown["exports"] <= MOST_GROWTH_MB


def _tokens() -> list[str]:
    """A login of each client, all of them viewers; the server has the secret of this process's environment."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    users = (SimpleAuthManagerUser(username=f"viewer{n}", role="viewer") for n in range(CLIENTS + 1))
    return [create_auth_manager().generate_jwt(user) for user in users]


def _asked(url: str, path: str, token: str) -> int:
    """Ask once and read all of the answer; its status."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
    try:
        connection.request("GET", f"{parts.path}{path}", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        while answer.read(65536):
            pass
        return answer.status
    finally:
        connection.close()


def _looks(url: str, token: str, seconds: float) -> list[float]:
    """How long each look at ``/api/v2/dags`` took [ms], one after the other; those that failed took as long, too.

    Forty clients of Airflow's own lists exhaust its pool of connections: then it answers with 500 after 30 s.
    """
    times: list[float] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or len(times) < 5:
        began = time.perf_counter()
        _asked(url, "/api/v2/dags", token)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def _memory_mb(pid: int) -> float:
    """Of a process and its children."""
    found = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return float(sum(process.memory_info().rss for process in found)) / 1e6


@contextmanager
def _load(url: str, path: str, answers: Path) -> Iterator[None]:
    """The clients, in a process of their own, until the end; they write down how often they got which answer."""
    with answers.open("w") as out:
        command = [sys.executable, "-m", "benchmarks.cost.page_hostile", url, path]
        clients = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out)
    try:
        yield
    finally:
        clients.communicate(b"stop")


def main() -> None:
    """The clients: ask until the input ends, then say how often which status came."""
    url, path = sys.argv[1:]
    counts: Counter[str] = Counter()
    over = threading.Event()

    def client(token: str) -> None:
        while not over.is_set():
            try:
                counts[str(_asked(url, path, token))] += 1
            except (OSError, http.client.HTTPException):
                counts["cut off"] += 1

    for token in _tokens()[1:]:
        threading.Thread(target=client, args=(token,), daemon=True).start()
    sys.stdin.read()
    over.set()
    print(", ".join(f"{status} {count:,} times" for status, count in sorted(counts.items())), flush=True)
    os._exit(0)  # some of them still wait for an answer


if __name__ == "__main__":
    main()
