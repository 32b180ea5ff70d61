"""`streampca doctor` with an output topic: what it finds without a broker, and which roles it checks."""

import io
import json
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca.cli import doctor
from streampca.cli.doctor import FAILED, PASSED, SKIPPED, Line, check_steps
from streampca.cli.doctor_topic import TopicChecks
from streampca.cli.member_start import MemberStart
from streampca.cli.transform_start import TransformStart
from streampca.cli.worker_start import WorkerStart
from streampca.consumer_group.step import Step
from streampca.errors import SettingsError
from streampca.formats.record import LastRecord, Record
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.sources.base import Committed
from streampca.stores.directory import DirectoryStore
from streampca.transform.position import Position
from tests.command_line import assert_one_line, run
from tests.example_models import TOPIC, models_in, numbered
from tests.in_memory import MemorySource, MemoryTopic


def create_transform_start(store: Path, **settings: str) -> TransformStart:
    read = TransformSettings.read(topic=TOPIC, output_topic="projected", store=str(store), **settings)
    return TransformStart(read, DirectoryStore(store))


def select_steps(steps: Iterable[Step], *names: str) -> list[Step]:
    """Return the steps with these names, each as if the steps that it uses had passed."""
    return [step._replace(after=[]) for step in steps if step.name in names]


def check_model(store: Path, **settings: str) -> Line:
    """Return the line about the model, which needs no broker."""
    steps = create_transform_start(store, **settings).steps()
    [line] = check_steps(select_steps(steps, "model"))
    return line


def test_doctor_shows_the_model_or_what_transform_waits_for(tmp_path: Path) -> None:
    waits = check_model(tmp_path)
    assert waits.mark == SKIPPED
    assert "a start waits: no model has been published yet" in waits.text
    models_in(tmp_path).save(numbered(7))
    passed = check_model(tmp_path)
    assert passed == Line(PASSED, "model", "version 7 has 2 components of 5 dimensions, without past scores")
    text = "the newest model has no past scores yet, which p-values need; the next version will have them"
    assert check_model(tmp_path, emit="coordinates,p") == Line(SKIPPED, "model", f"a start waits: {text}")


def test_a_model_that_transform_cannot_use_is_a_mistake(tmp_path: Path) -> None:
    models_in(tmp_path).save(numbered(7))
    for settings, text in (
        ({"model_version": "6"}, "there is no model version 6"),
        ({"model_version": "7", "only_p_below": "0.1"}, "version 7 has no past scores"),
    ):
        line = check_model(tmp_path, **settings)
        assert line.mark == FAILED
        assert text in line.text
    absent = check_model(tmp_path / "absent")
    assert absent.mark == FAILED
    assert f"there is no store at {tmp_path}/absent: start a worker first" in absent.text
    assert not (tmp_path / "absent").exists()


def test_committed_offsets_say_where_transform_resumes_and_of_which_topic(tmp_path: Path) -> None:
    models_in(tmp_path).save(numbered(7))
    start = create_transform_start(tmp_path)
    topic = MemoryTopic(2, TOPIC)
    source = MemorySource(topic)
    committed = {0: Position(7, LastRecord(6, 0)).as_committed("k=2 d=5", topic.id), 1: Committed(5, "k=2 d=5")}
    source.committed = lambda: committed  # type: ignore[method-assign]
    start.source = source
    start.topic_id = topic.id
    start.output_partitions = 2
    steps = select_steps(start.steps(), "model", "transform group")
    checks = TopicChecks(start)
    checks.bounds = {0: (0, 9), 1: (0, 5)}
    *_, group, lag = check_steps([*steps, *select_steps(checks.steps(), "lag")])
    assert group == Line(PASSED, "transform group", f"{start.settings.group} has offsets of 2 of 2 partitions")
    assert lag == Line(PASSED, "lag", f"{start.settings.group} is 2 records behind")
    former = topic.id
    topic.create(2)
    *_, group = check_steps(steps)
    assert group.mark == FAILED
    ids = f"its id is {topic.id}, but was {former} in the committed offset of partition 0"
    assert f"not the topic that was read before ({ids})" in group.text


