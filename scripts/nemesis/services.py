"""Scripted services: drives the three real clients through the same misbehaviour, and compares what they do.

Each case of services.json has `orders` for an agent (the agents of the nemesis, one for each client), and a `script`:
what happens to each request that arrives, in order. A request beyond the script passes. Behind the script is the real
service, so that every grant is one. Compared are the outcome of each order, and the requests: their number, their
order, and which of them repeat the one before. `expect` has them as the rules of docs/client.md want them; a request
with `*` may come several times. `pauses` is the least time after the first request, or the first few (`after`);
`pauses_at` has it by the number of the pause.

A case with `endpoints` has several such services before the real one: the script of each, or `dead` where nobody
listens. Its requests begin with `first`, `second` …. An order `end` ends one of them at once, as the fate `ends` does.
`named` are the endpoints that the last error must name.
"""

import argparse
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agents import ANSWER, COMMANDS
from nemesis import Service

CASES = pathlib.Path(__file__).with_suffix(".json")
QUIET = 1.0
"""Seconds without a request after which nothing comes any more."""
LONGEST = 30.0
# Errors whose class in one client is below, or beside, that of the others.
SAME = {"Lost": "LockLost", "Unconnected": "Unavailable"}


NAMES = ("first", "second", "third", "fourth")


class Log:
    """The requests of one client, at whatever endpoint they arrived."""

    def __init__(self):
        self.seen, self.times, self.lock = [], [], threading.Lock()
        self._last = None

    def arrived(self, endpoint, path, body, script):
        """Notes a request. Returns what the script says about it."""
        # A query comes by chance.
        name = path.partition("?")[0].removeprefix("/v1/")
        with self.lock:
            number = json.loads(body or b"{}").get("sequence")
            shown = f"{endpoint} {name}".strip() + (f" {number}" if number else "")
            is_repeated, self._last = (path, body) == self._last, (path, body)
            self.seen.append(f"{shown} again" if is_repeated else shown)
            self.times.append(time.monotonic())
            return next(script, {})

    def quiet_for(self):
        with self.lock:
            return time.monotonic() - self.times[-1] if self.times else LONGEST


