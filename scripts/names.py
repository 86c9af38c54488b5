#!/usr/bin/env python3
"""Holds the public names of the three clients to one table, `clients/vectors/names.json`.

    scripts/names.py            fails where a client has a name that the table does not, or lacks one
    scripts/names.py --show     prints the names of each client

The table has the names in snake case, for each type: those of all clients, and those of one or two. The script reads
the sources, and runs nothing.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "clients/vectors/names.json"
# Members that every class, or every value of a union, has.
TYPESCRIPT_WORDS = {"constructor", "toJSON", "kind"}


def snake(name: str) -> str:
    """`tryAcquire` is `try_acquire`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found[1].lower(), name)


# Python

# A comment in a class begins so before what only the package calls.
PYTHON_REST = "    # The rest is for this package"


class PythonClass(NamedTuple):
    node: ast.ClassDef
    """Its last line that callers read."""
    end: int


def python_classes(folder: Path) -> dict[str, PythonClass]:
    classes = {}
    for path in sorted(folder.glob("*.py")):
        text = path.read_text()
        rest = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(PYTHON_REST)]
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                end = node.end_lineno or 0
                ends = [line for line in rest if node.lineno < line < end]
                classes[node.name] = PythonClass(node, min(ends, default=end))
    return classes


def python_members(classes: dict[str, PythonClass], name: str) -> set[str]:
    """The public members of a class and its bases."""
    if name not in classes:
        return set()
    node, end = classes[name]
    members = set()
    for part in node.body:
        if part.lineno > end:
            continue
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            members.add(part.name)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            members.add(part.target.id)
    for base in node.bases:
        while isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name) and base.id != name:
            members |= python_members(classes, base.id)
    return {member for member in members if not member.startswith("_")}


# TypeScript


def braces(text: str, begin: int) -> str:
    """The text between the brace at `begin` and its end."""
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1 : at]
    raise ValueError("a brace without an end")


def typescript_members(sources: dict[str, str], name: str) -> set[str]:
    found = None
    for kind in ("class", "interface"):
        for text in sources.values():
            found = found or re.search(
                rf"^export (?:abstract )?{kind} {name}\b(?:<[^{{]*?>)? ([^{{]*){{", text, re.MULTILINE
            )
    if not found:
        return set()
    body, head = braces(found.string, found.end() - 1), found[1]
    members: set[str] = set()
    internal = False
    for line in body.splitlines():
        if "@internal" in line:
            internal = True
        if not re.match(r"  [^ */})\]]", line):
            continue
        member = re.match(
            r"  (protected |private )?(?:public )?(?:static )?(?:abstract |override )*(?:readonly )?"
            r"(?:async )?(?:get )?\*?([a-zA-Z]\w*)\??[(<:;]",
            line,
        )
        if member and not internal and not member[1] and member[2] not in TYPESCRIPT_WORDS:
            members.add(snake(member[2]))
        internal = False
    for line in re.findall(r"^    readonly (\w+)", body, re.MULTILINE):
        members.add(snake(line))
    base = re.search(r"extends (\w+)", head)
    return members | (typescript_members(sources, base[1]) if base and base[1] != name else set())


# Rust


def rust_members(sources: dict[str, str], name: str) -> set[str]:
    members: set[str] = set()
    for text in sources.values():
        for found in re.finditer(rf"^impl(?:<[^>]*>)? {name}(?:<[^>]*>)? \{{", text, re.MULTILINE):
            body = braces(text, found.end() - 1)
            members |= set(re.findall(r"^    pub (?:const )?(?:async )?fn (\w+)", body, re.MULTILINE))
        for found in re.finditer(rf"^pub struct {name}(?:<[^>]*>)? \{{", text, re.MULTILINE):
            members |= set(re.findall(r"^    pub (\w+):", braces(text, found.end() - 1), re.MULTILINE))
        for found in re.finditer(rf"^pub enum {name}(?:<[^>]*>)? \{{", text, re.MULTILINE):
            members |= set(re.findall(r"^    (\w+)", braces(text, found.end() - 1), re.MULTILINE))
        if re.search(rf"^impl Deref for {name} ", text, re.MULTILINE):
            members |= rust_members(sources, "Guard")
    return members


def clients(types: Iterable[str]) -> Iterator[tuple[str, str, set[str]]]:
    """Each client, with each type and its members."""
    package = ROOT / "clients/python/src/leasehold"
    threads = python_classes(package)
    asyncio = threads | python_classes(package / "aio")
    typescript = {path.name: path.read_text() for path in sorted((ROOT / "clients/typescript/src").glob("*.ts"))}
    rust = {str(path): path.read_text() for path in sorted((ROOT / "shared/leasehold-client/src").rglob("*.rs"))}
    for name in types:
        yield "rust", name, rust_members(rust, name)
        yield "python", name, python_members(threads, name)
        yield "python.aio", name, python_members(asyncio, name)
        yield "typescript", name, typescript_members(typescript, name)


def complaints(table: dict[str, Any]) -> Iterator[str]:
    for client, name, members in clients(table):
        entry = table[name]
        language = client.partition(".")[0]
        if language in entry.get("not_in", {}):
            continue
        every, own = set(entry["all"]), set(entry["only"].get(language, []))
        for member in sorted((every | own) - members):
            yield f"{client}: {name}.{member} is in the table, and not in the client"
        for member in sorted(members - every - own):
            yield f"{client}: {name}.{member} is in the client, and not in the table"


def main() -> int:
    table = json.loads(TABLE.read_text())
    if sys.argv[1:] == ["--show"]:
        for client, name, members in clients(table):
            print(client, name, *sorted(members))
        return 0
    found = list(complaints(table))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