def test_mistakes_in_the_settings_of_worker_and_transform_are_a_one_line_error() -> None:
    required = ("--topic", "readings")
    assert_one_line(run("doctor", *required), "dimensions is required", code=2)
    assert_one_line(run("doctor", *required, "--output-topic", "readings"), "output_topic must be neither", code=2)
    both = ("--output-topic", "out", "--dimensions", 8)
    assert_one_line(run("doctor", *required, *both), "components is required", code=2)


def test_a_folder_without_checkpoints_is_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / TOPIC / "0").mkdir(parents=True)
    read = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), dimensions="5", components="2", start="latest")
    start = WorkerStart(read, DirectoryStore(tmp_path))
    start.committed = {}
    start.topic_id = "id"
    *_, line = check_steps(select_steps(start.steps(), "format", "checkpoints"))
    assert line == Line(PASSED, "checkpoints", "none yet; partitions begin at latest")


class ReaderOfNumbers:
    """Reads 100 records that were written as numbers of one type; the second is not a vector."""

    def __init__(self, dtype: str, interval: int = 1000) -> None:
        """`interval` lies between the timestamps of two records."""
        rows = np.random.default_rng(0).normal(20, 1, (99, 5)).astype(dtype)
        values = [row.tobytes() for row in rows]
        values.insert(1, b"none")
        self._records = [(0, Record(offset, value, interval * offset)) for offset, value in enumerate(values)]

    def read_newest(self, bounds: dict[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        assert (bounds, count) == ({0: (0, 100)}, 100)
        return self._records


def check_newest(start: MemberStart, reader: Any) -> Line:
    """Return the line about the newest record of two partitions, of which one is empty."""
    checks = TopicChecks(start)
    checks.bounds = {0: (0, 100), 1: (7, 7)}
    checks.reader = reader
    *_, line = check_steps(select_steps([*start.steps(), *checks.steps()], "model", "format", "newest record"))
    return line


@pytest.mark.parametrize("role", ["worker", "transform"])
def test_raw_numbers_of_another_type_fail_and_the_range_of_right_ones_is_shown(tmp_path: Path, role: str) -> None:
    models_in(tmp_path).save(numbered(7))
    store = DirectoryStore(tmp_path)
    for wire in ("<f8", ">f8", "<i8"):
        start: MemberStart = create_transform_start(tmp_path, format="float64")
        if role == "worker":
            options = {"dimensions": "5", "components": "2", "format": "float64"}
            start = WorkerStart(WorkerSettings.read(topic=TOPIC, store=str(tmp_path), **options), store)
        line = check_newest(start, ReaderOfNumbers(wire))
        if wire == "<f8":
            assert line.text.startswith("partition 0, offset 99 is a vector of 5 numbers, ")
            assert re.search(
                r" old; the newest 99 have numbers from 1[67]\.\d+ to 2[23]\.\d+, median (19.9|20)", line.text
            )
        else:
            name = {">f8": ">f8", "<i8": "int64"}[wire]
            assert re.search(f"newest 100 records are not what was sent: .* {name},.*=<f8", line.text)
        assert line.mark == (PASSED if wire == "<f8" else FAILED)


class ReaderOfRecords:
    """Reads 100 records with the same value."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def read_newest(self, bounds: dict[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        return [(0, Record(offset, self._value, 1000 * offset)) for offset in range(100)]


@pytest.mark.parametrize(("number", "is_float32"), [(0.5, True), (0.1, False), (1e50, False)])
def test_float32_is_suggested_if_float32_holds_all_numbers(tmp_path: Path, number: float, is_float32: bool) -> None:
    options = {"dimensions": "5", "components": "2", "format": "npy", "dtype": "float64"}
    settings = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), **options)
    file = io.BytesIO()
    np.save(file, np.full(5, number))
    line = check_newest(WorkerStart(settings, DirectoryStore(tmp_path)), ReaderOfRecords(file.getvalue()))
    assert line.mark == PASSED, line.text
    assert ("a worker with dtype=float32 learns them in half the time" in line.text) == is_float32


def test_names_that_no_record_has_are_a_warning(tmp_path: Path) -> None:
    for field, warns in (("temp,hum,dust", True), ("temp,hum", False)):
        options = {"dimensions": str(field.count(",") + 1), "components": "1", "missing": "impute", "field": field}
        settings = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), **options)
        reader = ReaderOfRecords(b'{"temp": 20.5, "hum": 48}')
        line = check_newest(WorkerStart(settings, DirectoryStore(tmp_path)), reader)
        assert line.mark == PASSED
        assert ("; warning: none of the newest records has a number at dust: correct field" in line.text) == warns


class ReaderOfIds:
    """Reads 100 records with an id that grows, beside a temperature; every third record has no temperature."""

    def read_newest(self, bounds: dict[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        values = [{"serial": 1000 * offset, "temp": 20 + offset % 5, "hum": 48} for offset in range(100)]
        for value in values[::3]:
            del value["temp"]
        return [(0, Record(offset, json.dumps(value).encode(), 1000 * offset)) for offset, value in enumerate(values)]


@pytest.mark.parametrize(
    ("field", "standardize", "warns"),
    [("serial,temp,hum", "false", True), ("serial,temp,hum", "true", False), ("serial", "false", False)],
)
def test_a_dimension_with_nearly_all_of_the_variance_is_a_warning(
    tmp_path: Path, field: str, standardize: str, warns: bool
) -> None:
    options = {"dimensions": str(field.count(",") + 1), "components": "1", "missing": "impute", "field": field}
    settings = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), standardize=standardize, **options)
    line = check_newest(WorkerStart(settings, DirectoryStore(tmp_path)), ReaderOfIds())
    assert line.mark == PASSED, line.text
    assert ("; warning: dimension serial has 100.00% of the total variance" in line.text) == warns


@pytest.mark.parametrize("half_life", [None, "60"])
def test_timestamps_in_another_unit_fail_if_a_half_life_needs_them(tmp_path: Path, half_life: str | None) -> None:
    options = {"dimensions": "5", "components": "2", "half_life_seconds": half_life}
    read = WorkerSettings.read(topic=TOPIC, store=str(tmp_path), format="float64", **options)
    for per_s, unit in ((1, "seconds"), (1000, ""), (10**6, "microseconds")):
        start = WorkerStart(read, DirectoryStore(tmp_path))
        line = check_newest(start, ReaderOfNumbers("<f8", int(time.time() * per_s) // 99))
        if half_life and unit:
            assert re.search(f"offset 99: half_life_seconds depends .* a time in {unit}$", line.text)
        elif per_s > 1000:
            assert "in the future" in line.text
        else:
            assert "is a vector of 5 numbers" in line.text
        assert line.mark == (FAILED if per_s > 1000 or (half_life and unit) else PASSED)


def test_a_step_that_hangs_fails_after_the_timeout_and_the_next_steps_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
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
    lines = list(check_steps(steps))
    ended.set()
    assert lines == [
        Line(FAILED, "store", "no answer within 0 s"),
        Line(SKIPPED, "checkpoints", "skipped, because it needs: store"),
        Line(FAILED, "crash", "unexpected ZeroDivisionError: ZeroDivisionError"),
        Line(PASSED, "registered", "only looked at"),
        Line(PASSED, "late", "done"),
    ]


def test_a_step_is_skipped_if_the_step_of_its_own_start_has_not_passed() -> None:
    """Both starts have a step `format`."""

    def fail() -> str:
        raise SettingsError("wrong")

    steps = [
        Step("format", lambda: "of the worker"),
        Step("format", fail),
        Step("output schema", lambda: "not done", after=["format"]),
    ]
    assert [line.mark for line in check_steps(steps)] == [PASSED, FAILED, SKIPPED]


@pytest.mark.parametrize("role", [WorkerStart, TransformStart])
def test_a_step_uses_only_what_earlier_steps_have_found(role: Any, tmp_path: Path) -> None:
    settings: Any = {"topic": TOPIC, "store": str(tmp_path)}
    if role is WorkerStart:
        read: Any = WorkerSettings.read(**settings, dimensions="5", components="2")
    else:
        read = TransformSettings.read(**settings, output_topic="projected")
    earlier: set[str] = set()
    for step in doctor.list_steps([role(read, DirectoryStore(tmp_path))]):
        assert earlier.issuperset(step.after), step
        earlier.add(step.name)
