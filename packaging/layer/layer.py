"""Packs the agent as a layer of Lambda: layer.py AGENT FILE.zip

Lambda starts each program in extensions/ of its layers as an extension. The same program gives the same bytes: the
time is that of SOURCE_DATE_EPOCH (default: the first that a zip can name), and nobody's name is in it.
"""

import os
import pathlib
import sys
import time
import zipfile

FIRST = 315532800
"""1980-01-01, in seconds since 1970."""
DOCUMENTS = ("LICENSE-APACHE", "LICENSE-MIT")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def add(layer, name, path, mode):
    when = time.gmtime(max(FIRST, int(os.environ.get("SOURCE_DATE_EPOCH", FIRST))))
    entry = zipfile.ZipInfo(name, when[:6])
    entry.create_system = 3  # the mode is one of Unix
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    layer.writestr(entry, path.read_bytes(), compresslevel=9)


def main():
    agent, file = map(pathlib.Path, sys.argv[1:])
    with zipfile.ZipFile(file, "w") as layer:
        add(layer, "extensions/leasehold-agent", agent, 0o755)
        for name in DOCUMENTS:
            add(layer, f"leasehold-agent/{name}", ROOT / name, 0o644)


if __name__ == "__main__":
    main()
