"""Lambda on loopback: its Invoke API before, and its Runtime API behind, the real functions."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import uuid
from base64 import b64decode
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

RUNTIME = "/2018-06-01/runtime/"


class Lambda:
    """Runs one function, one invocation at a time, as an execution environment of Lambda does.

    Its Invoke API serves the functions in `others`, too, by their names.
    """

    def __init__(
        self, binary: Path, environment: Mapping[str, str], others: Mapping[str, Lambda] | None = None
    ) -> None:
        self.invocations: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.refusal: tuple[int, dict[str, str]] | None = None  # Lambda's own refusal
        self._others = others or {}
        self._events: queue.Queue[tuple[str, bytes, str | None]] = queue.Queue()
        self._results: dict[str, queue.Queue[tuple[bool, bytes]]] = {}
        function = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                assert self.path == RUNTIME + "invocation/next"
                request_id, event, context = function._events.get()
                headers = {
                    "Lambda-Runtime-Aws-Request-Id": request_id,
                    "Lambda-Runtime-Deadline-Ms": "4102444800000",
                    "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:eu-west-1:0:function:leasehold",
                }
                if context is not None:
                    headers["Lambda-Runtime-Client-Context"] = b64decode(context).decode()
                self.reply(200, headers, event)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith(RUNTIME):
                    *_, request_id, end = self.path.split("/")
                    if request_id in function._results:
                        function._results[request_id].put((end == "error", body))
                    self.reply(202, {}, b"{}")
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                function.invocations.append((self.path, headers, json.loads(body)))
                if function.refusal is not None:
                    status, document = function.refusal
                    self.reply(status, {}, json.dumps(document).encode())
                    return
                invoked = function._others.get(self.path.split("/")[3], function)
                failed, content = invoked._run(body, headers.get("x-amz-client-context"))
                self.reply(200, {"X-Amz-Function-Error": "Unhandled"} if failed else {}, content)

            def reply(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
                try:
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(content))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{address}"
        self._process = subprocess.Popen(
            [str(binary)],
            env={
                "PATH": os.environ["PATH"],
                "AWS_LAMBDA_RUNTIME_API": address,
                "AWS_LAMBDA_FUNCTION_NAME": "leasehold",
                "AWS_LAMBDA_FUNCTION_VERSION": "1",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
                "AWS_LAMBDA_LOG_GROUP_NAME": "leasehold",
                "AWS_LAMBDA_LOG_STREAM_NAME": "leasehold",
                "AWS_REGION": "eu-west-1",
                "AWS_ACCESS_KEY_ID": "any",
                "AWS_SECRET_ACCESS_KEY": "any",
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _run(self, event: bytes, context: str | None) -> tuple[bool, bytes]:
        """Whether the function failed, and its answer."""
        request_id = str(uuid.uuid4())
        result = self._results[request_id] = queue.Queue()
        self._events.put((request_id, event, context))
        return result.get(timeout=30)

    def __enter__(self) -> Lambda:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
