"""The modules of the package import each other without circles, not even for types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter

from conftest import PACKAGE

SOURCES = PACKAGE / "src"


def imported(module: str, is_package: bool, tree: ast.Module) -> Iterator[str]:
    """Yields what the module imports from the package, as `package.module` and `package.module.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] + (node.module.split(".") if node.module else [])
            yield ".".join(base)
            yield from (".".join([*base, alias.name]) for alias in node.names)


def test_modules_import_each_other_without_circles() -> None:
    modules = {}
    for path in SOURCES.rglob("*.py"):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = set(imported(name, is_package, ast.parse(path.read_text("utf-8"))))
    # A package is loaded before its modules, and imports them for their names only.
    packages = {name for name in modules if any(other.startswith(f"{name}.") for other in modules)}
    graph = {name: (imports & modules.keys()) - packages for name, imports in modules.items()}
    assert sum(map(len, graph.values())) > 100
    TopologicalSorter(graph).prepare()  # raises where there is a circle
