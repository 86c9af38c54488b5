#!/usr/bin/env python3
"""Draws the plots of docs/performance.md from its tables, into docs/images.

Run it after new figures were written there: scripts/plots.py. With --check, fails when a plot is not what the tables
give.
"""

import math
import re
import sys

from pictures import IMAGES, Picture

PAGE = IMAGES.parent / "performance.md"
LEFT, BAR, GAP = 250, 22, 8


def table(*columns):
    """The rows of the first table whose head begins with these columns, as lists of texts."""
    lines = PAGE.read_text().splitlines()
    start = next((number for number, line in enumerate(lines) if cells(line)[: len(columns)] == list(columns)), None)
    if start is None:
        sys.exit(f"{PAGE.name} has no table that begins with {columns}")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return rows


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def number(cell):
    """The first number of a cell, without thousands' separators."""
    return float(re.search(r"\d[\d,]*(\.\d+)?", cell)[0].replace(",", ""))


def bars(name, title, note, groups, *, logarithmic=False, unit=""):
    """One bar for each value, in groups: [(group, [(label, value, kind)])]."""
    count = sum(len(entries) for _, entries in groups)
    height = 78 + count * (BAR + GAP) + len(groups) * 14
    picture = Picture(name, 860, height, title)
    picture.text(24, 34, title, "bold")
    picture.text(24, 54, note, "small")
    largest = max(value for _, entries in groups for _, value, _ in entries)
    smallest = min(value for _, entries in groups for _, value, _ in entries)

    def length(value):
        if not logarithmic:
            return 480 * value / largest
        low = math.log(smallest) - 0.7
        return 480 * (math.log(value) - low) / (math.log(largest) - low)

    y = 70
    for group, entries in groups:
        picture.text(24, y + 16, group, "bold")
        for label, value, kind in entries:
            picture.text(LEFT - 12, y + 16, label, "end small")
            picture.bar(LEFT, y, round(length(value), 1), BAR, kind)
            picture.text(round(LEFT + length(value) + 8, 1), y + 16, f"{value:,g}{unit}", "small")
            y += BAR + GAP
        y += 14
    return picture


def grouped(rows, sizes, kinds, value):
    groups = []
    for size in sizes:
        entries = [(row[1], value(row), kinds[row[1]]) for row in rows if row[0] == size and row[1] in kinds]
        groups.append((f"N = {size}", entries))
    return groups


def units():
    size = ""
    rows = []
    for row in table("N", "7N+4", "", "write calls", "write units"):
        # A row without a number goes on with the one before.
        size = row[0] or size
        rows.append([size, *row[2:]])
    kinds = {"begin, add, commit": "warn", "one call": "good"}
    groups = grouped(rows, ["1", "10", "100"], kinds, lambda row: number(row[3]))
    for group, entries in groups:
        items = int(group.split()[-1])
        entries.insert(0, ("as published: 7N+4", 7 * items + 4, "box"))
    return bars(
        "plot-units",
        "Write units of a transaction of N updates",
        "Logarithmic. Less is better.",
        groups,
        logarithmic=True,
    )


def transactions():
    kinds = {"TransactWriteItems": "box", "one call": "good", "begin, add, commit": "warn"}
    rows = table("N", "", "per second", "p50 / p99 ms", "over TransactWriteItems")
    groups = grouped(rows, ["1", "10", "100"], kinds, lambda row: number(row[2]))
    return bars(
        "plot-transactions",
        "Transactions per second, four clients, each with items of its own",
        "Embedded engine, two shared cores. Logarithmic. More is better.",
        groups,
        logarithmic=True,
    )


def cold_start():
    rows = table("", "init, median", "first", "warm, median")
    groups = [
        ("process to /next", [(row[0], number(row[1]), "good") for row in rows]),
        ("first invocation", [(row[0], number(row[2]), "warn") for row in rows]),
    ]
    return bars(
        "plot-cold-start",
        "Cold start of each function, in ms",
        "Over TLS on loopback, medians of 60 starts.",
        groups,
        unit=" ms",
    )


def main():
    for draw in [units, transactions, cold_start]:
        picture = draw()
        path = IMAGES / f"{picture.name}.svg"
        before = path.read_text() if path.exists() else ""
        if "--check" not in sys.argv[1:]:
            picture.save()
        elif before != picture.document():
            sys.exit(f"{path.name} is not what {PAGE.name} says. Run: scripts/plots.py")


if __name__ == "__main__":
    main()
