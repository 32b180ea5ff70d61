"""Long bodies in JSON are read row by row, and answered as ever: in several threads, and in little memory."""

import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from streampca.api import parsing
from streampca.api.app import create_app
from streampca.api.by_row import fields_by_row
from streampca.api.request import Body
from streampca.settings import ServeSettings
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.api.client import Client
from tests.api.known import TOPIC, known
from tests.api.test_binary import NPY, npy
from tests.api.test_faults import error_of

CHANCE = np.random.default_rng(0)
NAMES = ("vectors",)
D_LONG = 300
TABLE = CHANCE.normal(size=(40, D_LONG))


def as_json(rows: np.ndarray, **others: Any) -> bytes:
    return orjson.dumps({"vectors": rows} | others, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.fixture
def client(store: MemoryStore) -> Iterator[Client]:
    Models(store, TOPIC).save(known(1, d=D_LONG))
    with Client(create_app(store, ServeSettings(topic=TOPIC))) as client:
        yield client


@pytest.fixture
def all_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with the lengths of bodies that are read all at once."""
    read: list[int] = []

    def note(body: Body) -> dict[str, Any]:
        read.append(len(body.data))
        return plain(body)

    plain = parsing._object
    monkeypatch.setattr(parsing, "_object", note)
    return read


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("others", [{}, {"basis": "whitened", "version": 1}])
def test_long_bodies_are_answered_as_the_same_rows_in_binary_are(
    client: Client, all_at_once: list[int], others: dict[str, Any]
) -> None:
    query = "&".join(f"{name}={value}" for name, value in others.items())
    for rows in (TABLE, TABLE.round(3), TABLE.astype(np.float32).astype(np.float64)):
        answer = client.post("/v1/project", content=as_json(rows, **others))
        binary = client.post(f"/v1/project?{query}", content=npy(rows), headers={"Content-Type": NPY})
        assert answer.status_code == binary.status_code == 200
        assert answer.content == binary.content
    assert all_at_once == []


@pytest.mark.usefixtures("reader")
def test_long_bodies_are_refused_in_the_same_words(client: Client, all_at_once: list[int]) -> None:
    def refused(body: bytes, status: int) -> str:
        return error_of(client.post("/v1/project", content=body), status)

    good = as_json(TABLE)
    narrow = as_json(CHANCE.normal(size=(30, 299)))
    assert refused(narrow, 422) == "vectors[0] has 299 numbers where this model has 300"
    assert refused(as_json(np.zeros((10_001, D_LONG), np.int8)), 413).startswith(
        "vectors has 10001 rows, at most 10000"
    )
    assert refused(as_json(TABLE, basis=1), 422) == "basis must be one of: principal, whitened"
    assert refused(as_json(TABLE, more=1), 422) == "unknown field 'more'; there are: vectors, basis, version"
    assert refused(as_json(np.full_like(TABLE, 1e300)), 422).startswith("vectors[0] holds values too large")
    assert all_at_once == []
    assert refused(good.replace(b"]]", b",1]]"), 422) == "vectors[39] has 301 numbers where this model has 300"
    assert refused(good[:-3] + b",true]]}", 422) == "vectors[39] has 301 numbers where this model has 300"
    assert refused(good.replace(b"],[", b",NaN],[", 1), 400).endswith("(NaN and Infinity are not JSON)")
    assert len(all_at_once) == 3


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    "text",
    [
        as_json(CHANCE.normal(size=(2, D_LONG))),
        as_json(CHANCE.normal(size=(20_000, 2))),
        as_json(CHANCE.normal(size=(1, 100_000))),
    ],
    ids=["short", "of short rows", "of a row that is in no cache"],
)
def test_where_it_does_not_pay_all_is_read_at_once(text: bytes) -> None:
    assert fields_by_row(text, NAMES) is None
    assert fields_by_row(as_json(TABLE), NAMES) is not None


@pytest.mark.usefixtures("reader")
def test_threads_do_not_disturb_each_other() -> None:
    tables = [CHANCE.normal(size=(40, D_LONG)) for _ in range(4)]
    wrong: list[int] = []

    def read(i: int) -> None:
        text = as_json(tables[i])
        for _ in range(20):
            fields = fields_by_row(text, NAMES)
            if fields is None or fields["vectors"].tobytes() != tables[i].tobytes():
                wrong.append(i)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(tables))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert wrong == []


@pytest.mark.usefixtures("reader")
def test_no_object_is_made_of_every_number_and_kept() -> None:
    text = as_json(CHANCE.normal(size=(400, D_LONG)))
    fields_by_row(text, NAMES)  # imports what it needs
    tracemalloc.start()
    fields = fields_by_row(text, NAMES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fields is not None
    assert peak < 2.5 * fields["vectors"].nbytes  # an object of each takes four times as much, or more
