#!/usr/bin/env python3
"""Cycles (a lock and its release) a second through HTTP, beside the requests of Amazon's DynamoDB Lock Client.

    scripts/java-cycles/cycles.py BINARY [ROUNDS]

`BINARY` is an optimised `leasehold`. Both are Java programs on one DynamoDB Local, one after the other in each round:
Leasehold's with an extra hop, by `leasehold serve`, and the lock client's in the process. The lock client itself is not
there: what is measured are its requests, by the AWS SDK for Java, which DynamoDB Local brings. Needs a JDK. Each
program warms up for 2,000 cycles, or 30 seconds.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
LIBRARIES = CACHE / "leasehold/dynamodb-local/2.9.30/DynamoDBLocal_lib"
CALLERS = (1, 8, 16)
SECONDS = 4.0


def cycles(how: str, url: str, callers: int) -> float:
    """Runs one of the two programs, and returns what it measured."""
    command = ["java", "-cp", f"{LIBRARIES}/*", str(HERE / "Cycles.java"), how, url, str(callers), str(SECONDS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return float(done.stdout)


def measure(binary: str, rounds: int) -> None:
    dynamodb = os.environ["LEASEHOLD_TEST_DYNAMODB_ENDPOINT"]
    cycles("sdk", dynamodb, 1)  # DynamoDB Local compiles what is hot, too
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "eu-west-1"}
    command = [binary, "serve", "--dynamodb-endpoint", dynamodb, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | keys) as service:
        try:
            assert service.stdout is not None
            found = re.search(r"http://\S+", service.stdout.readline())
            assert found is not None, "it does not listen"
            print("| callers | the lock client's requests | Leasehold, by HTTP | ratio |\n|---|---|---|---|")
            for callers in CALLERS:
                pairs = [(cycles("sdk", dynamodb, callers), cycles("http", found[0], callers)) for _ in range(rounds)]
                java, http = (statistics.median(side) for side in zip(*pairs, strict=True))
                ratio = statistics.median(http / java for java, http in pairs)
                print(f"| {callers} | {java:.0f} | {http:.0f} | {ratio:.2f} |", flush=True)
        finally:
            service.terminate()


if __name__ == "__main__":
    if "LEASEHOLD_TEST_DYNAMODB_ENDPOINT" not in os.environ:
        os.execv(ROOT / "scripts/dynamodb-local.sh", ["dynamodb-local.sh", sys.executable, *sys.argv])
    measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
