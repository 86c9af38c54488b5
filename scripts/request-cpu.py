#!/usr/bin/env python3
"""Measures what a request costs `leasehold serve`, in CPU time and in time, beside an earlier binary and etcd.

Usage: scripts/request-cpu.py OLD NEW [SECONDS]. Needs wrk and etcd (apt-get install wrk etcd-server).

One caller for each key acquires and releases, or locks and unlocks. Prints two tables: microseconds of CPU time
for one request, and cycles (two requests) a second. The first says more on a machine that others use too.
"""

import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLERS = (1, 8, 32)
ROUNDS = 3
LEASEHOLD = """
local t = 0
function setup(thread) thread:set("tid", t); t = t + 1 end
local n, held, id, key = 0, false
function request()
  key = key or ("k" .. tid .. os.getenv("RUN"))
  if not held then n = n + 1; id = "w" .. tid .. "-" .. n .. "-0123456789abcdef" end
  held = not held
  local body = '{"key":"' .. key .. '","leaseId":"' .. id .. '"' .. (held and ',"ownerName":"b"}' or '}')
  return wrk.format("POST", held and "/v1/acquire" or "/v1/release", {["content-type"] = "application/json"}, body)
end
"""
ETCD = """
local t = 0
function setup(thread) thread:set("tid", t); t = t + 1 end
local key, lease
function request()
  if not lease then return wrk.format("POST", "/v3/lease/grant", nil, '{"TTL":600}') end
  if key then return wrk.format("POST", "/v3/lock/unlock", nil, '{"key":"' .. key .. '"}') end
  local name = ("az" .. os.getenv("RUN") .. "k" .. tid):gsub("%W", "x")
  name = name .. ("A"):rep(20 - #name)  -- in Base64; the run before may have left its lock held
  return wrk.format("POST", "/v3/lock/lock", nil, '{"name":"' .. name .. '","lease":"' .. lease .. '"}')
end
function response(status, headers, body)
  if not lease then lease = body:match('"ID":"(%d+)"') elseif key then key = nil
  else key = body:match('"key":"([^"]+)"') end
end
"""


def cpu_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(script, port, callers, seconds, run):
    """Loads a service, and returns the number of its answers."""
    command = ["wrk", f"-t{callers}", f"-c{callers}", f"-d{seconds}", "-s", script, f"http://127.0.0.1:{port}"]
    report = subprocess.run(command, env={**os.environ, "RUN": run}, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in report, report
    found = re.search(r"(\d+) requests in", report)
    assert found, report
    return int(found[1])


def start(folder, old, new):
    """The services by name, with their ports and scripts."""
    for name, script in [("leasehold.lua", LEASEHOLD), ("etcd.lua", ETCD)]:
        (folder / name).write_text(script)
    commands = {
        "file, old": [old, "serve", "--db", str(folder / "old.db")],
        "file, new": [new, "serve", "--db", str(folder / "new.db")],
        "memory, old": [old, "serve", "--memory"],
        "memory, new": [new, "serve", "--memory"],
    }
    services = {}
    for port, (name, command) in enumerate(commands.items(), 18981):
        process = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        services[name] = (process, port, str(folder / "leasehold.lua"))
    urls = ["--listen-client-urls", "http://127.0.0.1:18985", "--advertise-client-urls", "http://127.0.0.1:18985"]
    etcd = ["etcd", "--data-dir", str(folder / "etcd"), *urls, "--listen-peer-urls", "http://127.0.0.1:18986"]
    process = subprocess.Popen(etcd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    services["etcd"] = (process, 18985, str(folder / "etcd.lua"))
    time.sleep(4)
    for name, (process, port, _) in services.items():
        if process.poll() is not None:
            stop(services)
            sys.exit(f"{name}: it ended at once; is the port {port} in use?")
    return services


def stop(services):
    for process, _, _ in services.values():
        process.terminate()
        process.wait()


def table(title, figures):
    """Prints the medians of the rounds."""
    print(f"\n| {title}, callers | " + " | ".join(next(iter(figures.values()))) + " |")
    print("|---|" + "---|" * len(next(iter(figures.values()))))
    for callers, rounds in figures.items():
        row = [f"{statistics.median(round_):.0f}" for round_ in rounds.values()]
        print(f"| {callers} | {' | '.join(row)} |", flush=True)


def main():
    old, new = (str(Path(path).resolve()) for path in sys.argv[1:3])
    for tool in ("wrk", "etcd"):
        if shutil.which(tool) is None:
            sys.exit(f"there is no {tool}: apt-get install wrk etcd-server")
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with tempfile.TemporaryDirectory() as folder:
        services = start(Path(folder), old, new)
        try:
            costs, cycles = ({callers: {name: [] for name in services} for callers in CALLERS} for _ in range(2))
            for number, callers in itertools.product(range(ROUNDS), CALLERS):
                for name, (process, port, script) in services.items():
                    before = cpu_seconds(process)
                    answers = load(script, port, callers, seconds, f"{callers}-{number}")
                    costs[callers][name].append((cpu_seconds(process) - before) / answers * 1e6)
                    cycles[callers][name].append(answers / 2 / seconds)
            table("microseconds of CPU time for a request", costs)
            table("cycles a second", cycles)
        finally:
            stop(services)


if __name__ == "__main__":
    main()
