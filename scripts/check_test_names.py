#!/usr/bin/env python3
"""Refuses names of tests that begin with an article, or are longer than 60 characters.

A test is named `subject_does_x_when_y`. No function in Rust begins with an article at all: the cases of the conformance
suite and the stories have no attribute of a test.
"""

import re
import subprocess
import sys
from pathlib import Path

LONGEST = 60
# For each language: its files, and its tests with the name as a group.
RUST = (
    ("*.rs",),
    re.compile(r"#\[(?:tokio::)?test\b[^\n]*\n(?:\s*(?:#|//)[^\n]*\n)*\s*(?:async )?fn (\w+)|\bfn ((?:an?|the)_\w+)"),
)
PYTHON = (("*.py",), re.compile(r"\bdef (test_\w+)"))
TYPESCRIPT = (
    ("*.test.ts", "*.test.mjs", "*.test.js"),
    re.compile(r"""^\s*(?:await )?(?:test|it|suite|describe)(?:\.\w+)?\(\s*(["'`])(?P<name>(?:(?!\1).)*)\1""", re.M),
)
ARTICLE = re.compile(r"(test_)?(an?|the)[_ ]", re.I)


def names():
    """Yields each test as (path, line, name)."""
    for patterns, tests in (RUST, PYTHON, TYPESCRIPT):
        tracked = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True).stdout
        for path in map(Path, tracked.split()):
            text = path.read_text()
            for found in tests.finditer(text):
                name = found.groupdict().get("name") or next(filter(None, found.groups()))
                yield path, text.count("\n", 0, found.end()) + 1, name


def main():
    failed = False
    for path, line, name in names():
        # What a template fills in is no part of the name.
        length = len(re.sub(r"\$\{.*?\}", "", name))
        if ARTICLE.match(name):
            print(f"{path}:{line}: {name}: begin with the subject, without an article")
        elif length > LONGEST:
            print(f"{path}:{line}: {name}: {length} characters, at most {LONGEST}")
        else:
            continue
        failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