class Scripted(ThreadingHTTPServer):
    """A service that does with each request what its script says."""

    daemon_threads = True
    # A burst of connections is not refused.
    request_queue_size = 64

    def __init__(self, script, service, log, name=""):
        super().__init__(("127.0.0.1", 0), Request)
        self.script, self.service, self.log, self.name = iter(script), service, log, name
        self.late: tuple[int, dict[str, str], bytes] | None = None
        self.is_closing, self.connections = threading.Event(), set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_):
        """A client that left is no error."""

    def arrived(self, path, body):
        # The mark of a waiter comes by chance.
        return {} if path == "/v1/want" else self.log.arrived(self.name, path, body, self.script)

    def get_request(self):
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def end(self):
        """Ends at once, as a process that is killed. Nobody listens any more."""
        if not self.is_closing.is_set():
            self.is_closing.set()
            self.shutdown()
            self.server_close()
            for connection in self.connections:
                try:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed already


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fate = self.server.arrived(self.path, body)
        self.server.is_closing.wait(fate.get("before", 0))
        if fate.get("ends"):
            self.server.end()
            return self.reset()
        if "restart" in fate:
            self.server.service.restart(fate["restart"])
            return self.reset()
        if fate.get("silent"):
            self.server.is_closing.wait(LONGEST)
            return self.reset()
        late, self.server.late = self.server.late, None
        passes = "status" not in fate or "alter" in fate
        answer = late or (self.passed(body) if passes else self.made(fate))
        if answer is None:
            return self.reset()
        status, headers, content = answer
        if fate.get("answers_next"):
            # The next request gets this answer, and this one gets none.
            self.server.late = answer
            return self.reset()
        if "alter" in fate:
            status = fate.get("status", status)
            document = json.loads(content) | fate["alter"]
            content = json.dumps({name: value for name, value in document.items() if value is not None}).encode()
        if "type" in fate:
            headers = headers | {"Content-Type": fate["type"]}
        self.server.is_closing.wait(fate.get("after", 0))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if "cut" in fate:
            self.wfile.write(content[: fate["cut"]])
            self.wfile.flush()
            # What was written arrives before the reset.
            time.sleep(0.1)
            return self.reset()
        self.wfile.write(content)
        return None

    do_GET = do_POST  # noqa: N815 the name is the base's

    def made(self, fate):
        """An answer that the script has whole."""
        content = fate.get("body", "")
        headers = {"Content-Type": fate.get("type", "text/plain")} | fate.get("headers", {})
        if isinstance(content, dict):
            headers["Content-Type"] = fate.get("type", "application/problem+json")
            content = json.dumps({"status": fate["status"]} | content)
        return fate["status"], headers, content.encode()

    def passed(self, body):
        """The answer of the service; None where it is down."""
        host, port = self.server.service.target
        connection = HTTPConnection(host, port, timeout=LONGEST)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            kept = {
                name: value for name, value in answer.getheaders() if name.lower() in ("content-type", "retry-after")
            }
            return answer.status, kept, answer.read()
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def reset(self):
        """Ends the connection by a reset, as a process that dies does."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


class Restarting(Service):
    """The real service, without a memory where it is started again."""

    def __init__(self, folder):
        folder.mkdir()
        self._starting = None
        super().__init__(os.environ["LEASEHOLD"], os.environ, folder, None)

    def restart(self, down):
        """Ends the service at once, with all that it knows, and starts it again later."""
        if self._starting and self._starting.is_alive():
            return
        super().close()
        for file in self.folder.glob("locks.db*"):
            file.unlink()

        def start():
            time.sleep(down)
            self.start()

        self._starting = threading.Thread(target=start, daemon=True)
        self._starting.start()

    def close(self):
        if self._starting:
            self._starting.join()
        super().close()


def drive(command, case, folder):
    """Lets one client play a case. Returns the outcome of each order, and the requests."""
    service, log = Restarting(folder), Log()
    if "endpoints" in case:
        scripts = dict(zip(NAMES, case["endpoints"], strict=False))
        servers = {
            name: Scripted([] if script == "dead" else script, service, log, name) for name, script in scripts.items()
        }
        for name, script in scripts.items():
            if script == "dead":
                servers[name].end()
    else:
        servers = {"": Scripted(case["script"], service, log)}
    url = case.get("url", ",".join(server.url for server in servers.values()))
    environment = os.environ | {"LEASEHOLD_URL": url, "CONTEND_TABLE": "none"}
    agent = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    watchdog = threading.Timer(ANSWER, agent.kill)
    watchdog.start()
    key, outcomes, named = f"scripted-{uuid.uuid4()}", [], []
    try:
        for order in case["orders"]:
            if "pause" in order:
                time.sleep(order["pause"])
                continue
            if "end" in order:
                servers[order["end"]].end()
                continue
            whole = {"kind": "lock", "keys": [key], "claim": "scripted", "lease": 20, "wait": 5} | order
            print(json.dumps(whole), file=agent.stdin, flush=True)
            while (answer := json.loads(agent.stdout.readline() or '{"error": "Died"}')).get("waiting"):
                pass
            error = answer.get("error")
            outcomes.append(SAME.get(error, error) if error else next(iter(answer), "done"))
            named = [name for name, server in servers.items() if server.url in answer.get("detail", "")]
        end = time.monotonic() + LONGEST
        while log.quiet_for() < max(QUIET, case.get("quiet", QUIET)) and time.monotonic() < end:
            time.sleep(0.05)
        with log.lock:
            pauses = [b - a for a, b in zip(log.times, log.times[1:], strict=False)]
            return outcomes, list(log.seen), pauses, named
    finally:
        watchdog.cancel()
        for server in servers.values():
            server.end()
        agent.kill()
        agent.communicate()
        service.close()


def is_as_expected(requests, expected):
    """Whether the requests are these, where one that ends in `*` comes once or more."""
    left = list(requests)
    for wanted in expected:
        name = wanted.removesuffix("*")
        if not left or left.pop(0) != name:
            return False
        while wanted.endswith("*") and left and left[0] in (name, f"{name} again"):
            left.pop(0)
    return not left


def judge(case, results):
    """What is wrong with the results of the clients."""
    expect = case["expect"]
    for client, (outcomes, requests, pauses, named) in results.items():
        if outcomes != expect["outcomes"]:
            yield f"{client}: the outcomes are {outcomes}, and not {expect['outcomes']}"
        if not is_as_expected(requests, expect["requests"]):
            yield f"{client}: the requests are {requests}, and not {expect['requests']}"
        elif any(pause < expect.get("pauses", 0) for pause in pauses[: expect.get("after", 1)]):
            yield f"{client}: the pauses are {pauses}, and not at least {expect['pauses']}"
        if named != expect.get("named", named):
            yield f"{client}: the error names {named}, and not {expect['named']}"
        for at, least in expect.get("pauses_at", {}).items():
            if len(pauses) <= int(at) or pauses[int(at)] < least:
                yield f"{client}: the pauses are {pauses}, and number {at} is not at least {least}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", help="parts of names of cases (default: all)")
    parser.add_argument("--client", action="append", choices=COMMANDS, help="(default: all)")
    parser.add_argument("--verbose", action="store_true", help="print what each client did")
    args = parser.parse_args()
    clients = args.client or list(COMMANDS)
    cases = [
        case
        for case in json.loads(CASES.read_text())["cases"]
        if not args.cases or any(part in case["name"] for part in args.cases)
    ]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="scripted-") as folder, ThreadPoolExecutor(len(clients)) as threads:
        for number, case in enumerate(cases):
            playing = {
                client: threads.submit(drive, COMMANDS[client], case, pathlib.Path(folder) / f"{number}-{client}")
                for client in clients
            }
            results = {client: one.result() for client, one in playing.items()}
            wrong = list(judge(case, results))
            failed += bool(wrong)
            print(f"{'FAILED' if wrong else 'ok':6} {case['name']}")
            print(*(f"       {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
            if args.verbose:
                print(*(f"       {client}: {result[0]} {result[1]}" for client, result in results.items()), sep="\n")
    print(f"{len(cases)} cases, {len(clients)} clients, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
