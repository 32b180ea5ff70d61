"""Clients of the field, unmodified, talk to a sidecar process: the scripts assert what they get."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.example_models import numbered
from tests.foreign_clients.environment import SCRIPTS, interpreter, run
from tests.sidecar.process import serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python() -> Path:
    return interpreter()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A sidecar with the versions 10 and 20."""
    with serving(tmp_path_factory.mktemp("store"), numbered(10), numbered(20)) as sidecar:
        yield sidecar.url()


@pytest.mark.parametrize("script", ["triton", "kserve_rest", "mlflow_scoring"])
def test_a_client_gets_the_numbers_of_project(python: Path, url: str, script: str) -> None:
    run([python, SCRIPTS / f"{script}.py", url])


def test_a_client_made_from_the_description_can_call_everything(python: Path, url: str, tmp_path: Path) -> None:
    run([python, SCRIPTS / "generated.py", url, tmp_path])


@pytest.mark.parametrize("options", [["GET"], ["POST", "--exclude-checks", "positive_data_acceptance"]])
def test_schemathesis_finds_nothing(python: Path, url: str, options: list[str]) -> None:
    """No schema says how long a model's vectors are, so bodies that fit theirs may be refused."""
    command = [python, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--max-examples", "8", "--seed", "1"]
    run([*command, "--include-method", *options])
