"""`streampca backfill --remove` deletes a backfill, and the models that contain it."""

import csv
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampca.backfill import engines
from streampca.cli import backfill as backfill_command
from streampca.cli.drop import drop
from streampca.errors import SettingsError
from streampca.files.columns import FileOptions
from streampca.fold.partitions import FIRST_BACKFILL, backfill_partition
from streampca.settings.commands import WorkerSettings
from streampca.settings.process import StoreSettings
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.stores.process_status import ProcessStatus, ProcessStatuses
from streampca.worker.publisher import Publisher
from tests.backfill.conftest import lake as lake
from tests.backfill.rows import fold_here, learn_files, make_plan, make_rows, write_files
from tests.command_line import assert_one_line, run as run_command
from tests.errors import refusal


@pytest.mark.parametrize("broken", [False, True])
def test_a_backfill_is_removed_only_after_a_question(tmp_path: Path, broken: bool) -> None:
    """Without the settings of the model, which may be what was wrong, and also if its file is damaged."""
    lake, store = write_files(tmp_path / "lake", make_rows(300, d=5)), DirectoryStore(tmp_path / "store")
    folder = tmp_path / "store" / "checkpoints" / "readings" / "backfill-0"

    def backfill(*more: object) -> subprocess.CompletedProcess[str]:
        return run_command("backfill", "--topic", "readings", "--store", tmp_path / "store", *more)

    assert_one_line(backfill("--remove", 0), "has no backfill-0 of readings, and no model contains it", code=2)
    assert "name the files" in backfill().stderr
    assert "--remove takes no files" in backfill(lake, "--remove", 0).stderr
    learn_files(fold_here, make_plan(5), lake, store=store)
    [saved] = folder.glob("*.npz")
    if broken:
        saved.write_bytes(b"broken")
    assert backfill("--remove", 0).returncode != 0  # nobody answers the question
    assert saved.exists()
    command = [sys.executable, "-m", "streampca", "backfill", "--remove", "0", "--topic", "readings"]
    environment = {**os.environ, "STREAMPCA_STORE": str(tmp_path / "store")}
    answered = subprocess.run(command, input="y\n", env=environment, capture_output=True, text=True, check=True)
    assert "deleted backfill-0 of readings" in answered.stdout
    assert not [path for path in folder.rglob("*") if path.is_file()]
    other = write_files(tmp_path / "other", make_rows(400, d=5))
    assert learn_files(fold_here, make_plan(5), other, store=store).fold.stats.learned == 400


def test_a_backfill_standardises_as_workers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "on_processes", lambda: fold_here)
    Y, store = make_rows(300, d=5) * np.logspace(-3, 3, 5), str(tmp_path / "store")
    settings = WorkerSettings(topic="readings", store=store, dimensions=5, components=2, standardize=True)
    run(settings, write_files(tmp_path / "lake", Y))
    saved = Checkpoints(DirectoryStore(store), "readings").newest(FIRST_BACKFILL)
    assert saved is not None
    assert saved.settings["standardize"] is True
    assert saved.fold.state.scale == pytest.approx(1 / Y.std(axis=0))


def run(settings: WorkerSettings, lake: Path, until: str | None = None, rejects: Path | None = None) -> None:
    files = FileOptions("embedding")
    backfill_command.run(settings, [str(lake)], files, None, until, backfill_number=0, scheduler=None, rejects=rejects)


def test_rejected_rows_are_written_to_a_file_and_an_end_needs_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "on_processes", lambda: fold_here)
    settings = WorkerSettings(topic="readings", store=str(tmp_path / "store"), dimensions=5, components=2)
    Y = make_rows(30, d=5)
    Y[7] = np.inf
    lake, rejects = write_files(tmp_path / "lake", Y, files=1), tmp_path / "rejects.parquet"
    assert "needs --timestamp-column" in refusal(SettingsError, run, settings, lake, until="2026-01-01T00:00Z")
    assert "name partition 0 twice" in refusal(SettingsError, run, settings, lake, until="0:10,1:10,0:20")
    run(settings, lake, rejects=rejects)
    assert pq.read_table(rejects)["row"].to_pylist() == [7]


