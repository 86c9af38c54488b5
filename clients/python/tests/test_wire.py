"""The generated types are those of the service's OpenAPI document."""

import importlib.util
import subprocess
import sys

import pytest
from conftest import PACKAGE


@pytest.mark.skipif(
    importlib.util.find_spec("datamodel_code_generator") is None,
    reason="datamodel-code-generator is not installed: pip install leasehold[dev]",
)
def test_generated_module_is_not_stale() -> None:
    script = PACKAGE / "scripts" / "generate_wire.py"
    check = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=600)
    assert check.returncode == 0, check.stderr
