"""Lets functions contend for locks in sandboxes that are frozen, paused, killed, and given the same event twice.

Functions of the clients use their wrappers; the function of the kind `agent` has no client, and an extension beside it.
Each sandbox has a Runtime API and an Extensions API of its own (lambda_runtime.py). The store checks fencing tokens,
and lambda_checker.py reads what happened. A run in which one kind of end did not happen has shown nothing, and fails.
"""

import argparse
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from http.server import BaseHTTPRequestHandler

from lambda_checker import violations
from lambda_runtime import Sandbox, Server
from nemesis import Service

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTENDERS = ROOT / "scripts/contenders"
COMMANDS = {
    "python": [os.environ.get("CONTEND_PYTHON", "python3"), "-m", "awslambdaric", "function.handler"],
    "typescript": ["node", str(CONTENDERS / "function.mjs")],
    "rust": [os.environ.get("CONTEND_RUST_FUNCTION", str(ROOT / "target/debug/examples/function"))],
    "agent": [sys.executable, str(CONTENDERS / "function_of_agent.py")],
}
TIMEOUT = 2.0
MARGIN = 0.6
SKEW = 1.0
"""Seconds that the service allows between two clocks, and waits for before it judges a holder dead."""
WAY = 4.0
"""Seconds that a request takes at most on a busy machine. The service counts a lease from its arrival."""
UNRELEASED = re.compile(r"free (at the end of|after) its lease")
"""The line in the log of an invocation whose release had no answer in the time that was left."""
KEYS = ("Moe", "Larry")
KINDS = ("returns", "returns", "returns", "raises", "dies", "overruns", "overruns", "stops", "asynchronous")
KINDS_OF_AGENT = (*KINDS, "keeps", "keeps", "keeps")
ONCE = 0.3
"""The part of the events that must have one result."""
RECENT = 4
"""The number of such events that come again and again, in any sandbox."""
SEEN = ("returned", "raised", "timed-out", "crashed", "paused", "twice", "answered once", "kept")
"""A run goes on until each of these has happened, but no longer than `LONGER`."""
LONGER = 60.0
NEEDED = (*SEEN, "frozen", "written", "shut down well")


class Store:
    """Takes writes whose token is not below an earlier one, and notes each."""

    def __init__(self, note):
        highest = Counter()
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                write = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    accepted = write["token"] >= highest[write["key"]]
                    highest[write["key"]] = max(highest[write["key"]], write["token"])
                    note("wrote", accepted=accepted, **write)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"


