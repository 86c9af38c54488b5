"""Writes src/leasehold/_wire.py from the service's OpenAPI document. `--check` only compares."""

import argparse
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
DOCUMENT = PACKAGE.parent.parent / "docs" / "openapi.json"
MODULE = PACKAGE / "src" / "leasehold" / "_wire.py"


def generate() -> str:
    """The text of the module. Raises `subprocess.CalledProcessError` where the generator fails."""
    command = [sys.executable, "-m", "datamodel_code_generator", "--input", str(DOCUMENT)]
    command += ["--input-file-type", "openapi", "--output-model-type", "typing.TypedDict"]
    command += ["--target-python-version", "3.10", "--disable-timestamp", "--use-schema-description"]
    command += ["--enum-field-as-literal", "all", "--use-union-operator", "--use-standard-collections"]
    command += ["--no-use-closed-typed-dict", "--formatters", "builtin"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=PACKAGE).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the module is stale")
    if parser.parse_args().check:
        if MODULE.read_text("utf-8") != generate():
            sys.exit("_wire.py is stale: run scripts/generate_wire.py")
    else:
        MODULE.write_text(generate(), "utf-8")


if __name__ == "__main__":
    main()
