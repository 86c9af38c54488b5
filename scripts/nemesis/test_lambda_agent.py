"""The agent as an extension, in a sandbox: what it holds ends with the invocation, however that ends."""

import json
import os
import pathlib
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler
from unittest import mock

import lambda_runtime
from lambda_runtime import Sandbox, Server
from nemesis import Service

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LEASEHOLD = os.environ.get("LEASEHOLD", str(TARGET / "debug/leasehold"))
AGENT = os.environ.get("LEASEHOLD_AGENT", str(TARGET / "debug/leasehold-agent"))
SHELL_FUNCTION = ROOT / "examples/lambda/agent/bootstrap"
TEST_FUNCTION = ROOT / "scripts/contenders/agent.sh"
TIMEOUT = 20.0
IN_TIME = 30.0


def ask(url, body=None):
    """Returns status and document of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=IN_TIME) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Store:
    """Notes the orders, with their tokens."""

    def __init__(self):
        orders = self.orders = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                order = self.rfile.read(int(self.headers["Content-Length"])).decode()
                orders.append((order, int(self.headers["Fencing-Token"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@unittest.skipUnless(
    os.access(LEASEHOLD, os.X_OK) and os.access(AGENT, os.X_OK), "cargo build --workspace --bins first"
)
class AgentTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.service = Service(LEASEHOLD, dict(os.environ), self.folder, None)
        self.addCleanup(self.service.kill)
        self.url = f"http://{self.service.address}"
        self.store = Store()
        self.addCleanup(self.store.server.server_close)
        self.addCleanup(self.store.server.shutdown)

    def sandbox(self, function=TEST_FUNCTION, *, has_telemetry=True):
        with Server(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
            address = f"127.0.0.1:{free.server_address[1]}"
        environment = {
            "LEASEHOLD_URL": self.url,
            "LEASEHOLD_LISTEN": address,
            "AWS_LAMBDA_FUNCTION_NAME": "f",
            "STORE": self.store.url,
        }
        output = self.enterContext(open(self.folder / "sandbox.log", "ab"))
        sandbox = Sandbox([str(function)], environment, output, [[AGENT]], has_telemetry=has_telemetry)
        self.addCleanup(sandbox.close)
        self.agent = f"http://{address}"
        return sandbox

    def be_patient(self):
        """Gives the extension more than its 2 s at the end, where they are not what is tested."""
        self.enterContext(mock.patch.object(lambda_runtime, "SHUTDOWN", TIMEOUT))

    def lock(self, key):
        status, lock = ask(f"{self.url}/v1/lock?key={key}")
        return lock if status == 200 else {"state": "absent"}

    def state(self, key):
        return self.lock(key)["state"]

    def invoke(self, sandbox, call, timeout=TIMEOUT, **body):
        """Lets the function send one request to the agent, and end as its event says."""
        event = {"then": body.pop("then", "return"), "path": call, "body": body}
        invocation = sandbox.invoke(event, timeout)
        sandbox.settle()
        return invocation

    def test_function_in_shell_works_under_a_lock(self):
        sandbox = self.sandbox(SHELL_FUNCTION)
        event = json.loads((ROOT / "examples/lambda/events/agent.json").read_text())
        for _ in range(2):
            invocation = sandbox.invoke(event, TIMEOUT)
            self.assertEqual((invocation.how, invocation.answer), ("returned", {"shipped": "7"}))
        (first, one), (second, other) = self.store.orders
        self.assertEqual((first, second), ("7", "7"))
        self.assertGreater(other, one)
        self.assertEqual(self.state("orders/7"), "released")
        self.assertEqual(self.lock("orders/7")["ownerName"], "f")

    def test_function_in_shell_fails_while_another_holds_the_lock(self):
        ask(f"{self.url}/v1/acquire", {"key": "orders/7", "ownerName": "other", "leaseDurationMs": 60_000})
        invocation = self.sandbox(SHELL_FUNCTION).invoke({"order": "7"}, TIMEOUT)
        self.assertEqual((invocation.how, invocation.answer["errorType"]), ("raised", "NotShipped"))
        self.assertEqual(self.store.orders, [])

    def test_lock_ends_with_its_invocation(self):
        sandbox = self.sandbox()
        for then in ("return", "raise"):
            with self.subTest(then):
                granted = self.invoke(sandbox, "/acquire", key="Moe", then=then)
                self.assertEqual(granted.how, {"return": "returned", "raise": "raised"}[then])
                # The sandbox is frozen now.
                self.assertEqual(self.state("Moe"), "released")
        self.assertEqual(self.invoke(sandbox, "/locks").answer, {"locks": []})

    def test_lease_ends_a_margin_after_the_deadline(self):
        sandbox = self.sandbox()
        granted = self.invoke(sandbox, "/acquire", key="Moe", leaseDurationMs=600_000)
        self.assertLessEqual(granted.answer["validForMs"], (TIMEOUT + 1) * 1000)

    def test_lock_is_released_before_a_time_out(self):
        self.be_patient()
        sandbox = self.sandbox()
        invocation = self.invoke(sandbox, "/acquire", timeout=12, key="Moe", then="sleep")
        self.assertEqual(invocation.how, "timed-out")
        self.assertEqual(self.state("Moe"), "released")

    def test_shutdown_releases_what_was_kept(self):
        # A stall of a busy machine may take the 2 s of one sandbox.
        for key in ("Moe", "Larry", "Curly"):
            sandbox = self.sandbox()
            self.invoke(sandbox, "/acquire", key=key, keep=True)
            self.assertEqual(self.state(key), "held")
            if sandbox.shut_down() and self.state(key) == "released":
                return
        self.fail("the extension does not end in its 2 s, or releases nothing")

    def test_crash_of_the_function_releases_its_lock(self):
        self.be_patient()
        sandbox = self.sandbox()
        invocation = self.invoke(sandbox, "/acquire", key="Moe", then="crash")
        self.assertEqual((invocation.how, self.state("Moe")), ("crashed", "released"))

    def test_kept_lock_is_believed_after_a_heartbeat(self):
        sandbox = self.sandbox()
        handle = self.invoke(sandbox, "/acquire", key="Moe", keep=True, leaseDurationMs=60_000).answer["handle"]
        time.sleep(1.5)
        ends = time.monotonic() + IN_TIME
        shown = self.invoke(sandbox, f"/lock?handle={handle}").answer
        while shown["validForMs"] == 0 and time.monotonic() < ends:
            shown = self.invoke(sandbox, f"/lock?handle={handle}").answer
        self.assertIsNone(shown["lost"])
        self.assertGreater(shown["validForMs"], 0)

    def test_kept_lock_that_was_broken_in_a_freeze_is_lost(self):
        sandbox = self.sandbox()
        handle = self.invoke(sandbox, "/acquire", key="Moe", keep=True, leaseDurationMs=60_000).answer["handle"]
        version = self.lock("Moe")["recordVersionNumber"]
        status, _ = ask(f"{self.url}/v1/break", {"key": "Moe", "recordVersionNumber": version})
        self.assertEqual(status, 200)
        shown = self.invoke(sandbox, f"/lock?handle={handle}").answer
        # Until the heartbeat is answered, nothing is believed in; then the loss is told.
        self.assertEqual(shown.get("validForMs", 0), 0, shown)

    def test_hold_of_an_abandoned_call_ends_with_the_invocation(self):
        sandbox = self.sandbox()
        invocation = self.invoke(sandbox, "/hold", key="Moe", then="abandon")
        self.assertEqual((invocation.how, self.state("Moe")), ("returned", "released"))

    def test_nothing_is_granted_outside_of_an_invocation(self):
        sandbox = self.sandbox()
        self.invoke(sandbox, "/locks")
        sandbox.thaw()
        status, problem = ask(f"{self.agent}/acquire", {"key": "Moe"})
        self.assertEqual((status, problem["type"]), (503, "unavailable"))

    def test_lock_ends_at_the_next_event_without_telemetry(self):
        self.be_patient()
        sandbox = self.sandbox(has_telemetry=False)
        first = self.invoke(sandbox, "/acquire", key="Moe", leaseDurationMs=600_000).answer
        self.assertEqual((first["key"], self.state("Moe")), ("Moe", "held"))
        self.assertIn("no telemetry", (self.folder / "sandbox.log").read_text())
        second = self.invoke(sandbox, "/acquire", key="Moe").answer
        self.assertGreater(second["fencingToken"], first["fencingToken"])
        self.assertTrue(sandbox.shut_down())
        self.assertEqual(self.state("Moe"), "released")

    def test_lock_ends_before_a_time_out_without_telemetry(self):
        self.be_patient()
        sandbox = self.sandbox(has_telemetry=False)
        invocation = self.invoke(sandbox, "/acquire", timeout=12, key="Moe", then="sleep")
        self.assertEqual((invocation.how, self.state("Moe")), ("timed-out", "released"))


if __name__ == "__main__":
    unittest.main()
