"""An API server of Kubernetes on 127.0.0.1 that runs each pod as a process of this host, for tests.

Airflow's operator talks to it by the real client. A pod that is created must fit the schema of
Kubernetes. Its container ``base`` gets the pod's variables and nothing of this process's
environment; paths of the image are those of ``files``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate


class Pod:
    """One pod: its document, and the process of its container once it runs."""

    def __init__(self, body: dict[str, Any], number: int) -> None:
        meta = body["metadata"]
        meta.setdefault("name", f"{meta.get('generateName', 'pod-')}{number}")
        meta |= {"uid": f"uid-{number}", "creationTimestamp": now()}
        self.body, self.name = body, meta["name"]
        self.process: subprocess.Popen[bytes] | None = None
        self.unpullable = False

    def start(self, files: Mapping[str, Path], output: Path) -> None:
        """Run the container."""
        (container,) = (c for c in self.body["spec"]["containers"] if c["name"] == "base")
        words = [*container.get("command", []), *container.get("args", [])]
        paths = {"python": sys.executable, **{name: str(path) for name, path in files.items()}}
        self.output = output
        with open(output, "wb") as file:
            self.process = subprocess.Popen(
                [paths.get(word, word) for word in words],
                env={each["name"]: each.get("value", "") for each in container.get("env", [])},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def document(self) -> dict[str, Any]:
        """The pod as the API shows it."""
        code = None if self.process is None else self.process.poll()
        if self.unpullable:
            phase = "Pending"
            state = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
        elif code is None:
            phase = "Running"
            state = {"running": {"startedAt": now()}}
        else:
            ended = {
                "exitCode": code if code >= 0 else 128 - code,
                "reason": "Error" if code else "Completed",
            }
            ended |= {"startedAt": now(), "finishedAt": now()}
            phase = "Failed" if code else "Succeeded"
            state = {"terminated": ended}
        container = {
            "name": "base",
            "image": "x",
            "imageID": "x",
            "ready": phase == "Running",
            "restartCount": 0,
        }
        status = {"phase": phase, "containerStatuses": [{**container, "state": state}]}
        return {"apiVersion": "v1", "kind": "Pod", **self.body, "status": status}

    def end(self) -> None:
        """Kill the container's process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class FakeKubernetes:
    """A running API server. ``before_start`` is called with each new pod and may make it fail."""

    def __init__(self, folder: Path, files: Mapping[str, Path]) -> None:
        self.folder = folder
        self.files = files
        self.pods: list[Pod] = []  # also those that were deleted
        self.deleted: list[str] = []
        self.before_start: Callable[[Pod, int], None] = lambda pod, number: None
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Bound", (Handler,), {"cluster": self})
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def kube_config(self) -> Path:
        """A file by which clients find the server."""
        place = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        user = {"name": "tests", "user": {"token": "none"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": place}],
            "users": [user],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "tests"}}],
            "current-context": "fake",
        }
        path = self.folder / "kube-config.json"
        path.write_text(json.dumps(config))
        return path

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create a pod and start it. Raises ValidationError where it is not of the API's form."""
        kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)
        number = len(self.pods) + 1
        pod = Pod(body, number)
        self.pods.append(pod)
        self.before_start(pod, number)
        if not pod.unpullable:
            pod.start(self.files, self.folder / f"pod-{number}.log")
        return pod.document()

    def present(self) -> list[Pod]:
        """The pods that were not deleted."""
        return [pod for pod in self.pods if pod.name not in self.deleted]

    def stop(self) -> None:
        """End the server and all pods."""
        self._server.shutdown()
        self._server.server_close()
        for pod in self.pods:
            pod.end()


class Handler(BaseHTTPRequestHandler):
    """The requests that the operator makes of pods and events."""

    cluster: FakeKubernetes

    def do_GET(self) -> None:
        parts, query = self._asked()
        if parts[-1] == "events":
            self._answer({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": []})
        elif parts[-1] == "pods":
            fits = [
                p.document()
                for p in self.cluster.present()
                if selected(p, query.get("labelSelector", [""])[0])
            ]
            self._answer({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": fits})
        elif parts[-1] == "log":
            self._log(self._pod(parts[-2]))
        else:
            pod = self._pod(parts[-1])
            self._answer(pod.document()) if pod else self._missing()

    def do_POST(self) -> None:
        try:
            self._answer(self.cluster.create(self._body()), 201)
        except kubernetes_validate.ValidationError as error:
            self._answer(
                {"kind": "Status", "status": "Failure", "message": error.message, "code": 422}, 422
            )

    def do_PATCH(self) -> None:
        pod = self._pod(self._asked()[0][-1])
        body = self._body()
        if pod is None:
            self._missing()
            return
        pod.body["metadata"].setdefault("labels", {}).update(
            body.get("metadata", {}).get("labels", {})
        )
        self._answer(pod.document())

    def do_DELETE(self) -> None:
        pod = self._pod(self._asked()[0][-1])
        self._body()
        if pod is None:
            self._missing()
            return
        pod.end()
        self.cluster.deleted.append(pod.name)
        self._answer(pod.document())

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def _asked(self) -> tuple[list[str], dict[str, list[str]]]:
        place = urlsplit(self.path)
        return place.path.strip("/").split("/"), parse_qs(place.query)

    def _pod(self, name: str) -> Pod | None:
        return next((pod for pod in self.cluster.present() if pod.name == name), None)

    def _body(self) -> dict[str, Any]:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(data) if data else {}

    def _answer(self, document: dict[str, Any], code: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _missing(self) -> None:
        self._answer(
            {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}, 404
        )

    def _log(self, pod: Pod | None) -> None:
        """The container's output, complete once it has ended."""
        if pod is None or pod.process is None:
            self._missing()
            return
        while pod.process.poll() is None:
            time.sleep(0.05)
        lines = pod.output.read_text(errors="replace").splitlines()
        data = "".join(f"{now()} {line}\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def selected(pod: Pod, selector: str) -> bool:
    """Whether a pod has the labels of a selector: ``a=b``, ``a==b``, ``a!=b``, ``a``, ``!a``."""
    labels = pod.body["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        name, unequal, value = part.partition("!=")
        if unequal:
            fits = labels.get(name) != value
        elif "=" in part:
            name, _, value = part.replace("==", "=").partition("=")
            fits = labels.get(name) == value
        else:
            fits = (part.lstrip("!") in labels) != part.startswith("!")
        if not fits:
            return False
    return True


def now() -> str:
    """This moment, as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
