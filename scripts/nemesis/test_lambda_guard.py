"""The guard of the Rust layers, in a sandbox that is stopped in the midst of an invocation."""

import json
import os
import pathlib
import signal
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler

from lambda_runtime import Sandbox, Server
from nemesis import Service

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LEASEHOLD = os.environ.get("LEASEHOLD", str(TARGET / "debug/leasehold"))
FUNCTION = os.environ.get("CONTEND_RUST_FUNCTION", str(TARGET / "debug/examples/function"))
TIMEOUT = 60.0


class Store:
    """Notes what the function says of its guard. Its first word is answered after a pause, and before its second one is
    answered, the service goes on."""

    def __init__(self, service):
        self.beliefs, self.first, self.go_on = [], threading.Event(), threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                store.beliefs.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                store.first.set()
                store.go_on.wait(TIMEOUT)
                if len(store.beliefs) == 2:
                    os.kill(service.process.pid, signal.SIGCONT)
                self.send_response(204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@unittest.skipUnless(
    os.access(LEASEHOLD, os.X_OK) and os.access(FUNCTION, os.X_OK),
    "cargo build --bin leasehold --package leasehold-client --example function --features lambda-runtime first",
)
class GuardTest(unittest.TestCase):
    def test_guard_believes_in_nothing_after_a_stop_of_the_sandbox(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        service = Service(LEASEHOLD, dict(os.environ), folder, None)
        self.addCleanup(service.kill)
        store = Store(service)
        self.addCleanup(store.server.server_close)
        self.addCleanup(store.server.shutdown)
        environment = {
            "LAMBDA_SERVICE": f"http://{service.address}",
            "LAMBDA_STORE": store.url,
            "AWS_LAMBDA_FUNCTION_NAME": "f",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
            "AWS_LAMBDA_LOG_GROUP_NAME": "g",
            "AWS_LAMBDA_LOG_STREAM_NAME": "s",
        }
        with open(folder / "function.log", "ab") as output:
            sandbox = Sandbox([FUNCTION], environment, output)
            self.addCleanup(sandbox.close)
            event = {"key": "Moe", "kind": "doubts", "contention": "raise", "seconds": 0}
            done = []
            running = threading.Thread(target=lambda: done.append(sandbox.invoke(event, TIMEOUT)))
            running.start()
            self.assertTrue(store.first.wait(TIMEOUT))
            # No heartbeat is answered until the function has looked at its guard.
            os.kill(service.process.pid, signal.SIGSTOP)
            self.assertTrue(sandbox.pause(2.0))
            store.go_on.set()
            running.join(TIMEOUT)
        (invocation,) = done
        self.assertEqual(invocation.how, "returned", (folder / "function.log").read_text())
        before, after, sure = store.beliefs
        self.assertEqual((before["valid"], after["valid"], sure["valid"]), (True, False, True), store.beliefs)
        self.assertEqual(after["remaining"], 0)


if __name__ == "__main__":
    unittest.main()
