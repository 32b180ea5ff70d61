"""`streampca doctor` with an output topic: what it finds without a broker, and which roles it checks."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca.cli import doctor
from streampca.cli.doctor import FAILED, PASSED, SKIPPED, Line, lines_of
from streampca.cli.doctor_topic import TopicChecks
from streampca.cli.member_start import MemberStart
from streampca.cli.transform_start import TransformStart
from streampca.cli.worker_start import WorkerStart
from streampca.consumer_group.step import Step
from streampca.formats.record import LastRecord, Record
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources.base import Committed
from streampca.stores.directory import DirectoryStore
from streampca.transform.position import Position
from tests.command_line import assert_one_line, run
from tests.example_models import TOPIC, models_in, numbered
from tests.in_memory import MemorySource, MemoryTopic


def start_of(store: Path, **settings: str) -> TransformStart:
    read = TransformSettings.read(topic=TOPIC, output_topic="projected", store=str(store), **settings)
    return TransformStart(read, DirectoryStore(store))


def model_line(store: Path, **settings: str) -> Line:
    """The line about the model; there is no broker."""
    (line,) = lines_of(start_of(store, **settings).steps()[:1])
    return line


def test_the_model_and_what_transform_waits_for(tmp_path: Path) -> None:
    waits = model_line(tmp_path)
    assert waits.mark == SKIPPED
    assert "a start waits: no model has been published yet" in waits.text
    models_in(tmp_path).save(numbered(7))
    passed = model_line(tmp_path)
    assert passed == Line(PASSED, "model", "version 7 has 2 components of 5 dimensions, without past scores")
    text = "the newest model has no past scores yet, which p-values need; the next version will have them"
    assert model_line(tmp_path, emit="coordinates,p") == Line(SKIPPED, "model", f"a start waits: {text}")


def test_a_model_that_transform_cannot_use_is_a_mistake(tmp_path: Path) -> None:
    models_in(tmp_path).save(numbered(7))
    for settings, text in (
        ({"model_version": "6"}, "there is no model version 6"),
        ({"model_version": "7", "only_p_below": "0.1"}, "version 7 has no past scores"),
    ):
        line = model_line(tmp_path, **settings)
        assert line.mark == FAILED
        assert text in line.text
    absent = model_line(tmp_path / "absent")
    assert absent.mark == FAILED
    assert f"there is no store at {tmp_path}/absent: start a worker first" in absent.text
    assert not (tmp_path / "absent").exists()


def test_committed_offsets_say_where_transform_resumes_and_of_which_topic(tmp_path: Path) -> None:
    models_in(tmp_path).save(numbered(7))
    start, topic = start_of(tmp_path), MemoryTopic(2, TOPIC)
    source = MemorySource(topic)
    committed = {0: Position(7, LastRecord(6, 0)).as_committed("k=2 d=5", topic.id), 1: Committed(5, "k=2 d=5")}
    source.committed = lambda partitions: committed  # type: ignore[method-assign]
    start.source, start.topic_id = source, topic.id
    steps = [step._replace(after=[]) for step in start.steps() if step.name in ("model", "transform group")]
    checks = TopicChecks(start)
    checks.bounds = {0: (0, 9), 1: (0, 5)}
    *_, group, lag = lines_of([*steps, checks.lag_of(start)._replace(after=[])])
    assert group == Line(PASSED, "transform group", f"{start.settings.group} has offsets of 2 of 2 partitions")
    assert lag == Line(PASSED, "lag", f"{start.settings.group} is 2 records behind")
    start.topic_id = "new"
    *_, group = lines_of(steps)
    assert group.mark == FAILED
    assert re.search(rf"deleted and created again .its id is new, but was {topic.id} in .* partition 0\)", group.text)


def test_mistakes_in_the_settings_of_either_role_are_a_one_line_error() -> None:
    required = ("--topic", "readings")
    assert_one_line(run("doctor", *required), "dimensions is required", code=2)
    assert_one_line(run("doctor", *required, "--output-topic", "readings"), "output_topic must be neither", code=2)
    both = ("--output-topic", "out", "--dimensions", 8)
    assert_one_line(run("doctor", *required, *both), "components is required", code=2)


def test_a_folder_without_checkpoints_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / TOPIC / "0").mkdir(parents=True)
    read = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), dimensions="5", components="2", start="latest")
    start = WorkerStart(read, DirectoryStore(tmp_path))
    start.committed, start.topic_id = {}, "id"
    steps = [step._replace(after=[]) for step in start.steps() if step.name in ("format", "checkpoints")]
    *_, line = lines_of(steps)
    assert line == Line(PASSED, "checkpoints", "none yet; partitions begin at latest")


class Newest:
    """A reader of records that were written as one type; the second is no vector."""

    def __init__(self, kind: str, step: int = 1000) -> None:
        rows = np.random.default_rng(0).normal(20, 1, (99, 5)).astype(kind)
        values = [rows[0].tobytes(), b"none", *(row.tobytes() for row in rows[1:])]
        self._records = [(0, Record(offset, value, step * offset)) for offset, value in enumerate(values)]

    def newest_records(self, bounds: dict[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        assert (bounds, count) == ({0: (0, 100)}, 100)
        return self._records


def newest_of(start: MemberStart, reader: Any) -> Line:
    """The line about the newest record of two partitions, of which one is empty."""
    checks = TopicChecks(start)
    checks.bounds, checks.reader = {0: (0, 100), 1: (7, 7)}, reader
    names = ("model", "format", "newest record")
    steps = [step._replace(after=[]) for step in [*start.steps(), *checks.steps()] if step.name in names]
    *_, line = lines_of(steps)
    return line


@pytest.mark.parametrize("role", ["worker", "transform"])
def test_raw_numbers_of_another_type_fail_and_right_ones_are_shown(tmp_path: Path, role: str) -> None:
    models_in(tmp_path).save(numbered(7))
    store = DirectoryStore(tmp_path)
    for wire in ("<f8", ">f8", "<i8"):
        start: MemberStart = start_of(tmp_path, format="float64")
        if role == "worker":
            options = {"dimensions": "5", "components": "2", "format": "float64"}
            start = WorkerStart(WorkerSettings.read(topic=TOPIC, store=str(tmp_path), **options), store)
        line = newest_of(start, Newest(wire))
        if wire == "<f8":
            assert line.text.startswith("partition 0, offset 99 is a vector of 5 numbers, ")
            assert re.search(
                r" old; the newest 99 have numbers from 1[67]\.\d+ to 2[23]\.\d+, median (19.9|20)", line.text
            )
        else:
            name = {">f8": ">f8", "<i8": "int64"}[wire]
            assert re.search(f"newest 100 records are not what was sent: .* {name},.*=<f8", line.text)
        assert line.mark == (PASSED if wire == "<f8" else FAILED)


@pytest.mark.parametrize("half_life", [None, "60"])
def test_timestamps_in_another_unit_fail_if_a_half_life_needs_them(tmp_path: Path, half_life: str | None) -> None:
    options = {"dimensions": "5", "components": "2", "half_life_seconds": half_life}
    read = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), format="float64", **options)
    for per_s, unit in ((1, "seconds"), (1000, ""), (10**6, "microseconds")):
        start = WorkerStart(read, DirectoryStore(tmp_path))
        line = newest_of(start, Newest("<f8", int(time.time() * per_s) // 99))
        if half_life and unit:
            assert re.search(f"offset 99: half_life_seconds depends .* a time in {unit}$", line.text)
        elif per_s > 1000:
            assert "in the future" in line.text
        else:
            assert "is a vector of 5 numbers" in line.text
        assert line.mark == (FAILED if per_s > 1000 or (half_life and unit) else PASSED)


def test_a_step_that_hangs_costs_its_limit_and_the_next_ones_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TIMEOUT_S", 0.05)
    ended = threading.Event()

    def hang() -> str:
        ended.wait(60)
        return "ended"

    def crash() -> str:
        raise ZeroDivisionError

    steps = [
        Step("store", hang),
        Step("checkpoints", lambda: "not done", after=["store"]),
        Step("crash", crash),
        Step("registered", lambda: "written", check=lambda: "only looked at"),
        Step("late", lambda: "done", after=["registered"]),
    ]
    lines = list(lines_of(steps))
    ended.set()
    assert lines == [
        Line(FAILED, "store", "no answer within 0 s"),
        Line(SKIPPED, "checkpoints", "skipped, because it needs: store"),
        Line(FAILED, "crash", "unexpected ZeroDivisionError: ZeroDivisionError"),
        Line(PASSED, "registered", "only looked at"),
        Line(PASSED, "late", "done"),
    ]


@pytest.mark.parametrize("role", [WorkerStart, TransformStart])
def test_a_step_uses_only_what_earlier_steps_have_found(role: Any, tmp_path: Path) -> None:
    settings: Any = {"topic": TOPIC, "store": str(tmp_path)}
    if role is WorkerStart:
        read: Any = WorkerSettings.read(**settings, dimensions="5", components="2")
    else:
        read = TransformSettings.read(**settings, output_topic="projected")
    known: set[str] = set()
    for step in doctor.steps_of([role(read, DirectoryStore(tmp_path))]):
        assert known.issuperset(step.after), step
        known.add(step.name)
