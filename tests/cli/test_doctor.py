"""`streampca doctor` with an output topic: what it finds without a broker, and which roles it checks."""

import re
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streampca.cli import doctor
from streampca.cli.doctor import TransformChecks
from streampca.cli.doctor_topic import Check, TopicChecks
from streampca.errors import BadRecordError, InputError, StoreError, TopicReplacedError
from streampca.formats.record import LastRecord, Record
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources.base import Committed
from streampca.transform.position import Position
from tests.command_line import assert_one_line, run
from tests.errors import refusal
from tests.example_models import TOPIC, models_in, numbered


def checks_of(store: Path, **settings: str) -> dict[str, Check]:
    """The checks by name; they have no broker."""
    read = TransformSettings.read(topic=TOPIC, output_topic="projected", store=str(store), **settings)
    return dict(doctor.checks_of(None, read, TopicChecks(read, ExitStack())))


def test_the_model_and_what_transform_waits_for(tmp_path: Path) -> None:
    check = checks_of(tmp_path)["model"]
    assert "none yet, so transform will wait: no model has been published yet" in check()
    models_in(tmp_path).save(numbered(7))
    assert check() == "version 7 has 2 components of 5 dimensions, without past scores"
    waits = checks_of(tmp_path, emit="coordinates,p")["model"]()
    assert waits == (
        "none yet, so transform will wait: the newest model has no past scores yet, which p-values need; "
        "the next version will have them"
    )


def test_a_model_that_transform_cannot_use_is_a_mistake(tmp_path: Path) -> None:
    models_in(tmp_path).save(numbered(7))
    assert "there is no model version 6" in refusal(InputError, checks_of(tmp_path, model_version="6")["model"])
    assert "version 7 has no past scores" in refusal(
        InputError, checks_of(tmp_path, model_version="7", only_p_below="0.1")["model"]
    )
    assert f"there is no store at {tmp_path}/absent: start a worker first" in refusal(
        StoreError, checks_of(tmp_path / "absent")["model"]
    )
    assert not (tmp_path / "absent").exists()


def test_committed_offsets_say_what_the_outputs_are_and_of_which_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models_in(tmp_path).save(numbered(7))
    read = TransformSettings.read(topic=TOPIC, output_topic="projected", store=str(tmp_path))
    topic = TopicChecks(read, ExitStack())
    topic.bounds, topic.topic_id = {0: (0, 9), 1: (0, 5)}, "former"
    committed = {0: Position(7, LastRecord(6, 0)).as_committed("k=2 d=5", "former"), 1: Committed(5, "k=2 d=5")}
    group = SimpleNamespace(committed=lambda partitions: committed, close=lambda: None)
    monkeypatch.setattr(doctor, "create_client", lambda settings: group)
    checks = dict(TransformChecks(read, topic).checks())
    checks["model"]()
    line = checks["transform group"]()
    assert line == f"{read.group} has offsets of 2 of 2 partitions, 2 behind; its outputs are of k=2 d=5"
    topic.topic_id = "new"
    with pytest.raises(
        TopicReplacedError, match=r"deleted and created again .its id is new, but was former in .* partition 0\)"
    ):
        checks["transform group"]()


def test_mistakes_in_the_settings_of_either_role_are_a_one_line_error() -> None:
    required = ("--topic", "readings")
    assert_one_line(run("doctor", *required), "dimensions is required", code=2)
    assert_one_line(run("doctor", *required, "--output-topic", "readings"), "output_topic must be neither", code=2)
    both = ("--output-topic", "out", "--dimensions", 8)
    assert_one_line(run("doctor", *required, *both), "components is required", code=2)


class Newest:
    """A reader of records that were written as one type; the second is no vector."""

    def __init__(self, kind: str, step: int = 1000) -> None:
        rows = np.random.default_rng(0).normal(20, 1, (99, 5)).astype(kind)
        values = [rows[0].tobytes(), b"none", *(row.tobytes() for row in rows[1:])]
        self._records = [(0, Record(offset, value, step * offset)) for offset, value in enumerate(values)]

    def newest_records(self, bounds: dict[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        assert (bounds, count) == ({0: (0, 100)}, 100)
        return self._records


@pytest.mark.parametrize("role", ["worker", "transform"])
def test_raw_numbers_of_another_type_fail_and_right_ones_are_shown(tmp_path: Path, role: str) -> None:
    models_in(tmp_path).save(numbered(7))
    options = {"dimensions": "5", "components": "2"} if role == "worker" else {"output_topic": "projected"}
    kind = WorkerSettings if role == "worker" else TransformSettings
    read: Any = kind.read(topic=TOPIC, store=str(tmp_path), format="float64", **options)
    for wire in ("<f8", ">f8", "<i8"):
        topic: Any = TopicChecks(read, ExitStack())
        topic.bounds, topic._reader = {0: (0, 100), 1: (7, 7)}, Newest(wire)
        roles = (read, None) if role == "worker" else (None, read)
        checks = dict(doctor.checks_of(*roles, topic))
        if role == "transform":
            checks["model"]()
        if wire == "<f8":
            line = checks["newest record"]()
            assert line.startswith("partition 0, offset 99 is a vector of 5 numbers, ")
            assert re.search(r" old; the newest 99 have numbers from 1[67]\.\d+ to 2[23]\.\d+, median (19.9|20)", line)
        else:
            name = {">f8": ">f8", "<i8": "int64"}[wire]
            with pytest.raises(BadRecordError, match=f"newest 100 records are not what was sent: .* {name},.*=<f8"):
                checks["newest record"]()


@pytest.mark.parametrize("half_life", [None, "60"])
def test_timestamps_in_another_unit_fail_if_a_half_life_needs_them(tmp_path: Path, half_life: str | None) -> None:
    options = {"dimensions": "5", "components": "2", "half_life_seconds": half_life}
    read = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), format="float64", **options)
    for per_s, unit in ((1, "seconds"), (1000, ""), (10**6, "microseconds")):
        topic: Any = TopicChecks(read, ExitStack())
        topic.bounds, topic._reader = {0: (0, 100)}, Newest("<f8", int(time.time() * per_s) // 99)
        check = dict(doctor.checks_of(read, None, topic))["newest record"]
        if half_life and unit:
            with pytest.raises(BadRecordError, match=f"offset 99: half_life_seconds depends .* a time in {unit}$"):
                check()
        elif per_s > 1000:
            assert "in the future" in refusal(BadRecordError, check)
        else:
            assert "is a vector of 5 numbers" in check()
