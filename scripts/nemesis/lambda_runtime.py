"""The Runtime API, the Extensions API and the Telemetry API of Lambda, for one sandbox of processes here.

As documented: a sandbox starts its extensions, then the runtime; it carries out one invocation after the other; it is
frozen (SIGSTOP) from the moment that the runtime and all extensions have asked for the next event. The end of an
invocation is told by telemetry (`platform.runtimeDone`). At the time-out of an invocation the runtime is killed
(SIGKILL), without a word before; extensions then have 2 s for a SHUTDOWN event, and are killed.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "2018-06-01"
EXTENSIONS = "/2020-01-01/extension/"
TELEMETRY = "/2022-07-01/telemetry"
SANDBOX = "sandbox.localdomain"
"""The name of the sandbox, which leads to the loopback interface here."""
STARTS = 60.0
"""Seconds for the runtime to ask for its first invocation, on a busy machine."""
SHUTDOWN = 2.0
"""Seconds that extensions have at the end of a sandbox."""


class Invocation:
    """One invocation, and its end: `returned`, `raised`, `timed-out`, `crashed`."""

    def __init__(self, event, timeout):
        self.id = str(uuid.uuid4())
        self.event = event
        self.timeout = timeout
        self.deadline = None
        self.how = None
        self.answer = None
        self.shut_down_well = False  # whether it ended its sandbox, and the extensions ended well before that
        self.done = threading.Event()

    def end(self, how, answer=None):
        if self.how is None:
            self.how, self.answer = how, answer
            self.done.set()


class Extension:
    """One external extension: its registration, and the events that wait for it."""

    def __init__(self, name, events):
        self.name = name
        self.events = events
        self.id = str(uuid.uuid4())
        self.waiting = queue.Queue()
        self.asks = threading.Event()
        self.telemetry = None  # the port, once it has subscribed


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a process that was killed


class Sandbox:
    """The processes of one sandbox: a runtime, and the extensions beside it."""

    def __init__(self, command, environment, output, extensions=(), *, has_telemetry=True):
        self._has_telemetry = has_telemetry
        self._waiting = queue.Queue()
        self._asks = threading.Event()
        self._idle = False  # whether the runtime has asked for the next invocation
        self._lock = threading.Lock()
        self.freezes = 0
        self._current = None
        self.extensions = {}  # by their ids
        self._server = Server(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{self._server.server_address[1]}"
        self._environment = {**os.environ, **environment, "AWS_LAMBDA_RUNTIME_API": address}
        self._output = output
        # Extensions register before the runtime starts.
        self._beside = [self._start(extension) for extension in extensions]
        self._await(lambda: len(self.extensions) == len(extensions))
        self.process = self._start(command)

    def _start(self, command):
        # A group of its own: what a runtime starts is frozen and killed with it.
        return subprocess.Popen(
            command, env=self._environment, stdout=self._output, stderr=self._output, start_new_session=True
        )

    def _await(self, condition):
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > STARTS or any(process.poll() is not None for process in self._beside):
                raise RuntimeError("an extension did not start")
            time.sleep(0.02)

    def invoke(self, event, timeout):
        """Carries out one invocation, and returns it when it has ended."""
        invocation = Invocation(event, timeout)
        begun = time.monotonic()
        while not (self._asks.wait(0.02) and all(one.asks.is_set() for one in self.extensions.values())):
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
        self._tell_extensions({"eventType": "INVOKE", "requestId": invocation.id}, invocation.deadline)
        self._waiting.put(invocation)
        while not invocation.done.wait(0.02):
            if time.time() >= invocation.deadline:
                self._kill(self.process)
                invocation.end("timed-out")
            elif any(process.poll() is not None for process in (self.process, *self._beside)):
                self._kill(self.process)
                invocation.end("crashed")
        self._report(invocation)
        if invocation.how in ("timed-out", "crashed"):
            invocation.shut_down_well = self.shut_down("timeout" if invocation.how == "timed-out" else "failure")
        return invocation

    def settle(self):
        """Waits until the sandbox is frozen, or its processes are gone."""
        begun = time.monotonic()
        while time.monotonic() - begun < STARTS and self.is_alive and self._current is not None:
            time.sleep(0.01)

    def thaw(self):
        """Lets the sandbox run although there is no invocation, as a busy machine does for a moment."""
        with self._lock:
            self._signal(signal.SIGCONT)

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
        for process in (self.process, *self._beside):
            self._kill(process)

    def shut_down(self, reason="spindown"):
        """Ends the sandbox as Lambda does: extensions have 2 s. Returns whether there were any, and all ended well."""
        self._kill(self.process)
        with self._lock:
            self._signal(signal.SIGCONT)
        ends = time.time() + SHUTDOWN
        self._tell_extensions({"eventType": "SHUTDOWN", "shutdownReason": reason}, ends)
        while time.time() < ends and any(process.poll() is None for process in self._beside):
            time.sleep(0.02)
        ended_well = all(process.poll() == 0 for process in self._beside)
        self.kill()
        return bool(self._beside) and ended_well

    def close(self):
        self.kill()
        self._server.shutdown()
        self._server.server_close()

    def _signal(self, number):
        for process in (self.process, *self._beside):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def _kill(self, process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _tell_extensions(self, event, deadline):
        for extension in self.extensions.values():
            if event["eventType"] in extension.events:
                extension.asks.clear()
                extension.waiting.put({**event, "deadlineMs": round(deadline * 1000)})

    def _report(self, invocation):
        """Tells the end of an invocation to whoever subscribed."""
        status = {"returned": "success", "raised": "error", "timed-out": "timeout"}.get(invocation.how, "failure")
        record = {"requestId": invocation.id, "status": status}
        body = json.dumps([{"time": "", "type": "platform.runtimeDone", "record": record}]).encode()
        for extension in self.extensions.values():
            if extension.telemetry is not None:
                threading.Thread(target=self._deliver, args=(extension.telemetry, body), daemon=True).start()

    @staticmethod
    def _deliver(port, body):
        with contextlib.suppress(OSError):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=STARTS).close()

    def _freeze(self):
        """Freezes the sandbox once nobody in it has anything to do."""
        with self._lock:
            runtime_asks = self._current is None or self._current.done.is_set()
            if runtime_asks and self._idle and all(one.asks.is_set() for one in self.extensions.values()):
                self._current = None
                self._signal(signal.SIGSTOP)
                self.freezes += 1
                self._asks.set()

    def _next(self):
        """The runtime asks: the sandbox is frozen until there is something to do."""
        self._idle = True
        self._freeze()
        invocation = self._waiting.get()
        self._idle = False
        return invocation

    def _next_of(self, extension):
        extension.asks.set()
        self._freeze()
        return extension.waiting.get()

    def _handler(self):
        sandbox = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if self.path == f"{EXTENSIONS}event/next":
                    extension = sandbox.extensions[self.headers["Lambda-Extension-Identifier"]]
                    event = sandbox._next_of(extension)
                    return self.reply(200, json.dumps(event).encode(), {"Content-Type": "application/json"})
                assert self.path == f"/{VERSION}/runtime/invocation/next", self.path
                invocation = sandbox._next()
                headers = {
                    "Content-Type": "application/json",
                    "Lambda-Runtime-Aws-Request-Id": invocation.id,
                    "Lambda-Runtime-Deadline-Ms": str(round(invocation.deadline * 1000)),
                    "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:eu-central-1:123456789012:function:f",
                    "Lambda-Runtime-Trace-Id": "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1",
                }
                return self.reply(200, json.dumps(invocation.event).encode(), headers)

            def do_POST(self):
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path == f"{EXTENSIONS}register":
                    extension = Extension(self.headers["Lambda-Extension-Name"], json.loads(content)["events"])
                    sandbox.extensions[extension.id] = extension
                    return self.reply(200, b'{"functionName": "f"}', {"Lambda-Extension-Identifier": extension.id})
                *_, request, what = self.path.split("/")
                current = sandbox._current
                if current is not None and request == current.id:
                    answer = content.decode(errors="replace")
                    with contextlib.suppress(ValueError):
                        answer = json.loads(answer or "null")
                    current.end("returned" if what == "response" else "raised", answer)
                # The answer comes last: the runtime asks for the next invocation as soon as it has it.
                return self.reply(202, b"{}", {})

            def do_PUT(self):
                subscription = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                extension = sandbox.extensions[self.headers["Lambda-Extension-Identifier"]]
                host, _, port = subscription["destination"]["URI"].removeprefix("http://").partition(":")
                assert self.path == TELEMETRY and host == SANDBOX, (self.path, host)
                assert "platform" in subscription["types"] and subscription["buffering"]["timeoutMs"] >= 25
                if not sandbox._has_telemetry:  # as the emulator of the Runtime API answers
                    refusal = (
                        b'{"errorType": "Telemetry.NotSupported", "errorMessage": "Telemetry API is not supported"}'
                    )
                    return self.reply(202, refusal, {})
                extension.telemetry = int(port.strip("/"))
                return self.reply(200, b"OK", {})

            def reply(self, status, content, headers):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        return Handler
