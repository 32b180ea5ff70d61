"""Rows as `.npy` files and as raw numbers get the same answers, and precise errors, as in JSON."""

import base64
import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from streampca.sidecar.parsing import Limits, parse
from streampca.sidecar.request import RawRequest
from streampca.sidecar.schemas import ProjectQuery, ProjectRequest
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC, D, K, numbered
from tests.formats.structured import npy
from tests.sidecar.http_client import Client, create_client, read_error

NPY, RAW, NPZ = "application/x-npy", "application/octet-stream;dtype=float32", "application/x-npz"
CHANCE = np.random.default_rng(0)
VECTORS = (CHANCE.normal(size=(7, D)) * 3).astype(np.float32)
COORDINATES = CHANCE.normal(size=(4, K)).astype(np.float32)


def send(client: Client, path: str, body: bytes, kind: str, **headers: str) -> httpx.Response:
    return client.post(path, content=body, headers={"Content-Type": kind} | headers)


def bodies_of(rows: np.ndarray) -> list[tuple[bytes, str]]:
    return [
        (npy(rows), NPY),
        (npy(rows.astype(np.float64)), NPY),
        (npy(rows.astype(">f4")), "Application/X-NPY; version=1"),
        (npy(np.asfortranarray(rows)), NPY),
        (rows.astype("<f4").tobytes(), RAW),
        (rows.astype("<f8").tobytes(), 'Application/Octet-Stream; dtype="float64"'),
    ]


def assert_alike(answer: httpx.Response, expected: httpx.Response) -> None:
    """Equal within the rounding of float32, in which vectors of float32 are projected."""
    content = answer.json()
    assert content.keys() == expected.json().keys()
    for name, values in expected.json().items():
        np.testing.assert_allclose(content[name], values, rtol=1e-5, atol=1e-5)


def test_rows_may_be_texts_as_in_records(client: Client) -> None:
    expected = client.post("/v1/project", json={"vectors": VECTORS.tolist()})
    wide = VECTORS.astype("<f8")
    for texts in (
        [base64.b64encode(row.tobytes()).decode() for row in VECTORS],
        [base64.b64encode(row.tobytes()).decode() for row in wide],
        [json.dumps(row.tolist()) for row in wide],
    ):
        assert_alike(client.post("/v1/project", json={"vectors": texts}), expected)


@pytest.mark.parametrize(
    ("path", "field", "rows"),
    [
        ("/v1/project?", "vectors", VECTORS),
        ("/v1/reconstruct?of=vectors", "vectors", VECTORS),
        ("/v1/reconstruct?of=coordinates", "coordinates", COORDINATES),
    ],
)
def test_binary_rows_have_the_answers_of_json(client: Client, path: str, field: str, rows: np.ndarray) -> None:
    options: list[dict[str, Any]] = [{}, {"version": 10}, {"basis": "whitened"}, {"version": 10, "basis": "principal"}]
    for fields in options:
        expected = client.post(path.partition("?")[0], json={field: rows.tolist(), **fields})
        assert expected.json()["version"] == fields.get("version", 20)
        query = "".join(f"&{name}={value}" for name, value in fields.items())
        answers = [send(client, path + query, body, kind) for body, kind in bodies_of(rows)]
        for answer in answers:
            assert_alike(answer, expected)
        precisions = 1 if field == "coordinates" else 2  # vectors of float32 are projected in it
        assert len({answer.content for answer in answers}) == precisions


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i8", "f2", "<f8", ">f8"])
def test_accepts_real_numbers_of_any_type_and_one_row_without_a_second_axis(client: Client, dtype: str) -> None:
    rows = np.arange(2 * D).reshape(2, D).astype(dtype)
    for of in (rows, rows[0]):
        expected = client.post("/v1/project", json={"vectors": of.reshape(-1, D).astype(float).tolist()}).json()
        assert send(client, "/v1/project", npy(of), NPY).json() == expected


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/project", ["coordinates", "residual"]),
        ("/v1/reconstruct?of=vectors", ["squared_error", "vectors"]),
        (
            "/v1/score?contributions=2",
            ["score", "spe", "spe_contributions", "spe_dimensions", "t2", "t2_contributions", "t2_dimensions"],
        ),
    ],
)
def test_npz_answers_have_the_fields_of_json_answers(client: Client, path: str, names: list[str]) -> None:
    expected = send(client, path, VECTORS.tobytes(), RAW).json()
    answer = send(client, path, VECTORS.tobytes(), RAW, Accept=f"{NPZ}, application/json;q=0.5")
    assert answer.headers["content-type"] == NPZ
    assert answer.headers["x-model-version"] == "20"
    with np.load(io.BytesIO(answer.content), allow_pickle=False) as fields:
        assert sorted(fields) == [*names, "version"]
        assert fields["version"] == 20
        for name in names:
            assert fields[name].dtype == (np.int64 if "dimensions" in name else np.float64)
            np.testing.assert_array_equal(fields[name], expected[name])


