"""Worker, sidecar and commands go on with a store that the release before has written."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from streampca.cli import inspect
from streampca.export import to_onnx
from streampca.fold import checkpoint as checkpoints, npz
from streampca.fold.partitions import backfill_partition
from streampca.sidecar.served_models import ServedModels
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.fold.streams import D, fold_config, vectors
from tests.pca.streams import with_gaps
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import make_worker

STORE = Path(__file__).parent / "store"
LEARNED, OF_BACKFILL = (300, 400), 300
NEW = 260  # records of each partition that follow


def environment() -> Environment:
    """A topic of which the store holds the first records of each partition."""
    env = Environment(2, fold_config(impute=True))
    env.topic.id = "0123456789abcdef0123456789abcdef"
    for path in STORE.rglob("*.*"):
        env.store.write(str(path.relative_to(STORE)), path.read_bytes())
    for partition, learned in enumerate(LEARNED):
        env.send(partition, np.full((learned, D), 1e6))  # nobody reads them
        missing = np.arange(NEW)[:, None] % 7 == np.arange(D)  # at most one entry: with fewer than four, it is rejected
        env.send(partition, np.where(missing, np.nan, vectors(NEW, seed=partition)))
    return env


def test_a_worker_continues_where_the_release_before_ended() -> None:
    env = environment()
    identity = env.store.read("store.json")
    before = [env.newest(partition).fold for partition in (0, 1)]
    make_worker(env).run()
    assert env.violations == []
    assert env.store.read("store.json") == identity
    for partition, learned in enumerate(LEARNED):
        fold = env.newest(partition).fold
        assert fold.position == fold.stats.learned == learned + NEW
        assert fold.state.weight > before[partition].state.weight
        data = env.checkpoints.read_file(partition, learned + NEW)
        assert npz.decode(data, checkpoints.KIND, checkpoints.FORMAT_VERSION)[0]["format_version"] == 4
    newest = env.models.newest()
    assert newest is not None
    assert newest.version == sum(LEARNED) + OF_BACKFILL + 2 * NEW
    assert newest.positions == {0: 300 + NEW, 1: 400 + NEW, backfill_partition(0): OF_BACKFILL}
    assert newest.past_scores is not None
    assert {300, 700, 1000} < set(env.models.versions())
    assert Pins(env.store, TOPIC).all() == {"index": 300}


def test_a_sidecar_serves_the_models_of_the_release_before() -> None:
    models = Models(DirectoryStore(STORE), TOPIC)
    served = ServedModels(models)
    served.cache.poll()
    assert served.cache.current is not None
    assert served.cache.current.version == 1000
    assert served.cache.get(300).version == 300
    assert served.pins == {"index": 300}
    V = with_gaps(vectors(20), 0.2)
    for version in models.versions():
        projected = models.load(version).project(V)
        assert np.isfinite(projected.scores.score).all()
        assert projected.p is not None
    assert to_onnx(models.load(700))


def test_inspect_shows_the_files_of_the_release_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = shutil.copytree(STORE, tmp_path / "store")
    partitions = inspect.describe_store(store)["topics"][TOPIC]["partitions"]
    assert {name: facts["learned"] for name, facts in partitions.items()} == {"0": 300, "1": 400, "backfill-0": 300}
    for file, version in ((f"checkpoints/{TOPIC}/1/{400:020d}.npz", 3), (f"models/{TOPIC}/{700:020d}.npz", 2)):
        inspect.run(str(store / file), as_json=True)
        assert json.loads(capsys.readouterr().out)["format_version"] == version
