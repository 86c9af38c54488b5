"""Agents: processes that use a client, and carry out one order after the other. The nemesis kills them, pauses them,
and gives orders to the next one."""

import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from typing import Any

from nemesis import LIBFAKETIME, Service, listed
from proxy import Proxy

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = {
    "rust": [os.environ.get("CONTEND_RUST_AGENT", "")],
    "python": [os.environ.get("CONTEND_PYTHON", "python3"), str(ROOT / "scripts/contenders/agent.py")],
    "typescript": ["node", str(ROOT / "scripts/contenders/agent.mjs")],
}
EXAMPLES = 5
"""Violations of one rule that are printed."""
LATENCY = 0.03
"""Seconds that DynamoDB takes at the most, where nothing fails: what happens in between is seen."""
UNFREED = 25.0
QUIET = 3.0
ENDS = 10.0
"""Seconds for a process whose output has ended."""
ANSWER = 90.0
"""Seconds: longer than any order takes."""


class Gone(Exception):
    """The agent was killed. What it was told to do is done, or not."""


def arguments(description, add_more=lambda parser: None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("seconds", nargs="?", type=float, default=60, help="how long (default: 60)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**32), help="of the faults; timing is never repeatable"
    )
    parser.add_argument("--rust", type=int, default=2, help="agents that use the Rust client")
    parser.add_argument("--python", type=int, default=2)
    parser.add_argument("--typescript", type=int, default=2)
    parser.add_argument("--faults", type=float, default=8, metavar="PERCENT", help="of requests that a proxy harms")
    parser.add_argument("--keep", metavar="FOLDER", help="copy the history there")
    add_more(parser)
    args = parser.parse_args()
    args.agents = [(f"{kind}-{number}", COMMANDS[kind]) for kind in COMMANDS for number in range(getattr(args, kind))]
    return args


def clocks(folder):
    """A file that moves a clock, and the environment of a process that has this clock. Without libfaketime, nothing."""
    library = next(filter(os.path.exists, LIBFAKETIME), None)
    if library is None:
        print("contend: NO CLOCK STEPS: there is no libfaketime (apt-get install faketime)")
        return None, {}
    clock = folder / "clock"
    clock.write_text("+0\n")
    return clock, {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def post(address, path, body):
    """The status and the document of an answer, from a service directly."""
    connection = http.client.HTTPConnection(address[0], address[1], timeout=30)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def dynamodb(address, operation, body):
    connection = http.client.HTTPConnection(address[0], address[1], timeout=30)
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": f"DynamoDB_20120810.{operation}",
        "Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/eu-central-1/dynamodb/aws4_request, "
        "SignedHeaders=host, Signature=0",
        "X-Amz-Date": "20260101T000000Z",
    }
    connection.request("POST", "/", json.dumps(body), headers)
    answer = connection.getresponse()
    document = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{operation}: {document[:300]!r}")


class Stage:
    """Two services on one DynamoDB, which a third one exposes, and a proxy before each."""

    def __init__(self, args, environment, copied=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="contend-"))
        self._args, self._copied, self._started, self._agents = args, copied, [], []
        self.is_stepped = False
        credentials = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "eu-central-1"}
        self.environment = os.environ | credentials | environment

    def __enter__(self):
        leasehold, seed = os.environ["LEASEHOLD"], self._args.seed
        try:
            self.clock, faking = clocks(self.folder)
            self._port = free_port()
            options = ["--expose-dynamodb", str(self._port), "--table", f"contend-{os.getpid()}"]
            self.store = self._start(Service(leasehold, self.environment, self.folder, None, options))
            self._seam = self._start(Proxy(seed, self._args.faults / 4, LATENCY))
            self._seam.target = ("127.0.0.1", self._port)
            endpoint = f"http://127.0.0.1:{self._seam.port}"
            environments = [self.environment, self.environment | faking]
            self.services = [self._start(Service(leasehold, one, self.folder, endpoint)) for one in environments]
            self.front = self._start(Proxy(seed + 1, self._args.faults, copied=self._copied))
            self.front.targets = [service.target for service in self.services]
            self.environment["LEASEHOLD_URL"] = f"http://127.0.0.1:{self.front.port}"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for agent in self._agents:
            agent.stop()
        for one in reversed(self._started):
            one.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, one):
        self._started.append(one)
        return one

    def create_table(self, name):
        body = {
            "TableName": name,
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        }
        dynamodb(("127.0.0.1", self._port), "CreateTable", body)

    def agents(self, commands):
        self._agents += [Agent(name, command, self.environment, self.folder) for name, command in commands]
        return self._agents

    def keep_from_freeing(self):
        """Loses all requests that free several items of a transaction, for a while."""
        self._seam.lose(b"BatchExecuteStatement")
        end = threading.Timer(UNFREED, self._seam.lose_no_more, [b"BatchExecuteStatement"])
        end.daemon = True
        end.start()

    def calm(self):
        """Ends the agents and the faults, and waits for the copies that are under way."""
        self.front.fault_percent = self._seam.fault_percent = 0
        self._seam.lose_no_more(b"BatchExecuteStatement")
        for agent in self._agents:
            agent.stop()
        time.sleep(QUIET)

    def counts(self):
        return Counter({f"calls {fate}": count for fate, count in (self.front.counts + self._seam.counts).items()})


class Pausable:
    """A process that is stopped, and goes on by itself later. Its owner starts the process."""

    process: Any = None
    continue_at: float | None = None

    def pause(self, until):
        if self.continue_at is None and self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
            self.continue_at = until

    def look(self, now):
        if self.continue_at is not None and now >= self.continue_at:
            self.process.send_signal(signal.SIGCONT)
            self.continue_at = None


