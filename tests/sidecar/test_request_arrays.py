"""Rows of numbers from JSON: the exact numbers, precise errors, in any thread."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.sidecar.parsing import parse
from streampca.sidecar.request import RawRequest, RequestError
from streampca.sidecar.request_arrays import Limits
from streampca.sidecar.v1.schemas import ProjectQuery, ProjectRequest
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.sidecar.http_client import Client, error_of
from tests.sidecar.known import TOPIC, known

CHANCE = np.random.default_rng(0)
D_LONG = 300
TABLE = CHANCE.normal(size=(40, D_LONG))


def as_json(rows: np.ndarray, **others: Any) -> bytes:
    return orjson.dumps({"vectors": rows} | others, option=orjson.OPT_SERIALIZE_NUMPY)


LIMITS = Limits(10_000, 10**9)


def parsed(text: bytes) -> np.ndarray:
    return parse(RawRequest(text), LIMITS, ProjectRequest, ProjectQuery).vectors


@pytest.fixture
def client(store: MemoryStore) -> Iterator[Client]:
    Models(store, TOPIC).save(known(1, d=D_LONG))
    with Client(create_app(store, ServeSettings(topic=TOPIC))) as client:
        yield client


@settings(deadline=None)
@given(
    rows=arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(0, 5)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_rows_keep_their_bits(rows: np.ndarray) -> None:
    found = parsed(as_json(rows))
    assert (found.shape, found.dtype, found.tobytes()) == (rows.shape, rows.dtype, rows.tobytes())


def test_errors_in_long_bodies_are_as_precise_as_in_short_ones(client: Client) -> None:
    def refused(body: bytes, status: int) -> str:
        return error_of(client.post("/v1/project", content=body), status)

    good = as_json(TABLE)
    narrow = as_json(CHANCE.normal(size=(30, 299)))
    assert refused(narrow, 422) == "vectors[0] has 299 numbers where this model has 300"
    assert refused(as_json(np.zeros((10_001, 10), np.int8)), 413).startswith("vectors has 10001 rows, at most 10000")
    assert refused(as_json(TABLE, basis=1), 422) == "basis: Input should be 'principal' or 'whitened'"
    assert refused(as_json(TABLE, more=1), 422) == "unknown field 'more'; known: version, basis, fields, vectors"
    assert refused(as_json(np.full_like(TABLE, 1e300)), 422).startswith("vectors[0] holds values too large")
    ragged = "vectors[39] has 301 numbers, not 300 as the rows before it: all need the model's dimensions"
    assert refused(good.replace(b"]]", b",1]]"), 422) == ragged
    assert refused(good[: good.rindex(b",")] + b",true]]}", 422) == "vectors[39][299] must be a number, not a boolean"
    assert refused(good.replace(b"],[", b",NaN],[", 1), 400).endswith("(NaN and Infinity are not JSON)")


@pytest.mark.slow
def test_a_million_unknown_fields_cost_one_error() -> None:
    text = orjson.dumps({str(i): 1 for i in range(1_000_000)})
    with pytest.raises(RequestError, match="unknown field '0'"):
        parsed(text)


def test_threads_do_not_disturb_each_other() -> None:
    tables = [CHANCE.normal(size=(40, D_LONG)) for _ in range(4)]
    wrong: list[int] = []

    def read(i: int) -> None:
        text = as_json(tables[i])
        for _ in range(20):
            if parsed(text).tobytes() != tables[i].tobytes():
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(tables))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
