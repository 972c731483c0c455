"""The routes of ``zeusd`` (zeus 0.16) that set power limits, strictly,
on the driver of this process.

``python -m tests.fake_zeusd SOCKET [--groups gpu-read,gpu-control] [--token TOKEN] [--scopes
gpu-control]``: an HTTP server on a Unix socket. As the daemon does, it knows GPUs by their index,
takes its arguments from the query string, refuses unknown, missing and malformed ones with 400,
routes of API groups that are off with 404, missing or wrong tokens with 401, missing scopes with
403, and answers 200 with an empty body when a limit was set. Needs pynvml alone.
"""

from __future__ import annotations

import argparse
import json
import socketserver
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pynvml

STATUS = {2: 400, 4: 403}  # NVML's invalid argument and no permission; anything else is 500


class RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace

    def do_GET(self) -> None:
        self._answer(
            {
                "/discover": self._discover,
                "/auth/whoami": self._whoami,
                "/gpu/get_power_limit": self._limits,
            }
        )

    def do_POST(self) -> None:
        self._answer({"/gpu/set_power_limit": self._set})

    def _answer(self, routes: dict[str, Any]) -> None:
        asked = urlsplit(self.path)
        try:
            if asked.path not in routes:
                raise RefusedError(404, "")
            body = routes[asked.path](
                dict(parse_qsl(asked.query, strict_parsing=bool(asked.query)))
            )
            status = 200
            text = json.dumps(body) if body is not None else ""
        except RefusedError as error:
            status = error.status
            text = str(error)
        except ValueError as error:
            status = 400
            text = f"Query deserialize error: {error}"
        except pynvml.NVMLError as error:
            status = STATUS.get(error.value, 500)
            text = f"NVML error: {error}"
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _discover(self, query: dict[str, str]) -> Any:
        names = [pynvml.nvmlDeviceGetName(gpu) for gpu in self._gpus()]
        return {
            "gpus": [{"id": index, "name": name} for index, name in enumerate(names)],
            "cpus": [],
            "enabled_api_groups": self.options.groups.split(","),
            "auth_required": self.options.token is not None,
        }

    def _whoami(self, query: dict[str, str]) -> Any:
        self._authorise()
        return {"sub": "a test", "scopes": self.options.scopes.split(","), "exp": None}

    def _limits(self, query: dict[str, str]) -> Any:
        self._authorise("gpu-read")
        limits = map(pynvml.nvmlDeviceGetPowerManagementLimit, self._gpus())
        return {str(index): {"power_limit_mw": limit_mw} for index, limit_mw in enumerate(limits)}

    def _set(self, query: dict[str, str]) -> None:
        self._authorise("gpu-control")
        if set(query) != {"gpu_ids", "power_limit_mw", "block"}:
            raise ValueError(f"unknown or missing field among {sorted(query)}")
        if query["block"] not in ("true", "false"):
            raise ValueError("provided string was not `true` or `false`")
        if not query["power_limit_mw"].isdecimal():
            raise ValueError("invalid digit found in string")
        gpus = self._gpus()
        indices = [int(part) for part in query["gpu_ids"].split(",") if part.strip().isdecimal()]
        if not indices:
            raise RefusedError(400, '{"error":"gpu_ids must contain at least one GPU index"}')
        for index in indices:
            if index >= len(gpus):
                raise RefusedError(400, f"GPU index {index} does not exist.")
        for index in indices:
            pynvml.nvmlDeviceSetPowerManagementLimit(gpus[index], int(query["power_limit_mw"]))

    def _authorise(self, group: str = "") -> None:
        if group and group not in self.options.groups.split(","):
            raise RefusedError(404, "")
        if self.options.token is None:
            return
        if self.headers.get("Authorization") != f"Bearer {self.options.token}":
            raise RefusedError(401, '{"error":"missing or invalid token"}')
        if group and group not in self.options.scopes.split(","):
            raise RefusedError(403, '{"error":"insufficient scope"}')

    def _gpus(self) -> list[Any]:
        return [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]

    def address_string(self) -> str:
        return "a Unix socket"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("--groups", default="gpu-read,gpu-control")
    parser.add_argument("--token")
    parser.add_argument("--scopes", default="gpu-read,gpu-control")
    Handler.options = parser.parse_args()
    pynvml.nvmlInit()
    with Server(Handler.options.socket, Handler) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
