"""Contenders of all clients want the same locks, while everything around them fails. A checker reads their history
afterwards.

scripts/contend.sh runs this, and lists its requirements. See --help for the faults.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

import checker
from proxy import Proxy

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEYS = ["Moe", "Larry", "Curly"]
LIBFAKETIME = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
]
LATE_WRITERS = 3.0
"""Seconds for jobs whose lock is not kept any more."""
RESTART = 60.0
"""Seconds within which a killed service must be back. A busy machine needs more than one try."""


class ServiceGone(Exception):
    """The service cannot be started again."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=60, help="how long (default: 60)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**32), help="of the faults; timing is never repeatable"
    )
    parser.add_argument("--rust", type=int, default=2, help="contenders that use the Rust client")
    parser.add_argument("--python", type=int, default=1)
    parser.add_argument("--typescript", type=int, default=1)
    parser.add_argument(
        "--shells", type=int, default=2, help="loops of `leasehold run`, whose jobs write to a fenced store"
    )
    parser.add_argument("--faults", type=float, default=8, metavar="PERCENT", help="of requests that the proxy harms")
    parser.add_argument("--dynamodb-endpoint", metavar="URL", help="instead of a file of the embedded engine")
    parser.add_argument("--keep", metavar="FOLDER", help="copy the history there")
    return parser.parse_args()


class Contender:
    """A process that is started again whenever it ends."""

    def __init__(self, name, command, environment, folder):
        self.name, self.command, self.environment, self.folder = name, command, environment, folder
        self.ends = Counter()
        self.continue_at = None
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=open(self.folder / f"{self.name}.err", "a"),  # noqa: SIM115 the process keeps it
        )
        self.continue_at = None

    def look(self, now):
        if self.process.poll() is not None:
            self.ends[self.process.returncode] += 1
            self.start()
        elif self.continue_at is not None and now >= self.continue_at:
            self.process.send_signal(signal.SIGCONT)
            self.continue_at = None

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Service:
    """`leasehold serve`, on the same port each time."""

    def __init__(self, leasehold, environment, folder, endpoint, options=()):
        self.address = "127.0.0.1:0"
        # The service has its own table, since others may use the same DynamoDB.
        table = f"contend-{os.getpid()}"
        store = ["--dynamodb-endpoint", endpoint, "--table", table] if endpoint else ["--db", "locks.db"]
        self.command = [leasehold, "serve", *store, *options]
        self.environment, self.folder = environment, folder
        self.process = None
        self.start()

    def start(self):
        deadline = time.monotonic() + RESTART
        while not self.try_to_start():
            if time.monotonic() > deadline:
                raise ServiceGone((self.folder / "service.err").read_text()[-600:])
            time.sleep(0.2)

    def try_to_start(self):
        with open(self.folder / "banner", "w+") as banner, open(self.folder / "service.err", "a") as errors:
            self.process = subprocess.Popen(
                [*self.command, "--listen", self.address],
                env=self.environment,
                cwd=self.folder,
                stdout=banner,
                stderr=errors,
            )
            for _ in range(200):
                banner.seek(0)
                if match := re.search(r"http://([\d.]+:\d+)", banner.read()):
                    self.address = match.group(1)
                    return True
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        self.kill()
        return False

    @property
    def target(self):
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


class Nemesis:
    """Causes faults, and counts them."""

    def __init__(self, rng, contenders, service, proxy, clock):
        self.rng, self.contenders, self.service, self.proxy, self.clock = rng, contenders, service, proxy, clock
        self.counts = Counter()

    def strike(self, now):
        chance = self.rng.random()
        if chance < 0.06:
            self.kill_service()
        elif chance < 0.2 and self.clock:
            self.step_clock()
        elif chance < 0.75:
            self.pause(now)
        else:
            self.kill()

    def kill(self):
        self.rng.choice(self.contenders).process.kill()
        self.counts["contenders killed"] += 1

    def pause(self, now):
        contender = self.rng.choice(self.contenders)
        if contender.continue_at is None and contender.process.poll() is None:
            contender.process.send_signal(signal.SIGSTOP)
            # The pause is longer than any lease, or shorter.
            contender.continue_at = now + self.rng.uniform(0.1, 4)
            self.counts["contenders paused"] += 1

    def step_clock(self):
        """The wall clock of all processes but Python's jumps by up to an hour. A shift within a line of the file is the
        clock's own."""
        self.clock.write_text(f"{self.rng.uniform(-3600, 3600):+.3f}\n")
        self.counts["clock steps"] += 1

    def kill_service(self):
        self.proxy.target = None
        self.service.kill()
        time.sleep(self.rng.uniform(0, 1))
        self.service.start()
        self.proxy.target = self.service.target
        self.counts["services killed"] += 1


