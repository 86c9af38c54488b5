#!/usr/bin/env bash
# Tests and packages the Python client. Needs Python 3.10 or later, and `cargo build` before (or LEASEHOLD_BIN and
# LEASEHOLD_INVOKE_BIN).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/python-client"
work=$(cd "$target/python-client" && pwd)
LEASEHOLD_BIN=$(realpath -m "${LEASEHOLD_BIN:-$work/../debug/leasehold}")
LEASEHOLD_INVOKE_BIN=$(realpath -m "${LEASEHOLD_INVOKE_BIN:-$(dirname "$LEASEHOLD_BIN")/leasehold-locks}")
export LEASEHOLD_BIN LEASEHOLD_INVOKE_BIN
# `cargo test --workspace` makes no binary of a function.
[ -x "$LEASEHOLD_INVOKE_BIN" ] || (cd "$here/../.." && cargo build --quiet --workspace --bin leasehold-locks)
export PYTHONDONTWRITEBYTECODE=1
cd "$here"

# The environment is made again when what it is made from has changed.
stamp=$( (${PYTHON:-python3} --version && cat pyproject.toml && echo "$here") | sha256sum)
if [ "$(cat "$work/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$work/venv"
    ${PYTHON:-python3} -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install --quiet --editable '.[dev]'
    echo "$stamp" >"$work/stamp"
fi
python=$work/venv/bin/python

"$python" -m pytest -o cache_dir="$work/pytest" --numprocesses 3 "$@" # they wait more than they work

# The package, as a user gets it: in an environment of its own, with nothing but its dependency.
rm -rf "$work/dist" "$work/clean"
"$python" -m build --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || {
    cat "$work/build.log"
    exit 1
}
"$python" -m twine check --strict "$work"/dist/*
"$python" -m venv "$work/clean"
"$work/clean/bin/python" -m pip install --quiet "$work"/dist/*.whl
cd "$work"
"$work/clean/bin/python" - <<'EOF'
import importlib.metadata, importlib.resources, pathlib, tarfile
import leasehold

assert "clean" in pathlib.Path(leasehold.__file__).parts, leasehold.__file__
assert (importlib.resources.files("leasehold") / "py.typed").is_file()
assert [wheel.name for wheel in pathlib.Path("dist").glob("*.whl")] == [f"leasehold-{leasehold.__version__}-py3-none-any.whl"]
assert "Root-Is-Purelib: true" in importlib.metadata.distribution("leasehold").read_text("WHEEL")
assert {d.metadata["Name"].lower() for d in importlib.metadata.distributions()} <= {"leasehold", "urllib3", "pip", "setuptools"}
assert leasehold.__version__ == importlib.metadata.version("leasehold")
for module, extra in (("aio", "aio"), ("aws", "aws")):
    try:
        importlib.import_module(f"leasehold.{module}")
    except ModuleNotFoundError as error:
        assert f"leasehold[{extra}]" in str(error), error
    else:
        raise AssertionError(f"leasehold.{module} needs an extra")
metadata = importlib.metadata.metadata("leasehold")
assert metadata["License-Expression"] == "MIT OR Apache-2.0"
assert len(metadata.get_all("License-File")) == 2
(sdist,) = pathlib.Path("dist").glob("*.tar.gz")
names = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
assert {"pyproject.toml", "README.md", "LICENSE-MIT", "src/leasehold/_wire.py", "tests/conftest.py"} <= names, names
print(f"leasehold {metadata['Version']}: the wheel installs, imports and is typed")
EOF
