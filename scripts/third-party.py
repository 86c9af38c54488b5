#!/usr/bin/env python3
"""Writes the components of the released programs into target/third-party, for everyone who distributes the programs:

- THIRD-PARTY-LICENSES.txt: the works and the texts of their licences
- leasehold.cdx.json: a software bill of materials in the CycloneDX format

Usage: scripts/third-party.py. The works are those of Cargo.lock that are linked into the command or a function, and
those of console/package-lock.json that are bundled into the page. Needs the packages of `npm ci` in console/, and
cyclonedx-python-lib: `just third-party` installs both. Fails where a work names no licence, or the bill is invalid.
"""

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target" / "third-party"
CONSOLE = ROOT / "console"
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
"""The released targets."""
HEAD = """\
The programs of Leasehold, the command and the functions, contain the works below, under the licences that follow.
A work without a text of its own is under the licence of that name.
"""


class Work(NamedTuple):
    """A package of another author."""

    name: str
    version: str
    licence: str
    purl: str
    sha256: str | None
    folder: Path


def crates():
    """Returns the crates in a released program, without those that only build scripts, tests or macros use."""
    found = {}
    for target in TARGETS:
        command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
        metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
        packages = {package["id"]: package for package in metadata["packages"]}
        nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
        released = [package["id"] for package in packages.values() if is_released(package)]
        seen = set()
        while released:
            name = released.pop()
            if name in seen:
                continue
            seen.add(name)
            normal = [
                dep["pkg"] for dep in nodes[name]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])
            ]
            released += [dependency for dependency in normal if not is_macro(packages[dependency])]
        found |= {name: packages[name] for name in seen if packages[name]["source"]}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    for crate in found.values():
        name, version = crate["name"], crate["version"]
        licence = " OR ".join(part.strip() for part in (crate["license"] or "").split("/"))
        folder = Path(crate["manifest_path"]).parent
        yield Work(name, version, licence, f"pkg:cargo/{name}@{version}", checksums[name, version], folder)


def is_released(package):
    """Whether a member of the workspace is a released program."""
    path = Path(package["manifest_path"]).parent
    folders = [ROOT / "cli", ROOT / "functions"]
    is_program = any("bin" in target["kind"] for target in package["targets"])
    return package["source"] is None and is_program and any(path.is_relative_to(folder) for folder in folders)


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def modules():
    """Returns the npm packages in the console's bundle."""
    lock = json.loads((CONSOLE / "package-lock.json").read_text())
    for path, package in lock["packages"].items():
        if path and not package.get("dev") and not package.get("devOptional") and not package.get("peer"):
            name, version = path.removeprefix("node_modules/"), package["version"]
            purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
            yield Work(name, version, package.get("license", ""), purl, None, CONSOLE / path)


def texts(work):
    """Returns the licence texts of a work; MIT's, if there are several licences to choose from."""
    names = ("LICEN", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT")
    files = [
        file
        for path in work.folder.iterdir()
        if path.name.upper().startswith(names)
        for file in (path.rglob("*") if path.is_dir() else [path])
    ]
    files = sorted(file for file in files if file.is_file() and file.suffix not in (".rs", ".json"))
    may_choose_mit = "MIT" in work.licence.split(" OR ")
    chosen = [file for file in files if "MIT" in file.name.upper()] if may_choose_mit else []
    for file in chosen or files:
        yield "\n".join(line.rstrip() for line in file.read_text(errors="replace").strip().splitlines())


def licences(works):
    users = defaultdict(list)
    lines = [HEAD]
    for work in works:
        found = list(texts(work))
        lines.append(f"{work.name} {work.version}: {work.licence}" + ("" if found else ", without a text of its own"))
        for text in found:
            users[text].append(f"{work.name} {work.version}")
    for text, names in sorted(users.items(), key=lambda entry: entry[1]):
        lines += ["", "=" * 100, "Of " + ", ".join(names) + ":", "", text]
    return "\n".join(lines) + "\n"


def bill_of_materials(works):
    """Returns the bill as JSON, made by the library of the CycloneDX project, and valid under its schema."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    program = Component(name="leasehold", version=version, type=ComponentType.APPLICATION, bom_ref="leasehold")
    components = [
        Component(
            name=work.name,
            version=work.version,
            type=ComponentType.LIBRARY,
            bom_ref=work.purl,
            purl=PackageURL.from_string(work.purl),
            licenses=[LicenseExpression(work.licence)],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=work.sha256)] if work.sha256 else [],
        )
        for work in works
    ]
    bom = Bom(metadata=BomMetaData(component=program), components=components)
    bom.register_dependency(program, components)
    bill = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    if errors := JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill):
        sys.exit(f"the bill of materials is invalid: {errors}")
    return bill


def main():
    works = sorted([*crates(), *modules()])
    unnamed = [work.name for work in works if not work.licence]
    if unnamed:
        sys.exit(f"without a licence: {', '.join(unnamed)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "THIRD-PARTY-LICENSES.txt").write_text(licences(works))
    (FOLDER / "leasehold.cdx.json").write_text(bill_of_materials(works))
    print(f"{len(works)} works: {FOLDER.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