def main():
    args = arguments()
    leasehold = os.environ["LEASEHOLD"]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="contend-"))
    rng = random.Random(args.seed)
    print(f"contend: {args.seconds:g} s, seed {args.seed}", flush=True)

    environment = os.environ | {"CONTEND_FOLDER": str(folder), "CONTEND_KEYS": ",".join(KEYS)}
    clock, faking = None, {}
    if faketime := next(filter(os.path.exists, LIBFAKETIME), None):
        clock = folder / "clock"
        clock.write_text("+0\n")
        faking = {
            "LD_PRELOAD": faketime,
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    else:
        print("contend: NO CLOCK STEPS: there is no libfaketime (apt-get install faketime)")

    try:
        service = Service(leasehold, environment | faking, folder, args.dynamodb_endpoint)
    except ServiceGone as gone:
        sys.exit(f"contend: the service did not start within {RESTART:g} s: {gone}")
    proxy = Proxy(args.seed, args.faults)
    proxy.target = service.target
    environment["LEASEHOLD_URL"] = f"http://127.0.0.1:{proxy.port}"
    contenders = []

    def contend(kind, number, command):
        name = f"{kind}-{number}"
        history = {"CONTEND_HISTORY": str(folder / f"{name}.history")}
        # libfaketime breaks Python's time.sleep (clock_nanosleep answers EINVAL): its clock stays.
        faked = {} if kind == "python" else faking
        contenders.append(Contender(name, command, environment | faked | history, folder))

    for number in range(args.rust):
        contend("rust", number, [os.environ["CONTEND_RUST"]])
    for number in range(args.python):
        contend("python", number, [os.environ["CONTEND_PYTHON"], str(ROOT / "scripts/contenders/contender.py")])
    for number in range(args.typescript):
        contend("typescript", number, ["node", str(ROOT / "scripts/contenders/contender.mjs")])
    for number in range(args.shells):
        command = [
            leasehold,
            "run",
            KEYS[number % len(KEYS)],
            "--lease",
            "1s",
            "--wait",
            "10s",
            "--poll",
            "100ms",
            "--grace",
            "0s",
        ]
        contend("shell", number, [*command, "-q", "--", str(ROOT / "scripts/contenders/job")])

    nemesis = Nemesis(rng, contenders, service, proxy, clock)
    asked = []
    # A run that is interrupted ends early, with the verdict on what happened so far.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked.append(number))
    end = time.monotonic() + args.seconds
    strike_at = time.monotonic() + 2
    try:
        while (now := time.monotonic()) < end and not asked:
            for contender in contenders:
                contender.look(now)
            if now >= strike_at:
                nemesis.strike(now)
                strike_at = now + rng.uniform(0.3, 2)
            time.sleep(0.02)
        status = verdict(args, folder, contenders, nemesis, proxy)
    except ServiceGone as gone:
        print(f"contend: the service did not start within {RESTART:g} s: {gone}")
        verdict(args, folder, contenders, nemesis, proxy)
        status = 1
    finally:
        for contender in contenders:
            contender.stop()
        proxy.close()
        service.close()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


def verdict(args, folder, contenders, nemesis, proxy):
    for contender in contenders:
        contender.stop()
    time.sleep(LATE_WRITERS)
    events = [
        event
        for path in [*folder.glob("*.history"), folder / "writes"]
        if path.exists()
        for event in checker.read(path)
    ]
    events.sort(key=lambda event: event["at"])
    if args.keep:
        pathlib.Path(args.keep).mkdir(parents=True, exist_ok=True)
        (pathlib.Path(args.keep) / "history").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = checker.violations(events)
    kinds = Counter(event["event"] for event in events)
    grants = Counter(event["who"].partition(":")[0] for event in events if event["event"] == "granted")
    print(f"contend: {sum(proxy.counts.values()) - proxy.counts['reordered']} requests: {listed(proxy.counts)}")
    print(f"contend: faults: {listed(nemesis.counts)}")
    print(f"contend: {len(events)} events: {listed(kinds)}; grants by client: {listed(grants)}")
    for contender in contenders:
        print(f"contend: {contender.name} ended {listed(contender.ends) or 'never'}")
        if trouble := unexpected(contender, folder):
            print(f"contend: {contender.name} failed by itself: {trouble}")
            found.append("a contender failed by itself")
    for violation in found:
        print(f"contend: VIOLATION: {violation}")
    busy = all(grants[kind] * 20 >= args.seconds for kind in ("rust", "python", "typescript") if getattr(args, kind))
    if not busy:
        print("contend: too little happened to prove anything")
    print(f"contend: {len(found)} violations")
    return 0 if busy and not found else 1


def unexpected(contender, folder):
    """The last output of a contender that ended otherwise than by a signal. Shells end with statuses of their own."""
    if contender.name.startswith("shell") or not any(status > 0 for status in contender.ends):
        return None
    return (folder / f"{contender.name}.err").read_text()[-600:]


def listed(counts):
    return ", ".join(
        f"{count} {kind}" if not isinstance(kind, int) else f"{count}x {kind}"
        for kind, count in sorted(counts.items(), key=str)
    )


if __name__ == "__main__":
    main()
