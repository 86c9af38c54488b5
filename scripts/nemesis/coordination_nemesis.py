"""Agents of all clients, and the command, share semaphores, queues, elections, occurrences and several locks at once,
while everything around them fails. A checker reads their history afterwards.

Two services work on one DynamoDB, which a third one exposes. An observer reads the keys beside the agents, and an
operator changes a capacity. scripts/contend.sh runs this, and lists its requirements. See --help for the faults.
"""

import http.client
import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter

import checker
import coordination_checker
from agents import ROOT, Pausable, Stage, Told, arguments, run_for

CAPACITIES = {"pool": 5, "fair": 1, "page": 100, "side": 3, "job-pool": 2, "job-fair": 1, "job-once": 1}
LOCKS = ["a", "b", "c", "chief", "hourly", "job", "job-chief"]
SMALL = 2
"""The capacity of the pool now and then: below what some waiters ask for."""
TICKET = 6.0
LOOK = 0.1
PERIOD = 3.0
"""Seconds of an occurrence."""
BROKEN = ["pool", "fair", "side", "a", "chief", "hourly"]
"""The keys that operators break."""
PLANS = {
    "pool": 2,
    "fair": 4,
    "page": 1,
    "several": 2,
    "several_with_permits": 2,
    "side": 1,
    "chief": 1,
    "lead": 1,
    "hourly": 1,
    "once": 1,
}
"""What the agents do, and how often: the methods of `Share`."""


class Share:
    """What the agents do."""

    def __init__(self, history, rng, args):
        self.history, self.rng, self.breaks = history, rng, args.breaks / 100
        self.plans = {name: often for name, often in PLANS.items() if name in (args.only or PLANS)}
        self.numbers = itertools.count(1)
        self.ends = Counter()
        self.known = set()
        """The keys that each process has asked for."""
        self.granted = Counter()
        """The keys that agents hold."""

    def act(self, agent):
        if isinstance(agent, Shell):
            return agent.run(self)
        held = [key for key in BROKEN if self.granted[key]]
        if held and self.rng.random() < self.breaks:
            return self.break_one(agent, self.rng.choice(held))
        claim = f"{agent.name}-{next(self.numbers)}"
        order = {"do": "acquire", "claim": claim, "lease": self.rng.uniform(1, 3), "wait": 30.0} | self.plan()
        if order["kind"] == "semaphore":
            order |= {"capacity": CAPACITIES[order["keys"][0]], "ticketLease": TICKET}
        return self.hold(agent, claim, order)

    def plan(self):
        (name,) = self.rng.choices(list(self.plans), list(self.plans.values()))
        return getattr(self, name)()

    def pool(self):
        return {"kind": "semaphore", "keys": ["pool"], "permits": self.rng.choice([1, 1, 2, 3])}

    def fair(self):
        return {"kind": "semaphore", "keys": ["fair"], "permits": 1}

    def page(self):
        return {"kind": "semaphore", "keys": ["page"], "permits": self.rng.choice([1, 1, 100])}

    def several(self):
        keys = self.rng.sample(["a", "b", "c"], self.rng.randint(1, 3))
        return {"kind": "all" if len(keys) > 1 else "lock", "keys": keys}

    def side(self):
        return {"kind": "semaphore", "keys": ["side"], "permits": self.rng.choice([1, 2])}

    def several_with_permits(self):
        """Locks and permits, all or none."""
        keys = [*self.rng.sample(["a", "b", "c"], self.rng.randint(0, 2)), "side"]
        keys += [] if len(keys) > 1 and self.rng.random() < 0.7 else ["fair"]
        self.rng.shuffle(keys)
        shares = {key: 1 if key == "fair" else self.rng.randint(1, 3) for key in keys if key in CAPACITIES}
        return {"kind": "all", "keys": keys, "shares": shares, "capacities": {key: CAPACITIES[key] for key in shares}}

    def chief(self):
        return {"kind": "election", "keys": ["chief"]}

    def hourly(self):
        return {"kind": "lock", "keys": ["hourly"], "occurrence": f"{int(time.monotonic() / PERIOD):09}"}

    def lead(self):
        return {"kind": "lead", "keys": ["chief"]}

    def once(self):
        return self.hourly() | {"kind": "once"}

    def break_one(self, agent, key):
        """An operator breaks a lock, or a holder or waiter of a semaphore."""
        kind = "semaphore" if key in CAPACITIES else "lock"
        self.history.note(agent.name, "breaking", key=key)
        answer = agent.ask({"do": "break", "kind": kind, "key": key, "pick": self.rng.randrange(100)})
        if "number" in answer:
            self.history.note(agent.name, "broke", key=key, number=answer["number"])
        self.ends[f"break {answer.get('error', 'carried out' if 'number' in answer else 'of nothing')}"] += 1

    def hold(self, agent, claim, order):
        def note(event, **members):
            self.history.note(agent.name, event, claim=claim, **members)

        asked = {(agent.name, agent.restarts, key) for key in order["keys"]}
        first = sorted(key for *_, key in asked - self.known)
        self.known |= asked
        note(
            "asked",
            keys=order["keys"],
            first=first,
            permits=order.get("permits", 1),
            shares=order.get("shares", {}),
            occurrence=order.get("occurrence"),
        )
        answer = agent.ask(order, lambda: note("waiting"))
        self.ends[answer.get("error", "granted" if "token" in answer else "held")] += 1
        if "token" not in answer:
            note("left", error=answer.get("error"), detail=answer.get("detail"))
            return
        note("granted", token=answer["token"])
        self.granted.update(order["keys"])
        try:
            self.work(agent, order, note)
        finally:
            self.granted.subtract(order["keys"])

    def work(self, agent, order, note):
        """Relies on the grant for a while, and ends it."""
        permits = order.get("permits", 1)
        for _ in range(self.rng.randrange(1, 8)):
            at = time.monotonic_ns()
            if not agent.ask({"do": "believe"})["believed"]:
                return
            note("believed", at=at)
            time.sleep(self.rng.uniform(0.02, 0.2))
            if permits > 1 and order["kind"] == "semaphore" and self.rng.random() < 0.3:
                note("keeping", permits=1)
                permits = 1
                if "error" in agent.ask({"do": "keep", "permits": 1}):
                    return
        done = {"completed": order["occurrence"]} if order.get("occurrence") and self.rng.random() < 0.7 else {}
        note("completing" if done else "releasing")
        answer = agent.ask({"do": "release", "kind": order["kind"]} | done)
        # `lead` does not tell whether its release was answered.
        if "error" not in answer and order["kind"] != "lead":
            note("released")
            if done:
                note("completed")