def test_names_that_no_row_has_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "on_processes", lambda: fold_here)
    columns = {f"c{i}": column for i, column in enumerate(make_rows(30, d=4).T)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for field, warns in (("c0,c1,c2,c3", False), ("c0,c1,c2,dust", True)):
        settings = WorkerSettings(
            topic="readings", store=str(tmp_path / field), dimensions=4, components=1, missing="impute"
        )
        files = FileOptions(field)
        sources = [str(tmp_path / "a.parquet")]
        backfill_command.run(settings, sources, files, None, None, backfill_number=0, scheduler=None, rejects=None)
        assert ("warning: none of the rows has a number at dust" in capsys.readouterr().err) == warns


@pytest.mark.parametrize("silent_s", [0.0, 300.0])
def test_a_backfill_publishes_unless_a_worker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], silent_s: float
) -> None:
    """Then `project` needs no Kafka."""
    monkeypatch.setattr(engines, "on_processes", lambda: fold_here)
    store, out = str(tmp_path / "store"), tmp_path / "out.npy"
    report = ProcessStatus(
        name="a", state="waiting", trouble=None, started_at=0, updated_at=time.time() - silent_s,
        messages_per_second=0, partitions={},
    )  # fmt: skip
    ProcessStatuses(DirectoryStore(store), "readings").write(report)
    lake = write_files(tmp_path / "lake", make_rows(300, d=5), files=1)
    run(WorkerSettings(topic="readings", store=store, dimensions=5, components=2), lake)
    expected = "model version 300 contains them" if silent_s else "no model yet: a worker of the topic publishes it"
    assert expected in " ".join(capsys.readouterr().out.split())
    project = ("project", lake / "0.parquet", "--model", store, "--field", "embedding", "-o", out)
    if silent_s:
        assert run_command(*project).returncode == 0
        assert np.load(out).shape == (300, 2)
    else:
        assert_one_line(run_command(*project), "holds no model yet: a worker of the topic publishes it")


def test_the_next_model_does_not_contain_what_was_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a lower version, as the stream alone has learned fewer messages."""
    store, config = DirectoryStore(tmp_path / "store"), make_plan(5).fold_config
    lakes = [write_files(tmp_path / f"lake{i}", make_rows(n, seed=i, d=5)) for i, n in enumerate((300, 900))]
    learn_files(fold_here, make_plan(5), lakes[0], store=store)
    Publisher(Models(store, "readings"), config, lambda: 0.0).publish(Checkpoints(store, "readings"))
    learn_files(fold_here, replace(make_plan(5), number=1), lakes[1], store=store)
    publisher = Publisher(Models(store, "readings"), config, lambda: 0.0)
    publisher.publish(Checkpoints(store, "readings"))
    models = Models(store, "readings")
    assert models.versions() == [300, 1200]
    for name, version in (("index", 1200), ("other", 300)):
        Pins(store, "readings").set(name, version)
    asked: list[str] = []

    def stop_workers(question: str) -> bool:
        """They publish once more."""
        asked.append(question)
        return models.save(replace(models.load(1200), version=1201))

    drop(StoreSettings(topic="readings", store=store.location), backfill_partition(1), stop_workers)
    removed = "backfill-1 of readings, and the 1 models that contain it, among them what is pinned as index (1200)"
    assert asked == [f"Delete {removed}? Stop the workers first"]
    assert "deleted backfill-1 of readings, and 2 models that contained it" in " ".join(capsys.readouterr().out.split())
    assert models.versions() == [300]
    assert Pins(store, "readings").all() == {"other": 300}
    publisher.publish(Checkpoints(store, "readings"))
    model = models.newest()
    assert (model.version, model.positions) == (300, {FIRST_BACKFILL: 300})


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "csv"])
def test_elements_that_change_their_places_from_file_to_file_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    """Each file is in order by itself, and a worker learns it: only all together show it."""
    monkeypatch.setattr(engines, "on_processes", lambda: fold_here)
    Y = make_rows(60, d=3)
    for folder, orders in (("same", ["abc", "abc"]), ("moved", ["abc", "cab"])):
        (tmp_path / folder).mkdir()
        for number, order in enumerate(orders):
            rows = [[{"id": name, "v": y["abc".index(name)]} for name in order] for y in Y[number::2].tolist()]
            write_elements(tmp_path / folder / f"{number}.{suffix}", rows)
        for field, warns in (("values.v", folder == "moved"), (",".join(f"values[id={i}].v" for i in "abc"), False)):
            store = str(tmp_path / f"{folder}{warns}{len(field)}")
            settings = WorkerSettings(topic="readings", store=store, dimensions=3, components=2)
            for _ in range(2):  # a second run finds what the first one has learned
                backfill_command.run(
                    settings, [str(tmp_path / folder)], FileOptions(field), None, None,
                    backfill_number=0, scheduler=None, rejects=None,
                )  # fmt: skip
                shown = capsys.readouterr()
                assert "60 vectors learned" in " ".join(shown.out.split())
                assert ("warning: the elements at values.v change their places" in shown.err) == warns


def write_elements(path: Path, rows: list[list[dict[str, object]]]) -> None:
    """Write the rows as the column `values` of a file."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"values": row}) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["values"], *([json.dumps(row)] for row in rows)])
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"values": rows}), path)
    else:
        feather.write_feather(pa.table({"values": rows}), path)