def test_the_types_of_request_and_answer_are_independent(client: Client) -> None:
    question = {"coordinates": COORDINATES.tolist()}
    answer = client.post("/v1/reconstruct", json=question, headers={"Accept": NPZ})
    with np.load(io.BytesIO(answer.content)) as fields:
        expected = client.post("/v1/reconstruct", json=question).json()
        np.testing.assert_array_equal(fields["vectors"], expected["vectors"])
    for accept in ("*/*", "application/json", f"application/json, {NPZ}", NPY):
        answer = send(client, "/v1/project", VECTORS.tobytes(), RAW, Accept=accept)
        assert answer.headers["content-type"] == "application/json"


# --- what is wrong --------------------------------------------------------------------------------------------------


NOT_FINITE = VECTORS.copy()
NOT_FINITE[2, 3] = np.nan
HUGE = VECTORS.astype(np.float64)
HUGE[1] = 1e300


WRONG_BODIES: list[tuple[bytes, str, int, str]] = [
    (npy(VECTORS[:, :4]), NPY, 422, "vectors[0] has 4 numbers where this model has 5"),
    (npy(VECTORS[0, :4]), NPY, 422, "vectors[0] has 4 numbers where this model has 5"),
    (npy(VECTORS[None]), NPY, 422, "vectors must be an array of 1 or 2 axes, not of 3"),
    (npy(np.float64(1)), NPY, 422, "vectors must be an array of 1 or 2 axes, not of 0"),
    (npy(NOT_FINITE), NPY, 422, "vectors[2][3] must be a finite number, not null or NaN"),
    (npy(-np.inf * np.ones(D)), NPY, 422, "vectors[0][0] must be a finite number, not -inf"),
    (npy(HUGE), NPY, 422, "vectors[1] holds values too large: the result exceeds the range of float64"),
    (npy(np.ones((51, D))), NPY, 413, "vectors has 51 rows, at most 50 are allowed: send fewer"),
    (npy(VECTORS)[:-1], NPY, 400, "its data are not as long as its header says"),
    (npy(VECTORS) + b"\0", NPY, 400, "its data are not as long as its header says"),
    (npy(VECTORS.astype(complex)), NPY, 400, "an .npy array of <c16, not of real numbers"),
    (npy(VECTORS > 0), NPY, 400, "an .npy array of |b1, not of real numbers"),
    (npy(np.array([None] * D)), NPY, 400, "an .npy array of |O, not of real numbers"),
    (b"", NPY, 400, "its header cannot be read"),
    (b'{"vectors": []}', NPY, 400, "its header cannot be read"),
    (b"[1]", RAW, 422, "vectors: 3 bytes are not a whole number of float32 numbers"),
    (b"\0" * 4 * (D + 1), RAW, 422, f"vectors: {D + 1} numbers are not a whole number of rows of {D}"),
    (NOT_FINITE.tobytes(), RAW, 422, "vectors[2][3] must be a finite number, not null or NaN"),
    (b"\0" * 4 * D * 51, RAW, 413, "vectors has 51 rows, at most 50 are allowed: send fewer"),
    (b"\0" * 20_001, RAW, 413, "the body exceeds 20000 bytes: send fewer rows at once"),
    *((b"\0" * 8 * D, f"application/octet-stream{more}", 415,
       f"does not say the type of numbers: send Content-Type: {RAW}")
      for more in ("", ";dtype=int8")),
]  # fmt: skip
WRONG_QUERIES: list[tuple[str, int, str]] = [
    ("project?version=²", 422, "version: "),
    ("project?version=15", 404, "there is no model version 15"),
    ("project?basis=other", 422, "basis: Input should be 'principal' or 'whitened'"),
    ("project?fields=" + "a," * 5000, 422, "fields: List should have at most 6 items"),
    ("project?bais=whitened", 422, "unknown parameter 'bais'; known: version, basis, fields"),
    ("project?vectors=1", 422, "unknown parameter 'vectors'; known: version, basis, fields"),
    ("project?of=vectors", 422, "unknown parameter 'of'; known: version, basis, fields"),
    ("reconstruct", 422, "say in the query what the body holds: ?of=vectors or ?of=coordinates"),
    ("reconstruct?of=rows", 422, "of: Input should be 'coordinates' or 'vectors'"),
]