class Agent(Pausable):
    """A process that is started again whenever it ends."""

    def __init__(self, name, command, environment, folder):
        self.name, self.command, self.environment, self.folder = name, command, environment, folder
        self.restarts, self.failed = 0, False
        self._start()

    def _start(self):
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self.folder / f"{self.name}.err", "a"),  # noqa: SIM115 the process keeps it
            text=True,
        )

    def ask(self, order, waiting=lambda: None):
        """The answer to an order. Each sign of life before it calls `waiting`."""
        process = self.process
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if not answer.get("waiting"):
                    # The Rust client's kinds are shorter than the names of the others' errors.
                    return (
                        answer | {"error": answer["error"].removeprefix("Transaction")} if "error" in answer else answer
                    )
                waiting()
        except (OSError, ValueError):
            pass
        try:
            self.failed |= process.wait(ENDS) > 0
        except subprocess.TimeoutExpired:
            self.stop()
        self.restarts += 1
        self._start()
        raise Gone

    def kill(self):
        self.process.kill()

    def stop(self):
        self.process.kill()
        self.process.wait()


class Told:
    """The history, as events in memory."""

    def __init__(self):
        self._events = []

    def note(self, who, event, at=None, **members):
        # An append is atomic.
        self._events.append({"at": at or time.monotonic_ns(), "who": who, "event": event, **members})

    def extend(self, events):
        self._events.extend(events)

    def events(self):
        return sorted(self._events, key=lambda event: event["at"])

    def verdict(self, args, found, ends, agents, faults, needed):
        """Prints what happened. Returns the exit status. `needed` events must have come from each client."""
        events = self.events()
        if args.keep:
            pathlib.Path(args.keep).mkdir(parents=True, exist_ok=True)
            (pathlib.Path(args.keep) / "history").write_text("".join(json.dumps(event) + "\n" for event in events))
        kinds = Counter(event["event"] for event in events)
        print(f"contend: faults: {listed(faults)}")
        print(f"contend: {len(events)} events: {listed(kinds)}; ends: {listed(ends)}")
        done = Counter(event["who"].partition("-")[0] for event in events if event["event"] == needed)
        print(f"contend: {needed} by client: {listed(done)}; restarts: {sum(agent.restarts for agent in agents)}")
        for kind, count in sorted(Counter(violation.partition(":")[0] for violation in found).items()):
            print(f"contend: {count}x {kind}")
        told = Counter()
        for violation in found:
            told[violation.partition(":")[0]] += 1
            if told[violation.partition(":")[0]] <= EXAMPLES:
                print(f"contend: VIOLATION: {violation[:600]}")
        for agent in agents:
            if agent.failed:
                print(
                    f"contend: {agent.name} failed by itself: {(agent.folder / f'{agent.name}.err').read_text()[-600:]}"
                )
                found.append("an agent failed by itself")
        busy = all(done[kind] * 20 >= args.seconds for kind in COMMANDS if getattr(args, kind))
        if not busy:
            print("contend: too little happened to prove anything")
        print(f"contend: {len(found)} violations", flush=True)
        return 0 if busy and not found else 1


def run_for(seconds, agents, act, rng, stage):
    """Lets each agent act again and again, and causes faults meanwhile. Returns the number of each."""
    over, counts, failures = threading.Event(), Counter(), []

    def work(agent):
        while not over.is_set():
            try:
                act(agent)
            except Gone:
                pass
            except Exception as failure:  # told in the end
                failures.append(failure)
                return

    threads = [threading.Thread(target=work, args=(agent,), daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    strikes = in_turn(rng)
    strike_at = time.monotonic() + 2
    while (now := time.monotonic()) < end and not failures:
        for agent in agents:
            agent.look(now)
        if now >= strike_at:
            counts[next(strikes)(rng, now, agents, stage)] += 1
            strike_at = now + rng.uniform(0.5, 3)
        time.sleep(0.02)
    over.set()
    for agent in agents:
        agent.look(float("inf"))
    for thread in threads:
        thread.join(ANSWER)
    if failures:
        raise failures[0]
    return counts


def in_turn(rng):
    """The faults in a random order, in which each comes within half a minute."""
    while True:
        faults = [
            kill_service, kill_service, keep_from_freeing,
            *[step_clock] * 5, *[pause_agent] * 6, *[kill_agent] * 6,
        ]  # fmt: skip
        rng.shuffle(faults)
        yield from faults


def kill_service(rng, now, agents, stage):
    number = rng.randrange(len(stage.services))
    service = stage.services[number]
    stage.front.targets[number] = None
    service.kill()
    time.sleep(rng.uniform(0, 1))
    service.start()
    stage.front.targets[number] = service.target
    return "services killed"


def keep_from_freeing(rng, now, agents, stage):
    stage.keep_from_freeing()
    return "times without freeing"


def step_clock(rng, now, agents, stage):
    if stage.clock is None:
        return pause_agent(rng, now, agents, stage)
    # The clocks of servers differ by minutes at the most, and by more than any patience.
    stage.is_stepped = True
    stage.clock.write_text(f"{rng.uniform(-150, 150):+.3f}\n")
    return "clock steps"


def pause_agent(rng, now, agents, stage):
    rng.choice(agents).pause(now + rng.uniform(0.1, 4))
    return "agents paused"


def kill_agent(rng, now, agents, stage):
    rng.choice(agents).kill()
    return "agents killed"
