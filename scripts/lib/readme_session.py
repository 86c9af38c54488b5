"""Runs the first session of README.md and those of docs/http-api.md, word for word, and compares their answers with the
printed ones.

Usage: readme_session.py BASE_URL, or readme_session.py --leasehold PATH. With a BASE_URL, the commands that need only
the HTTP API run there. With the path of the command, its own service is started, and everything runs. The pages' own
addresses are replaced by those of the service. guides.py runs the other pages.

The commands can be run any number of times. They therefore run in their order, in their order again, then shuffled,
each of them twice, and at last in their order again. In their order the answers are the printed ones. Shuffled, each
answer is a grant, or a refusal that the page explains. What differs from run to run is compared by its kind only:
version numbers, fencing tokens, transaction ids, and texts that the page cuts short.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
README_URL = "http://127.0.0.1:8080"
README_DYNAMODB = "http://127.0.0.1:8000"
BLOCK = re.compile(r"^```(sh|json|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Refusals that the pages explain for commands in another order.
EXPLAINED = {"held", "lost", "condition-failed"}
VARYING = {"recordVersionNumber": str, "fencingToken": int, "token": int, "transactionId": str}
NUMBER = re.compile(r"\d{16}")
TIMEOUT_SECONDS = 600


def steps(page, section):
    """Returns the commands of a section, each with the kind and the text of the output printed below it."""
    text = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL).group(1)
    blocks = BLOCK.findall(text)
    assert [kind == "sh" for kind, _ in blocks] == [True, False] * (len(blocks) // 2), (
        "a command and its answer, by turns"
    )
    return [(commands, *printed) for (_, commands), printed in zip(blocks[::2], blocks[1::2], strict=False)]


def documents(text):
    """Returns the JSON documents that were printed one after the other."""
    decoder, position = json.JSONDecoder(), 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        document, position = decoder.raw_decode(text, position)
        yield document


def is_like(actual, printed, names):
    """Whether an answer is the one that the page prints. `names` maps the page's placeholders to this run's values."""
    if isinstance(printed, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == printed.keys()
            and all(
                isinstance(actual[name], VARYING[name])
                if name in VARYING
                else actual[name] in names[name]
                if name in names and isinstance(printed[name], str)
                else is_like(actual[name], printed[name], names)
                for name in printed
            )
        )
    if isinstance(printed, str) and printed.endswith("…"):
        return isinstance(actual, str) and actual.startswith(printed[:-1])
    return actual == printed


class Shell:
    """A terminal in a folder, whose variables stay set from one command to the next."""

    def __init__(self, addresses, folder):
        self.addresses, self.folder = addresses, folder
        self.variables = {"LEASEHOLD_URL": addresses[README_URL], **os.environ}

    def real(self, text):
        """Returns a text with the addresses of this run."""
        for printed, real in self.addresses.items():
            text = text.replace(printed, real)
        return text

    def run(self, commands):
        """Runs commands, which must succeed, and returns their standard output."""
        commands = self.real(commands)
        with tempfile.NamedTemporaryFile() as kept:
            script = f"set -a\n{commands}\nenv -0 >{kept.name}"
            run = subprocess.run(
                ["bash", "-euc", script],
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                env=self.variables,
            )
            if run.returncode != 0:
                sys.exit(f"{commands}failed\n{run.stdout}{run.stderr}")
            self.variables = dict(
                line.split("=", 1) for line in pathlib.Path(kept.name).read_text().split("\0") if line
            )
        return run.stdout

    def step(self, commands, kind, printed):
        """Runs a step, and compares its last answer with the printed one."""
        output = self.run(commands)
        if kind == "text":
            actual, expected = NUMBER.sub("…", output), NUMBER.sub("…", printed)
            alike = actual == expected
        else:
            actual, expected = list(documents(output))[-1], json.loads(printed)
            values = [self.variables.get(name) for name in ("HOST1", "HOST2")]
            alike = is_like(actual, expected, {"key": [self.variables.get("KEY")], "leaseId": values})
        if not alike:
            sys.exit(f"{commands}was answered\n{actual}\nand not, as the page says,\n{expected}")

    def any_order(self, commands, kind, _printed):
        """Runs a step at any place in the order, and fails on an answer that the page does not explain."""
        output = self.run(commands)
        for answer in documents(output) if kind == "json" else ():
            if "status" in answer and answer["type"] not in EXPLAINED:
                sys.exit(f"{commands}was answered in another order\n{answer}")


@contextlib.contextmanager
def service(leasehold):
    """Starts a service in memory, on free ports, and yields the addresses of its API and of its tables."""
    serve = [leasehold, "serve", "--memory", "--listen", "127.0.0.1:0", "--expose-dynamodb", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
        try:
            announced = "".join(iter(process.stdout.readline, "  stop      Ctrl-C\n"))
            yield re.findall(r"^(?:Leasehold listens on|  dynamodb ) (\S+)", announced, re.MULTILINE)
        finally:
            process.terminate()


def try_out(session, addresses):
    """Runs the steps in order, again, shuffled, and in order."""

    folder = tempfile.TemporaryDirectory()

    def in_order():
        shell = Shell(addresses, folder.name)
        for step in session:
            shell.step(*step)
        return shell

    in_order()
    shell = in_order()
    seed = random.randrange(2**32)
    print(f"shuffled with the seed {seed}", flush=True)
    for step in random.Random(seed).sample(session * 2, k=2 * len(session)):
        shell.any_order(*step)
    in_order()
    print(f"{len(session)} steps were answered as the pages say, in order, again, and after a shuffle")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url", nargs="?")
    parser.add_argument("--leasehold")
    arguments = parser.parse_args()
    if arguments.leasehold is None:
        try_out(steps("docs/http-api.md", "A lock, request by request"), {README_URL: arguments.base_url})
        return
    leasehold = pathlib.Path(arguments.leasehold).resolve()
    os.environ["PATH"] = f"{leasehold.parent}:{os.environ['PATH']}"
    with service(leasehold) as (url, dynamodb):
        api = [steps("docs/http-api.md", section) for section in ("A lock, request by request", "A transaction")]
        session = sum(api, steps("README.md", "Try it"))
        try_out(session, {README_URL: url, README_DYNAMODB: dynamodb})


if __name__ == "__main__":
    main()