@pytest.mark.parametrize(
    ("query", "body", "kind", "status", "text"),
    [
        *(("project", *wrong) for wrong in WRONG_BODIES),
        *((query, VECTORS.tobytes(), RAW, *expected) for query, *expected in WRONG_QUERIES),
    ],
)
def test_errors_are_precise(client: Client, query: str, body: bytes, kind: str, status: int, text: str) -> None:
    assert text in read_error(send(client, f"/v1/{query}", body, kind, Accept=NPZ), status)


def test_the_query_holds_fields_that_a_json_body_does_not(client: Client) -> None:
    for query, body, version in (
        ("version=10", {}, 10), ("version=10&basis=principal", {"version": 20}, 20), ("version=latest", {}, 20)
    ):  # fmt: skip
        answer = client.post(f"/v1/project?{query}", json={"vectors": VECTORS.tolist(), **body})
        assert answer.json()["version"] == version
    answer = client.post("/v1/project?vector=1", json={"vectors": VECTORS.tolist()})
    assert read_error(answer, 422) == "unknown parameter 'vector'; known: version, basis, fields"


ROWS_OF_JSON = {
    "vectors": VECTORS.tolist(),
    "records": [dict(zip("abcde", map(float, row), strict=True)) for row in VECTORS],
    "coordinates": COORDINATES.tolist(),
}


@pytest.mark.parametrize("of", ["vectors", "coordinates"])
@pytest.mark.parametrize("field", ROWS_OF_JSON)
def test_the_query_must_not_say_that_json_holds_other_rows(of: str, field: str) -> None:
    with create_client(replace(numbered(20), names=list("abcde"))) as client:
        answer = client.post(f"/v1/reconstruct?of={of}", json={field: ROWS_OF_JSON[field]})
        if (field == "coordinates") == (of == "coordinates"):
            assert answer.json() == client.post("/v1/reconstruct", json={field: ROWS_OF_JSON[field]}).json()
        else:
            sentence = f"the query says of={of}, but the body holds {field}: omit `of`, or send {of}"
            assert read_error(answer, 422) == sentence


def test_the_size_of_an_answer_is_limited(client: Client, app: FastAPI, store: MemoryStore) -> None:
    Models(store, TOPIC).save(numbered(30, d=1000, k=1))
    app.state.model_cache.poll()
    path = "/v1/reconstruct?of=coordinates"
    assert send(client, path, npy(np.ones((10, 1))), NPY, Accept=NPZ).status_code == 200
    answer = send(client, path, npy(np.ones((11, 1))), NPY, Accept=NPZ)
    assert read_error(answer, 413) == "the answer to 11 rows is too long: send at most 10"


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_body_may_be_compressed(client: Client, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    body, header = VECTORS.tobytes(), {"Content-Encoding": encoding}
    plain, packed = send(client, "/v1/project", body, RAW), send(client, "/v1/project", compress(body), RAW, **header)
    assert plain.content == packed.content
    for damaged, text in ((compress(body)[:-5], "ends too early"), (body, "not what its Content-Encoding says")):
        assert text in read_error(send(client, "/v1/project", damaged, RAW, **header), 400)
    bomb = compress(bytes(30_000))
    assert "exceeds 20000 bytes" in read_error(send(client, "/v1/project", bomb, RAW, **header), 413)
    other = send(client, "/v1/project", body, RAW, **{"Content-Encoding": "br"})
    assert "use gzip, deflate or none" in read_error(other, 415)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(0, 5)), elements=FINITE))