ASKING = {
    "job": ["run", "job"],
    "job-chief": ["elect", "job-chief"],
    "job-fair": ["run", "job-fair", "--fair"],
    "job-pool": ["run", "job-pool", "--of", "2"],
    "job-once": ["run", "job-once", "--of", "1", "--no-wait"],
}
"""The command for each key of a job."""


class Shell(Pausable):
    """Jobs under `leasehold run` and `elect`, one after the other. They note themselves that they are alive."""

    def __init__(self, name, stage):
        self.name, self.stage, self.folder = name, stage, stage.folder
        self.restarts, self.failed = 0, False

    def run(self, share):
        key = share.rng.choice(list(ASKING))
        claim = f"{self.name}-{next(share.numbers)}"
        options = ["--lease", "2s", "--owner", claim, "-q"]
        # The service's clock judges where it is right.
        judges = key == "job-once" and not self.stage.is_stepped and share.rng.random() < 0.7
        if judges:
            options += ["--stale-by-clock"]
        elif key == "job-once":
            options += ["--observations", str(self.folder / f"{self.name}.json")]
        elif key != "job-chief":
            options += ["--wait", "10s"]
        share.history.note(self.name, "asked", claim=claim, keys=[key], permits=1)
        beats = {"CONTEND_BEATS": str(self.folder / "beats"), "BEATS": str(share.rng.randint(5, 120))}
        self.process = subprocess.Popen(
            [os.environ["LEASEHOLD"], *ASKING[key], *options, "--", str(ROOT / "scripts/contenders/beating-job")],
            env=self.stage.environment | beats,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=open(self.folder / f"{self.name}.out", "a"),  # noqa: SIM115 the process keeps it
            process_group=0,
        )
        try:
            # Nobody waits for the permit of those who never wait. Every second of them dies.
            status = self.process.wait(0.7 if key == "job-once" and share.rng.random() < 0.5 else None)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        share.ends[f"command {status}"] += 1
        if status in (2, 64, 75) and judges and not self.stage.is_stepped:
            # A command that cannot judge refuses as well.
            share.history.note(self.name, "refused", claim=claim, judges=True)

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.restarts += 1
            # The process, or its whole group.
            (os.kill if random.random() < 0.5 else os.killpg)(self.process.pid, signal.SIGKILL)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Observer(threading.Thread):
    """Reads all keys, from any service that answers."""

    def __init__(self, stage, history):
        super().__init__(daemon=True)
        self.stage, self.history, self.over = stage, history, threading.Event()

    def run(self):
        while not self.over.wait(LOOK):
            for key in [*CAPACITIES, *LOCKS]:
                asked = time.monotonic_ns()
                try:
                    view = self.get(key)
                except (OSError, http.client.HTTPException, ValueError):
                    continue
                if view is not None:
                    self.history.note("observer", "viewed", key=key, asked=asked, **view)

    def get(self, key):
        host, port = self.stage.store.target
        connection = http.client.HTTPConnection(host, port, timeout=5)
        connection.request("GET", f"/v1/{'semaphore' if key in CAPACITIES else 'lock'}?key={key}")
        answer = connection.getresponse()
        view = json.loads(answer.read())
        connection.close()
        if answer.status != 200:
            return None
        if key in CAPACITIES:
            holders = [entry(one, one["holderId"], one["fencingToken"]) for one in view["holders"]]
            queue = [entry(one, one["ticketId"], one["number"]) for one in view["queue"]]
            return {"capacity": view["capacity"], "available": view["available"], "holders": holders, "queue": queue}
        holders = []
        if view["state"] == "held":
            one = view | {"version": view["recordVersionNumber"], "permits": 1}
            holders = [entry(one, f"{key}-{view['fencingToken']}", view["fencingToken"])]
        return {"capacity": 1, "available": 1 - len(holders), "holders": holders, "queue": []}


