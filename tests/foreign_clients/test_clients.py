"""Clients of the field, unmodified, talk to a sidecar process: the scripts assert what they get."""

import fcntl
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import succeeded
from tests.example_models import numbered
from tests.sidecar.process import serve_models

pytestmark = pytest.mark.slow

LOCK = Path(__file__).with_name("requirements.lock")
SCRIPTS = Path(__file__).with_name("scripts")


@pytest.fixture(scope="module")
def python() -> Path:
    """Python with what the lock names, installed once for each lock: none of it is in our own environment."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    folder = Path.home() / ".cache" / "streampca-clients" / digest
    python, uv = folder / "bin" / "python", [sys.executable, "-m", "uv", "--quiet"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the tests wait here
        if not (folder / "complete").exists():
            succeeded(*uv, "venv", "--clear", "--python", sys.executable, folder)
            succeeded(*uv, "pip", "sync", "--python", python, LOCK)
            (folder / "complete").touch()
    return python


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A sidecar with the versions 10 and 20."""
    with serve_models(tmp_path_factory.mktemp("store"), numbered(10), numbered(20)) as sidecar:
        yield sidecar.wait_for_url()


@pytest.mark.parametrize("script", ["triton", "kserve_rest", "mlflow_scoring"])
def test_a_client_gets_the_numbers_of_project(python: Path, url: str, script: str) -> None:
    succeeded(python, SCRIPTS / f"{script}.py", url)


def test_a_client_made_from_the_description_can_call_everything(python: Path, url: str, tmp_path: Path) -> None:
    succeeded(python, SCRIPTS / "generated.py", url, tmp_path)


@pytest.mark.parametrize("options", [["GET"], ["POST", "--exclude-checks", "positive_data_acceptance"]])
def test_schemathesis_finds_nothing(python: Path, url: str, options: list[str]) -> None:
    """No schema says how long a model's vectors are, so bodies that fit theirs may be refused."""
    where = ("schemathesis.cli", "run", f"{url}/openapi.json")
    succeeded(python, "-m", *where, "--max-examples", "8", "--seed", "1", "--include-method", *options)
