"""A loopback proxy that drops, delays, refuses and falsifies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeAlias

import urllib3


@dataclass(frozen=True)
class Seen:
    """A request, as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.content) if self.content else {}
        return document

    @property
    def action(self) -> str:
        return self.path.split("?")[0].rsplit("/", 1)[-1]


class DropAnswer:
    """The request is carried out, and its answer is lost."""


class Hang:
    """The request is neither passed on nor answered before the proxy is closed."""


class Refuse:
    """The connection is closed at once."""


@dataclass(frozen=True)
class Delay:
    """The request is carried out at once, and answered late."""

    seconds: float


@dataclass(frozen=True)
class Late:
    """The request is passed on late, and never answered."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """The request is not passed on; this is the answer."""

    status: int
    content: bytes = b"<html>no</html>"
    headers: dict[str, str] = field(default_factory=dict)


Fault: TypeAlias = DropAnswer | Hang | Refuse | Delay | Late | Answer


class Proxy:
    """`fault` returns the fault of each request; `None` lets the request pass."""

    def __init__(self, upstream: str) -> None:
        self.fault: Callable[[Seen], Fault | None] = lambda request: None
        self.seen: list[Seen] = []
        self.closing = threading.Event()
        pool = urllib3.PoolManager(maxsize=50)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Seen(self.command, self.path, dict(self.headers.items()), content)
                proxy.seen.append(request)
                fault = proxy.fault(request)
                match fault:
                    case Refuse():
                        self.close_connection = True
                        return
                    case Hang():
                        proxy.closing.wait(30)
                        self.close_connection = True
                        return
                    case Answer():
                        self.reply(fault.status, fault.headers, fault.content)
                        return
                    case Late():
                        proxy.closing.wait(fault.seconds)
                answer = pool.request(
                    self.command,
                    upstream + self.path,
                    body=content or None,
                    headers={"Content-Type": "application/json"},
                    timeout=30,
                    retries=False,
                )
                if isinstance(fault, DropAnswer | Late):
                    self.close_connection = True
                    return
                if isinstance(fault, Delay):
                    proxy.closing.wait(fault.seconds)
                self.reply(answer.status, dict(answer.headers), answer.data)

            do_GET = do_POST  # noqa: N815

            def reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        if name.lower() not in ("content-length", "date", "transfer-encoding"):
                            self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True  # the client has gone

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 100

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that hung up

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def let_pass(self) -> None:
        """Ends all faults, and all requests that hang."""
        self.fault = lambda request: None
        self.closing.set()

    def count(self, action: str) -> int:
        return sum(request.action == action for request in list(self.seen))

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_pass()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def only(action: str, fault: Fault, times: int = 10**9) -> Callable[[Seen], Fault | None]:
    """This fault for the first requests of this kind; everything else passes."""
    left = [times]

    def decide(request: Seen) -> Fault | None:
        if request.action != action or left[0] <= 0:
            return None
        left[0] -= 1
        return fault

    return decide


class Crowd:
    """Slows the requests of an action down, and counts how many of them are under way with each."""

    def __init__(self, action: str, seconds: float) -> None:
        self.sizes: list[int] = []
        self._action = action
        self._seconds = seconds
        self._under_way = 0
        self._lock = threading.Lock()

    def __call__(self, request: Seen) -> None:
        if request.action != self._action:
            return
        with self._lock:
            self._under_way += 1
            self.sizes.append(self._under_way)
        time.sleep(self._seconds)
        with self._lock:
            self._under_way -= 1
