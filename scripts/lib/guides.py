"""Runs pages of the documentation, word for word, each in a folder of its own. Files are written, commands are run, and
their output is compared with the printed one.

A page that says that its programs run "any number of times" is run twice.

Usage: guides.py --leasehold PATH PAGE..., or guides.py PAGE... for pages whose commands need no service.

The language and the title of a block say what becomes of it:

* a title is the name of a file. If the repository has that file, the two must be equal; else the page's is written;
* `sh` is run. What is printed below it is its output. Under the title "In one terminal" it runs until the page ends;
* `crontab`: each job is run once. `ini`: so is the command of each unit of the type oneshot. `yaml` is a workflow of
  GitHub: it is compared with GitHub's schema, and its steps are run.

The addresses of the pages, and the packages that they install, are replaced by those of this checkout.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

from readme_session import README_URL, ROOT, Shell, service

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
TERMINAL = "In one terminal"
REPEATABLE = "any number of times"
# Ports of the pages' own servers.
PORTS = ("2772", "8001", "8002", "8443")
PYTHON = ROOT / "clients/python"
TYPESCRIPT = ROOT / "clients/typescript"
# What comes from this checkout, and the versions of what comes from elsewhere.
PACKAGES = {
    "pip": {
        "leasehold": str(PYTHON),
        "leasehold[aio]": f"{PYTHON}[aio]",
        "./clients/python": str(PYTHON),
        "leasehold-cli": "--quiet pip",
        "fastapi": "fastapi==0.163.2",
        "uvicorn": "uvicorn==0.54.0",
        "django": "django==5.2.8",
        "celery": "celery==5.7.0",
    },
    "npm": {
        "leasehold": str(TYPESCRIPT),
        "./clients/typescript": str(TYPESCRIPT),
        "clients/typescript": str(TYPESCRIPT),
        "express": "express@5.3.0",
    },
}
# The service runs already, and CI runs the tests.
ELSEWHERE = ("cargo run --release -- serve\n", "cargo test --workspace\n")
# Commands that not every machine can run, by their first words, and what tells whether this one can.
OPTIONAL = {
    "systemd-analyze": "systemd-analyze --version",
    "terraform fmt": "terraform version",
    # It fetches the providers.
    "terraform init": "terraform init -input=false",
}
START_SECONDS = 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def installed(line):
    """Returns a command that installs packages with those of this checkout."""
    words = line.split()
    packages = PACKAGES[words[0]]
    return " ".join(packages.get(word, word) for word in words)


class Page:
    """A page, its folder, its terminal, and what runs beside it."""

    def __init__(self, path, addresses, folder):
        self.path, self.folder = path, pathlib.Path(folder)
        self.shell = Shell(addresses, folder)
        self.beside = contextlib.ExitStack()

    def real(self, text):
        text = re.sub(r"^(?:pip|npm) (?:install|ci) .*$", lambda line: installed(line[0]), text, flags=re.MULTILINE)
        return self.shell.real(text)

    def run(self):
        """Runs the blocks of the page, in order."""
        blocks = BLOCK.findall(self.path.read_text())
        blocks = [*blocks, ("", "", "")]
        with self.beside:
            for (language, title, text), (next_language, next_title, printed) in itertools.pairwise(blocks):
                if title == TERMINAL:
                    self.start(self.real(text))
                elif title:
                    self.write(language, title, text)
                elif language == "sh" and text not in ELSEWHERE:
                    self.command(text, next_language if not next_title else "", printed)

    def command(self, text, kind, printed):
        probes = [probe for first, probe in OPTIONAL.items() if text.startswith(first)]
        if any(subprocess.run(probe, shell=True, cwd=self.folder, capture_output=True).returncode for probe in probes):
            print(f"!!! NOT TRIED, for this machine cannot {probes[0]}: {self.path.name}")
        elif kind in ("json", "text"):
            self.shell.step(self.real(text), kind, printed)
        else:
            self.shell.run(self.real(text))

    def start(self, commands):
        """Starts commands that run until the page ends, and waits until they listen where they say."""
        script, log = f"exec {commands.strip()}", self.folder / "beside.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-euc", script], cwd=self.folder, stdout=output, stderr=output, env=self.shell.variables
            )
        self.beside.callback(process.wait)
        self.beside.callback(process.terminate)
        ports = [real for real in self.shell.addresses.values() if real in commands or real in self.written()]
        for port in filter(str.isdigit, ports):
            deadline = time.monotonic() + START_SECONDS
            while socket.socket().connect_ex(("127.0.0.1", int(port))) != 0:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{self.path.name}: {commands}did not start\n{log.read_text()}")
                time.sleep(0.1)

    def written(self):
        return "".join(file.read_text() for file in self.folder.glob("*.mjs"))

    def write(self, language, title, text):
        if (ROOT / title).is_file():
            code = (ROOT / title).read_text()
            assert code.endswith(text), f"{title} is not as {self.path.name} shows it"
            return
        file = self.folder / title.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.real(text))
        if text.startswith("#!"):
            file.chmod(0o755)
        check = {"crontab": self.crontab, "ini": self.unit, "yaml": self.workflow}.get(language)
        if check:
            check(file)

    def crontab(self, file):
        for line in file.read_text().splitlines():
            if re.match(r"[*\d]", line):
                self.shell.run(line.split(maxsplit=6)[6])

    def unit(self, file):
        unit = file.read_text()
        if "Type=oneshot" in unit:
            self.shell.run(re.search("^ExecStart=(.*)", unit, re.MULTILINE)[1])

    def workflow(self, file):
        from ruamel.yaml import YAML

        subprocess.run(["check-jsonschema", "--quiet", "--builtin-schema", "vendor.github-workflows", file], check=True)
        self.shell.variables["GITHUB_REPOSITORY"] = "example/exports"
        for job in YAML(typ="safe").load(file)["jobs"].values():
            for step in job["steps"]:
                if "run" in step:
                    self.shell.run(self.real(step["run"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--leasehold", type=pathlib.Path)
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        addresses = {README_URL: README_URL, **{port: str(free_port()) for port in PORTS}}
        if arguments.leasehold:
            leasehold = arguments.leasehold.resolve()
            os.environ["PATH"] = f"{leasehold.parent}:{os.environ['PATH']}"
            addresses[README_URL] = stack.enter_context(service(leasehold))[0]
            addresses["/usr/bin/leasehold"] = str(leasehold)
            example = leasehold.parent / "examples/nightly_export"
            addresses["cargo run --package leasehold-client --example nightly_export"] = str(example)
            addresses["git::https://github.com/leasehold/leasehold.git//terraform"] = f"{ROOT}/terraform"
        for path in arguments.pages:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                # npm needs a folder of its own to install into.
                pathlib.Path(folder, "package.json").write_text("{}")
                for _ in range(2 if REPEATABLE in path.read_text() else 1):
                    Page(path, addresses, folder).run()
            print(f"{path.name} does as it says ({time.monotonic() - began:.0f} s)", flush=True)


main()
