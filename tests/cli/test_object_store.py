"""Commands take the URL of a bucket wherever they take a store."""

import json
import uuid
from pathlib import Path

import numpy as np
import pytest

from streampca.cli import fit, inspect
from streampca.errors import StoreError
from streampca.files.columns import FileOptions
from tests.errors import refusal
from tests.s3_process import BUCKET, S3Process

pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.fixture
def url(s3: S3Process) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).standard_normal((300, 4)))
    return tmp_path / "vectors.npy"


def test_fit_writes_and_inspect_reads_an_object(url: str, vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = f"{url}/models/readings/00000000000000000300.npz"
    fit.run(vectors, output, fit.FitOptions(components=2), None, FileOptions())
    capsys.readouterr()
    inspect.run(output, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["version"], facts["components"]) == ("model", 300, 2)
    inspect.run(url, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    models = {"models": 1, "newest_model": 300, "versions": [300], "pins": {}}
    assert facts["topics"] == {"readings": {"partitions": {}, **models}}
    inspect.run(url, as_json=False)
    assert "readings: 1 models, newest version 300\nversions: 300\n" in capsys.readouterr().out


def test_an_object_or_bucket_that_does_not_exist_is_named(url: str, vectors: Path) -> None:
    with pytest.raises(StoreError, match=f"cannot read {url}/model.npz: there is no such file"):
        inspect.run(f"{url}/model.npz", as_json=True)
    assert "holds no checkpoints and no models" in refusal(StoreError, inspect.run, url, as_json=True)
    assert "there is no such bucket" in refusal(
        StoreError, fit.run, vectors, "s3://no-such-bucket/model.npz", fit.FitOptions(components=2), None, FileOptions()
    )