def entry(one, ident, number):
    return {
        "id": ident,
        "owner": one["ownerName"],
        "version": one["version"],
        "leaseMs": one["leaseDurationMs"],
        "permits": one["permits"],
        "number": number,
    }


class Operator(threading.Thread):
    """Changes the capacity of the pool, through the proxy, and back."""

    def __init__(self, stage, history, rng):
        super().__init__(daemon=True)
        self.stage, self.history, self.rng, self.over = stage, history, rng, threading.Event()

    def run(self):
        pause = 2.0
        while not self.over.wait(pause):
            try:
                # A cut is as long as a waiter must be seen to wait in vain.
                pause = self.rng.uniform(18, 22) if self.change() == SMALL else self.rng.uniform(2, 5)
            except (OSError, http.client.HTTPException, ValueError):
                continue  # not answered

    def change(self):
        view = self.ask("GET", "/v1/semaphore?key=pool")
        if "capacity" not in view:
            return None
        before = view["capacity"]
        capacity = CAPACITIES["pool"] if before == SMALL else SMALL
        if capacity == SMALL:
            # Somebody who waits for more than there will be, and does not come back.
            ticket = {"ownerName": "gone", "leaseId": str(self.rng.random()), "permits": 5, "leaseDurationMs": 25_000}
            self.ask("POST", "/v1/semaphore/enqueue", {"key": "pool", "capacity": 5} | ticket)
        # With these two, a late copy changes nothing.
        seen = {"expectedVersion": view.get("capacityVersion"), "requestId": str(uuid.uuid4())}
        body = {"key": "pool", "capacity": capacity, "expected": before} | seen
        self.history.note("operator", "setting", key="pool", capacity=capacity)
        if "capacity" in self.ask("POST", "/v1/semaphore/capacity", body):
            self.history.note("operator", "set", key="pool", capacity=capacity)
        return capacity

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.stage.front.port, timeout=10)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        document = json.loads(answer.read())
        connection.close()
        return document if answer.status == 200 else {}


def more_arguments(parser):
    parser.add_argument("--shells", type=int, default=3, help="loops of `leasehold run` and `elect`")
    parser.add_argument("--only", action="append", choices=PLANS, help="the agents do this alone; may be repeated")
    parser.add_argument("--breaks", type=float, default=15, metavar="PERCENT", help="of what agents do: they break")


def main():
    args = arguments(__doc__.partition("\n")[0], more_arguments)
    rng = random.Random(args.seed)
    print(f"contend: coordination, {args.seconds:g} s, seed {args.seed}", flush=True)
    history = Told()
    share = Share(history, rng, args)
    for key, capacity in CAPACITIES.items():
        history.note("operator", "setting", key=key, capacity=capacity)
        history.note("operator", "set", key=key, capacity=capacity)
    with Stage(args, {"CONTEND_TABLE": "none"}, b"/enqueue") as stage:
        agents = stage.agents(args.agents)
        shells = [Shell(f"shell-{number}", stage) for number in range(args.shells)]
        beside: list[Observer | Operator] = [Observer(stage, history), Operator(stage, history, rng)]
        agents += shells
        for thread in beside:
            thread.start()
        faults = run_for(args.seconds, agents, share.act, rng, stage)
        stage.calm()
        for thread in beside:
            thread.over.set()
            thread.join()
        if (beats := stage.folder / "beats").exists():
            history.extend(checker.read(beats))
        found = coordination_checker.violations(history.events())
        status = history.verdict(args, found, share.ends, agents, stage.counts() + faults, "granted")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
