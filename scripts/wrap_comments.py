#!/usr/bin/env python3
"""Wraps the comment lines of the Rust code that are wider than rustfmt's `max_width`.

    scripts/wrap_comments.py            wraps them
    scripts/wrap_comments.py --check    lists them, and fails if there are any

rustfmt wraps comments only on nightly. Lines with an address, tables and code blocks are left as they are.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

WIDTH = 120
COMMENT = re.compile(r"(\s*//[/!]?) (.*)")
# A heading, an item of a list, a table or a fence begins a paragraph of its own.
BEGINS = re.compile(r"(#|[*+-] |\d+\. |\||```|\[[^\]]*\]:)")


def is_too_wide(line: str) -> bool:
    return len(line) > WIDTH and COMMENT.fullmatch(line) is not None and "://" not in line and "| " not in line[:8]


def paragraph(lines: list[str], at: int) -> tuple[int, int]:
    """Returns the lines that are one paragraph with line `at`, as a range."""
    prefix = COMMENT.fullmatch(lines[at])[1]

    def text(index: int) -> str | None:
        found = COMMENT.fullmatch(lines[index])
        return found[2].lstrip() if found and found[1] == prefix else None

    def goes_on(index: int) -> bool:
        """Whether the line belongs to the paragraph of the line before."""
        before, here = text(index - 1), text(index)
        return None not in (before, here) and not before.startswith("#") and not BEGINS.match(here)

    start, end = at, at + 1
    while start > 0 and goes_on(start):
        start -= 1
    while end < len(lines) and goes_on(end):
        end += 1
    return start, end


def outside_code(lines: list[str]) -> list[str]:
    """Returns the lines, empty where they are in a code block."""
    in_code, outside = False, []
    for line in lines:
        found = COMMENT.fullmatch(line)
        in_code ^= found is not None and found[2].startswith("```")
        outside.append("" if in_code else line)
    return outside


def wrapped(lines: list[str]) -> list[str]:
    at = 0
    in_code = False
    while at < len(lines):
        found = COMMENT.fullmatch(lines[at])
        in_code ^= found is not None and found[2].startswith("```")
        if not in_code and is_too_wide(lines[at]):
            start, end = paragraph(lines, at)
            prefix = COMMENT.fullmatch(lines[start])[1] + " "
            texts = [COMMENT.fullmatch(line)[2] for line in lines[start:end]]
            indent = re.match(r"(\s*(?:[*+-] |\d+\. )?)", texts[0])[1]
            lines[start:end] = textwrap.wrap(
                " ".join(text.strip() for text in texts),
                WIDTH,
                initial_indent=prefix + re.match(r"\s*", texts[0])[0],
                subsequent_indent=prefix + " " * len(indent),
                break_long_words=False,
                break_on_hyphens=False,
            )
            at = start
        at += 1
    return lines


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__.strip())
    check = sys.argv[1:] == ["--check"]
    tracked = subprocess.run(["git", "ls-files", "*.rs"], capture_output=True, text=True, check=True).stdout.split()
    failed = False
    for path in map(Path, tracked):
        before = path.read_text().split("\n")
        if check:
            wide = [number for number, line in enumerate(outside_code(before), 1) if is_too_wide(line)]
            failed |= bool(wide)
            for number in wide:
                print(f"{path}:{number}: the comment is wider than {WIDTH} columns: run `just wrap`")
        elif (after := wrapped(list(before))) != before:
            path.write_text("\n".join(after))
    sys.exit(failed)


if __name__ == "__main__":
    main()
