"""The Runtime API of Lambda, for one sandbox that is a process here.

As documented: a sandbox carries out one invocation after the other; it is frozen (SIGSTOP) from the moment that its
runtime asks for the next one; at the time-out of an invocation it is killed (SIGKILL), without a word before.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "2018-06-01"
STARTS = 60.0
"""Seconds for the runtime to ask for its first invocation, on a busy machine."""


class Invocation:
    """One invocation, and its end: `returned`, `raised`, `timed-out`, `crashed`."""

    def __init__(self, event, timeout):
        self.id = str(uuid.uuid4())
        self.event = event
        self.timeout = timeout
        self.deadline = None
        self.how = None
        self.answer = None
        self.done = threading.Event()

    def end(self, how, answer=None):
        if self.how is None:
            self.how, self.answer = how, answer
            self.done.set()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a process that was killed


class Sandbox:
    """A process that speaks the Runtime API."""

    def __init__(self, command, environment, output):
        self._waiting = queue.Queue()
        self._asks = threading.Event()
        self._lock = threading.Lock()
        self.freezes = 0
        self._current = None
        self._server = Server(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{self._server.server_address[1]}"
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment, "AWS_LAMBDA_RUNTIME_API": address}, stdout=output, stderr=output
        )

    def invoke(self, event, timeout):
        """Carries out one invocation, and returns it when it has ended."""
        invocation = Invocation(event, timeout)
        begun = time.monotonic()
        while not self._asks.wait(0.05):
            if self.process.poll() == -signal.SIGKILL:  # somebody killed it between two invocations
                invocation.deadline = time.time()
                invocation.end("crashed")
                return invocation
            if not self.is_alive or time.monotonic() - begun > STARTS:
                raise RuntimeError(f"the runtime did not start: {self.process.poll()}")
        self._asks.clear()
        with self._lock:
            self._current = invocation
            invocation.deadline = time.time() + timeout
            self._signal(signal.SIGCONT)
        self._waiting.put(invocation)
        while not invocation.done.wait(0.02):
            if time.time() >= invocation.deadline:
                self.kill()
                invocation.end("timed-out")
            elif self.process.poll() is not None:
                invocation.end("crashed")
        return invocation

    def pause(self, seconds):
        """Stops the sandbox in the midst of its work."""
        with self._lock:
            if self._current is None or self._current.done.is_set():
                return False
            self._signal(signal.SIGSTOP)
        time.sleep(seconds)
        with self._lock:
            self._signal(signal.SIGCONT)
        return True

    @property
    def is_alive(self):
        return self.process.poll() is None

    def kill(self):
        """Kills the sandbox, and whatever it does."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def close(self):
        self.kill()
        self._server.shutdown()
        self._server.server_close()

    def _signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def _next(self):
        """The runtime asks: the sandbox is frozen until there is something to do."""
        with self._lock:
            self._current = None
            self._signal(signal.SIGSTOP)
            self.freezes += 1
        self._asks.set()
        return self._waiting.get()

    def _handler(self):
        sandbox = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                assert self.path == f"/{VERSION}/runtime/invocation/next", self.path
                invocation = sandbox._next()
                headers = {
                    "Content-Type": "application/json",
                    "Lambda-Runtime-Aws-Request-Id": invocation.id,
                    "Lambda-Runtime-Deadline-Ms": str(round(invocation.deadline * 1000)),
                    "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:eu-central-1:123456789012:function:f",
                    "Lambda-Runtime-Trace-Id": "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1",
                }
                self.reply(200, json.dumps(invocation.event).encode(), headers)

            def do_POST(self):
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                *_, request, what = self.path.split("/")
                current = sandbox._current
                if current is not None and request == current.id:
                    current.end("returned" if what == "response" else "raised", json.loads(content or b"null"))
                # The answer comes last: the runtime asks for the next invocation as soon as it has it.
                self.reply(202, b"{}", {})

            def reply(self, status, content, headers):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        return Handler
