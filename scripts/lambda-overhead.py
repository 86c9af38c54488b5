"""Measures what a lock adds to an invocation of a Lambda function, in the double of Lambda's APIs.

    scripts/lambda-overhead.py [INVOCATIONS]

Prints, for a bare function, for one under `@locked`, and for one that asks the agent: the start of the sandbox, the
time of an invocation until its answer, the time after that until the sandbox is frozen, and the requests.
LEASEHOLD, LEASEHOLD_AGENT and CONTEND_PYTHON name the programs, as for scripts/contend.sh.
"""

import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
import time
import urllib.request
from http.server import BaseHTTPRequestHandler

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts/nemesis"))
from lambda_runtime import Sandbox, Server  # noqa: E402
from nemesis import Service  # noqa: E402

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LEASEHOLD = os.environ.get("LEASEHOLD", str(TARGET / "debug/leasehold"))
AGENT = os.environ.get("LEASEHOLD_AGENT", str(TARGET / "debug/leasehold-agent"))
PYTHON = os.environ.get("CONTEND_PYTHON", str(TARGET / "python-client/venv/bin/python"))
SANDBOXES = 5
FUNCTIONS = {
    "bare": "def handler(event, context):\n    return event\n",
    "locked": """
import os
from leasehold import Client
from leasehold.handlers import locked

client = Client(os.environ["LEASEHOLD_URL"])


@locked(key="{key}", client=client)
def handler(event, context):
    return event
""",
    "agent": """
import http.client, json, os

agent = http.client.HTTPConnection(os.environ["LEASEHOLD_LISTEN"])


def ask(path, body):
    agent.request("POST", path, json.dumps(body))
    return json.load(agent.getresponse())


def handler(event, context):
    lock = ask("/acquire", {"key": event["key"]})
    ask("/release", {"handle": lock["handle"]})
    return event
""",
}


def free_address():
    with Server(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return f"127.0.0.1:{server.server_address[1]}"


def operations(url):
    """The number of requests that the service has answered."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith('leasehold_http_requests_total{route="/v1')
    )


def measure(kind, invocations, url, folder):
    (folder / f"{kind}.py").write_text(FUNCTIONS[kind])
    starts, until_answer, after_answer = [], [], []
    before = operations(url)
    for number in range(SANDBOXES):
        environment = {
            "PYTHONPATH": f"{folder}:{ROOT / 'clients/python/src'}",
            "LEASEHOLD_URL": url,
            "LEASEHOLD_LISTEN": free_address(),
            **{f"AWS_LAMBDA_{name}": "f" for name in ("FUNCTION_NAME", "LOG_GROUP_NAME", "LOG_STREAM_NAME")},
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
        }
        command = [PYTHON, "-m", "awslambdaric", f"{kind}.handler"]
        extensions = [[AGENT]] if kind == "agent" else []
        with open(folder / "log", "ab") as log:
            begun = time.monotonic()
            sandbox = Sandbox(command, environment, log, extensions)
        with contextlib.closing(sandbox):
            while not sandbox.freezes:
                time.sleep(0.001)
            starts.append(time.monotonic() - begun)
            for count in range(invocations // SANDBOXES):
                event = {"key": f"{kind}-{number}-{count}"}
                begun = time.monotonic()
                invocation = sandbox.invoke(event, 60)
                answered = time.monotonic()
                sandbox.settle()
                assert invocation.how == "returned", (kind, invocation.how, invocation.answer)
                # The first invocation makes the connections.
                if count:
                    until_answer.append(answered - begun)
                    after_answer.append(time.monotonic() - answered)
    requests = (operations(url) - before) / (invocations // SANDBOXES * SANDBOXES)
    medians = [1000 * statistics.median(values) for values in (starts, until_answer, after_answer)]
    return *medians, requests


def main():
    invocations = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print("| function | start, ms | until the answer, ms | after the answer, ms | requests |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        service = Service(LEASEHOLD, dict(os.environ), folder, None)
        try:
            for kind in FUNCTIONS:
                start, until, after, requests = measure(kind, invocations, f"http://{service.address}", folder)
                print(f"| {kind} | {start:.0f} | {until:.1f} | {after:.1f} | {requests:.2f} |", flush=True)
        finally:
            service.kill()


if __name__ == "__main__":
    main()