class Nemesis:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.random = random.Random(args.seed)
        self.history, self.counts = [], Counter()
        self.lock = threading.Lock()
        self.service = Service(os.environ["LEASEHOLD"], dict(os.environ), folder, None)
        self.url = f"http://{self.service.address}"
        self.store = Store(self.note)
        self.probes = []
        self.onces = 0
        self.ends = time.monotonic() + args.seconds
        self.failures = []

    def note(self, event, **members):
        with self.lock:
            self.history.append({"event": event, "at": time.monotonic_ns(), **members})

    def ask(self, path, body=None):
        """Returns status and document of a request to the service."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def holder(self, key):
        status, lock = self.ask(f"/v1/lock?key={key}")
        return lock["fencingToken"] if status == 200 and lock["state"] == "held" else None

    def probe(self, invocation):
        """Acquires by the service's clock, once nothing of the invocation may be left."""
        time.sleep(max(0.0, invocation.deadline + MARGIN + SKEW + WAY - time.time()))
        for key in KEYS:
            lease = str(uuid.uuid4())
            body = {"key": key, "ownerName": "probe", "leaseId": lease, "leaseDurationMs": 1000, "staleness": "clock"}
            status, answer = self.ask("/v1/acquire", body)
            if status == 200:
                self.ask("/v1/release", {"key": key, "leaseId": lease})
            elif status != 423:
                raise RuntimeError(f"a probe has the answer {status}: {answer}")
            held_by = answer["lock"]["fencingToken"] if status == 423 else None
            self.note("probed", key=key, who=invocation.id, token=held_by)

    def goes_on(self):
        longer = 0 if all(self.counts[kind] for kind in SEEN) else LONGER
        return time.monotonic() < self.ends + longer

    def event(self, kind):
        event = {
            "key": self.random.choice(KEYS),
            "kind": self.random.choice(KINDS_OF_AGENT if kind == "agent" else KINDS),
            "contention": self.random.choice(("raise", "wait", "wait", "skip")),
            "seconds": self.random.choice((0.05, 0.2, 0.5)),
        }
        if kind != "rust" and self.random.random() < ONCE:
            self.onces += 1
            number = self.random.randint(max(0, self.onces // 3 - RECENT), self.onces // 3)
            # The agent leaves records of another form than the wrappers do.
            key = f"{'agent' if kind == 'agent' else 'wrapper'}-{number}"
            event |= {"once": True, "key": key, "contention": self.random.choice(("raise", "wait"))}
            event["kind"] = self.random.choice(("returns", "returns", "raises", "dies", "overruns"))
        return event

    def run(self, kind, number):
        """Gives one sandbox after the other events, until the time is over."""
        try:
            while self.goes_on():
                self.live(kind, number)
        except Exception as error:
            self.failures.append(f"{kind}-{number}: {error!r}")

    def live(self, kind, number):
        environment = {
            "PYTHONPATH": str(CONTENDERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LAMBDA_SERVICE": self.url,
            "LAMBDA_STORE": self.store.url,
            "AWS_LAMBDA_FUNCTION_NAME": "f",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
            "AWS_LAMBDA_LOG_GROUP_NAME": "g",
            "AWS_LAMBDA_LOG_STREAM_NAME": "s",
        }
        extensions = []
        if kind == "agent":
            with Server(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
                listen = f"127.0.0.1:{free.server_address[1]}"
            environment |= {
                "LEASEHOLD_URL": self.url,
                "LEASEHOLD_LISTEN": listen,
                "LEASEHOLD_MARGIN": f"{MARGIN * 1000:.0f}ms",
            }
            extensions = [[os.environ["LEASEHOLD_AGENT"]]]
        kept = []
        log = self.folder / f"{kind}-{number}.log"
        with open(log, "ab") as output:
            sandbox = Sandbox(COMMANDS[kind], environment, output, extensions)
        try:
            repeated = None
            while sandbox.is_alive and self.goes_on():
                with self.lock:
                    event = repeated or self.event(kind)
                    trouble, again = self.random.random(), self.random.random()
                    pause = self.random.uniform(0.2, 1.5)
                self.counts["twice"] += repeated is not None
                if event["kind"] in ("overruns", "stops", "asynchronous"):
                    event["seconds"] = 3 * TIMEOUT
                if trouble < 0.1:
                    threading.Timer(pause, sandbox.kill).start()
                elif trouble < 0.3:
                    threading.Thread(target=self.pause, args=(sandbox, pause), daemon=True).start()
                before = log.stat().st_size
                invocation = sandbox.invoke(event, TIMEOUT)
                # What an extension releases, it releases before the sandbox is frozen.
                sandbox.settle()
                said = log.read_bytes()[before:].decode(errors="replace")
                unreleased = UNRELEASED.search(said) is not None
                self.counts["unreleased"] += unreleased
                about = self.about(event, invocation) | {"unreleased": unreleased}
                self.note("ended", who=invocation.id, how=invocation.how, **about)
                if invocation.how == "returned" and event["kind"] == "keeps" and invocation.answer is not None:
                    kept.append((event["key"], invocation.answer["kept"]))
                    self.counts["kept"] += 1
                self.note("found", key=event["key"], who=invocation.id, token=self.holder(event["key"]))
                self.counts[invocation.how] += 1
                # Whoever got no answer, or an error, sends the event again.
                repeated = event if invocation.how != "returned" and again < 0.5 else None
                probe = threading.Thread(target=self.probe, args=(invocation,))
                probe.start()
                self.probes.append(probe)
            self.counts["frozen"] += sandbox.freezes
            if sandbox.is_alive and sandbox.shut_down():
                self.counts["shut down well"] += 1
                self.note("shut", kept=kept)
                for key in KEYS:
                    self.note("left", key=key, token=self.holder(key))
        finally:
            sandbox.close()

    def about(self, event, invocation):
        """What the checker must know of an end."""
        about = {"shut-down-well": invocation.shut_down_well}
        self.counts["shut down well"] += invocation.shut_down_well
        if event.get("once"):
            about |= {"once": event["key"], "answer": invocation.answer}
            self.counts["answered once"] += invocation.how == "returned"
        return about

    def pause(self, sandbox, seconds):
        time.sleep(self.args.pause_after * seconds)
        self.counts["paused"] += sandbox.pause(seconds)

    def report(self):
        """Prints what happened, and returns what is wrong."""
        writes = [event for event in self.history if event["event"] == "wrote"]
        self.counts["written"] = sum(event["accepted"] for event in writes)
        self.counts["refused"] = len(writes) - self.counts["written"]
        print("contend:", ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items())))
        wrong = violations(self.history) + self.failures
        return wrong + [f"nothing was {name}" for name in NEEDED if not self.counts[name]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=20, help="how long (default: 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the events and the faults")
    parser.add_argument("--python", type=int, default=3, help="sandboxes at once")
    parser.add_argument("--typescript", type=int, default=3)
    parser.add_argument("--rust", type=int, default=2)
    parser.add_argument(
        "--agent", type=int, default=2, help="sandboxes with an extension, and a function without a client"
    )
    parser.add_argument("--pause-after", type=float, default=0.2, help="part of a pause that goes before it")
    parser.add_argument("--keep", metavar="FOLDER", help="leave history and logs there")
    args = parser.parse_args()
    print(f"contend: functions, seed {args.seed}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.keep or temporary)
        folder.mkdir(exist_ok=True)
        nemesis = Nemesis(args, folder)
        try:
            sandboxes = [(kind, number) for kind in COMMANDS for number in range(getattr(args, kind))]
            threads = [threading.Thread(target=nemesis.run, args=sandbox) for sandbox in sandboxes]
            for thread in threads:
                thread.start()
            for thread in [*threads, *nemesis.probes]:
                thread.join()
            for probe in nemesis.probes:
                probe.join()
        finally:
            nemesis.service.kill()
        with open(folder / "history.jsonl", "w") as file:
            file.writelines(json.dumps(event) + "\n" for event in nemesis.history)
        wrong = nemesis.report()
        for sentence in wrong[:20]:
            print("VIOLATION:", sentence)
        if nemesis.failures:
            for log in folder.glob("*.log"):
                print(f"-- {log.name}\n{log.read_text()[-1500:]}")
    print(f"contend: {len(wrong)} violations")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