def test_rows_in_json_keep_their_bits(rows: np.ndarray) -> None:
    text = orjson.dumps({"vectors": rows}, option=orjson.OPT_SERIALIZE_NUMPY)
    vectors = parse(RawRequest(text), Limits(50, 1000), ProjectRequest, ProjectQuery).vectors
    assert (vectors.shape, vectors.dtype, vectors.tobytes()) == (rows.shape, rows.dtype, rows.tobytes())


HEADERS = st.builds(
    lambda descr, order, shape, data: (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(text := repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()))
        + text
        + data
    ),
    st.sampled_from(
        ["<f4", ">f8", "|u1", "|O", "<c8", "<m8[s]", "<U3", "f4,f4", "[('a', '<f4')]", [("a", "<f4")], "x"]
    ),
    st.booleans() | st.none(),
    st.lists(st.integers(-2, 2**65) | st.integers(0, 6), max_size=3).map(tuple) | st.integers(),
    st.binary(max_size=80),
)
ARRAYS = st.lists(st.floats(width=32), max_size=4 * D).map(lambda row: npy(np.array(row, "<f4")))
CUT_OFF = st.integers(0, 60).map(lambda end: npy(VECTORS)[: -end or None])
ANYTHING = st.one_of(st.binary(max_size=200), HEADERS, ARRAYS, CUT_OFF)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["project", "project?basis=whitened", "reconstruct?of=vectors", "reconstruct?of=coordinates"]),
    body=ANYTHING,
    kind=st.sampled_from([NPY, RAW]),
    accept=st.sampled_from([NPZ, "*/*"]),
)
def test_never_a_500_for_any_bytes(client: Client, path: str, body: bytes, kind: str, accept: str) -> None:
    answer = send(client, f"/v1/{path}", body, kind, Accept=accept)
    assert answer.status_code in (200, 400, 413, 422)
    if answer.status_code != 200:
        read_error(answer, answer.status_code)
    elif accept == NPZ:
        with np.load(io.BytesIO(answer.content), allow_pickle=False) as fields:
            assert all(np.isfinite(fields[name]).all() for name in fields)
    else:
        assert b"null" not in answer.content
        json.loads(answer.content)


PATHS = {
    "/v1/project": {"vectors": VECTORS.tolist()},
    "/v1/score": {"vectors": VECTORS.tolist()},
    "/invocations": {"instances": VECTORS.tolist()},
    f"/v2/models/{TOPIC}/infer": {
        "inputs": [{"name": "v", "shape": list(VECTORS.shape), "datatype": "FP64", "data": VECTORS.tolist()}]
    },
}


@pytest.mark.parametrize("path", PATHS)
def test_a_type_that_is_not_read_is_refused_whatever_the_body_holds(path: str, client: Client) -> None:
    body = orjson.dumps(PATHS[path])
    for kind in (
        "text/csv",
        "text/csv; charset=utf-8",
        "application/jsonlines",
        "application/msgpack",
        "image/png",
        "+",
    ):
        answer = send(client, path, body, kind)
        assert answer.status_code == 415
        assert "application/json" in answer.json()["detail"]
    elsewhere = NPY if path == "/invocations" else "application/x-npz"
    assert send(client, path, npy(VECTORS), elsewhere).status_code == 415


@pytest.mark.parametrize("path", PATHS)
def test_json_has_several_types_and_may_have_none(path: str, client: Client) -> None:
    body = orjson.dumps(PATHS[path])
    answers = {
        send(client, path, body, kind).content
        for kind in (
            "application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json", "",
            "application/x-www-form-urlencoded", "text/plain;charset=UTF-8",
        )
    }  # fmt: skip
    assert answers == {client.post(path, content=body).content}
