"""The warning of names at which none of the first records has a number: in the log of both roles, once."""

import json
from typing import Any

import pytest
from structlog.typing import EventDict

from streampca.consumer_group import events
from streampca.consumer_group.name_check import NameCheck
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.record import Record
from streampca.sources.events import Records, Vectors, decode_records
from streampca.worker.log import WorkerLog
from tests.members import make_member

CODEC = Codec("json", Judge(2, 1e150, min_observed=1), "temp,dust")


def batch_of(count: int, **fields: float) -> Vectors:
    records = [Record(offset, json.dumps(fields).encode()) for offset in range(count)]
    batch = decode_records(CODEC, Records(0, records, count, count))
    assert isinstance(batch, Vectors)
    return batch


def find(steps: list[Any]) -> list[str]:
    """What is found in steps, which are batches and times."""
    names = NameCheck(CODEC.create_seen_names())
    found = []
    for step in steps:
        if isinstance(step, Vectors):
            names.add(step)
        elif names.is_checking:
            found.append(names.find_warning(step))
    return [text for text in found if text]


TEXT = "none of the first records has a number at dust: correct field if a name is misspelt"
WITHOUT = batch_of(600, temp=20.5)


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([0.0, WITHOUT, 1.0], 0),
        ([0.0, WITHOUT, 1.0, WITHOUT, 2.0, WITHOUT, 3.0], 1),
        ([5.0, WITHOUT, 604.0], 0),
        ([5.0, WITHOUT, 605.0, 606.0], 1),
        ([5.0, 605.0], 0),  # without a vector, nothing is said
        ([0.0, WITHOUT, batch_of(1, dust=1.0), WITHOUT, 1.0, 700.0], 0),
        ([0.0, WITHOUT, WITHOUT, 1.0, batch_of(1, dust=1.0), 700.0], 1),
    ],
)
def test_names_are_reported_once_when_the_first_records_have_come(steps: list[Any], count: int) -> None:
    assert find(steps) == [TEXT] * count


def test_the_log_warns(logs: list[EventDict]) -> None:
    make_member(WorkerLog()).notify(events.FieldNamesWithoutNumbers(TEXT))
    assert [(line["log_level"], line["event"], line["message"]) for line in logs] == [
        ("warning", "names without numbers", TEXT)
    ]
