"""Errors: every wrong request gets a precise 4xx of one shape, and never a 500."""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings, strategies as st

from streampca.sidecar.errors import Problem
from streampca.stores.models import Models
from tests.example_models import TOPIC, D, file_of, numbered
from tests.in_memory.store import FaultyStore
from tests.sidecar.http_client import Client, read_error

ROW = [1.0] * D


REFUSED = "must be a finite number, not null or NaN (this model was learned with missing=refuse)"
RAGGED = "as the rows before it: all need the model's dimensions"
NO_ROW = "must be an array of numbers, not"
NO_TEXT = "expected an array of numbers, not a string: it is neither base64 of numbers nor the text of an array"
WRONG_VECTORS: list[tuple[Any, str]] = [
    ([[1.0] * 4], "vectors[0] has 4 numbers where this model has 5"),
    ([ROW, [1.0] * 6], f"vectors[1] has 6 numbers, not 5 {RAGGED}"),
    ([ROW, []], f"vectors[1] has 0 numbers, not 5 {RAGGED}"),
    ([ROW, [1, 2, None, 4, 5]], f"vectors[1][2] {REFUSED}"),
    ([[1, 2, 3, 4, "5"]], "vectors[0][4] must be a number, not a string (numbers have no quotes)"),
    ([[1, [2], 3, 4, 5]], "vectors[0][1] must be a number, not an array"),
    ([[1, {}, 3, 4, 5]], "vectors[0][1] must be a number, not an object"),
    ([ROW, 3], f"vectors[1] {NO_ROW} a number; write a single vector as [[…]]"),
    ([ROW, None], f"vectors[1] {NO_ROW} null"),
    ([ROW, "x"], f"vectors[1]: {NO_TEXT}"),
    ([ROW, "AAAA"], f"vectors[1]: {NO_TEXT}"),  # three bytes are no floats
    ([ROW, "AAAAAA=="], f"vectors[1] {NO_ROW} bytes"),
    (["AAAAAA==", ROW], "vectors: all texts need the same number of bytes, in base64"),
    ([dict.fromkeys("abcde", 1)], f"vectors[0] {NO_ROW} an object"),
    (ROW, f"vectors[0] {NO_ROW} a number; write a single vector as [[…]]"),
    (["AAAAAA==", "AAAAAA=="], "vectors[0] has 4 bytes, not 5 numbers of 4 or 8 bytes"),
    (["AAAAAA==", "AAAAAAAAAAA="], "vectors: all texts need the same number of bytes, in base64"),
    (["[1,2]"], "vectors[0] has 2 numbers where this model has 5"),
    ([""], "vectors[0] has 0 numbers where this model has 5"),
    (["[1", None], f"vectors[0]: {NO_TEXT}"),
    ("x", "vectors must be an array of arrays of numbers, not a string"),
    (None, "give one of vectors, records"),
    ({"0": ROW}, "vectors must be an array of arrays of numbers, not an object"),
    ([ROW, ROW, [1e200, 0, 0, 0, 0]], "vectors[2] holds values too large: the result exceeds the range of float64"),
]
ONE_OF = "give one of coordinates, vectors, records"
NO_NAMES = "this model has no names of dimensions, so it takes no records: send arrays, in their order"
MANY = "fields: List should have at most 6 items after validation, not {}"
WRONG_FIELDS: list[tuple[str, Any, str]] = [
    ("project", {}, "give one of vectors, records"),
    ("project", {"vector": [ROW]}, "unknown field 'vector'; known: version, basis, fields, vectors, records"),
    ("project", {"vectors": [ROW], "basis": "other"}, "basis: Input should be 'principal' or 'whitened'"),
    ("project", {"vectors": [ROW], "basis": None}, "basis: Input should be 'principal' or 'whitened'"),
    (
        "project", {"vectors": [ROW], "fields": ["p", "q"]},
        "fields[1]: Input should be 't2', 'spe', 'score', 'p', 'p_t2' or 'p_spe'",
    ),
    ("project", {"vectors": [ROW], "fields": ["p"] * 7}, MANY.format(7)),
    ("project", {"vectors": [ROW], "fields": [0] * 5000}, MANY.format(5000)),
    ("project", [], "the body must be a JSON object, not an array"),
    ("project", None, "the body must be a JSON object, not null"),
    ("project", "text", "the body must be a JSON object, not a string"),
    ("reconstruct", {}, ONE_OF),
    ("reconstruct", {"vectors": None}, ONE_OF),
    ("reconstruct", {"vectors": [ROW], "coordinates": [[1, 2]]}, ONE_OF),
    ("reconstruct", {"records": [{}], "coordinates": [[1, 2]]}, ONE_OF),
    ("project", {"vectors": [ROW], "records": [{}]}, "give one of vectors, records"),
    ("score", {"records": {}}, "records: Input should be a valid list"),
    ("score", {"records": [ROW]}, "records[0]: Input should be a valid dictionary"),
    ("project", {"records": [{}]}, NO_NAMES),
    ("reconstruct", {"coordinates": [[1, 2], [1, 2, 3]]}, f"coordinates[1] has 3 numbers, not 2 {RAGGED}"),
    (
        "reconstruct", {"coordinates": [[1.79e308, 1.79e308]], "basis": "whitened"},
        "coordinates[0] holds values too large: the result exceeds the range of float64",
    ),
    (
        "reconstruct", {"vectors": [[1e300] * D]},
        "vectors[0] holds values too large: the result exceeds the range of float64",
    ),
]  # fmt: skip
WRONG_INVOCATIONS: list[tuple[Any, str]] = [
    ({}, "the body must have one of instances, inputs, dataframe_split, dataframe_records"),
    (
        {"instances": [[1]], "inputs": [[1]]},
        "the body must have one of instances, inputs, dataframe_split, dataframe_records",
    ),
    ({"dataframe_records": [{"a": 1}]}, NO_NAMES),
    ({"instances": [ROW], "params": 1}, "params must be an object"),
    ({"instances": [ROW], "params": {"bais": 1}}, "unknown parameter 'bais'; known: version, basis, fields"),
    ({"dataframe_split": {"columns": []}}, "dataframe_split must have data"),
    ({"inputs": {"a": [1]}}, "inputs must have data"),
]


@pytest.mark.parametrize(
    ("path", "content", "text"),
    [
        *(("/v1/project", {"vectors": vectors}, text) for vectors, text in WRONG_VECTORS),
        *((f"/v1/{act}", content, text) for act, content, text in WRONG_FIELDS),
        *(("/invocations", content, text) for content, text in WRONG_INVOCATIONS),
    ],
)
def test_errors_name_the_field_or_row_and_column(client: Client, path: str, content: Any, text: str) -> None:
    assert read_error(client.post(path, content=orjson.dumps(content)), Problem.INVALID_REQUEST) == text


@pytest.mark.parametrize("version", ["20", 20.0, True, -1, 2**63, 1e30, [20], {}])
def test_a_version_is_a_whole_number(client: Client, version: Any) -> None:
    answer = client.post("/v1/project", json={"vectors": [ROW], "version": version})
    assert read_error(answer, 422).startswith("version: ")


@pytest.mark.parametrize("version", ["", "-1", "1.5", "x y", "a" * 64, str(2**63), "9" * 5000, "%00"])
def test_a_version_in_the_query_is_a_whole_number_too(client: Client, version: str) -> None:
    for path in ("/v1/model", "/v1/model/components"):
        assert read_error(client.get(f"{path}?version={version}"), 422).startswith("version: ")


@pytest.mark.parametrize("version", [0, 15, 2**63 - 1])
def test_an_unknown_version_is_not_found(client: Client, version: int) -> None:
    text = f"there is no model version {version}: never published, or removed"
    for act in ("project", "reconstruct"):
        answer = client.post(f"/v1/{act}", json={"vectors": [ROW], "version": version})
        assert read_error(answer, Problem.UNKNOWN_VERSION).startswith(text)
    for path in ("/v1/model", "/v1/model/components"):
        assert read_error(client.get(f"{path}?version={version}"), Problem.UNKNOWN_VERSION).startswith(text)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[" * 10_000, b"\xff\xfe", b"\x93NUMPY\x01\x00", b'{"vectors":[[1,]]}', b'{"vectors":[[01]]}',
        b"{}{}",
    ],
)  # fmt: skip
def test_a_body_that_is_not_json_is_a_bad_request(client: Client, body: bytes) -> None:
    for path in ("/v1/project", "/v1/reconstruct"):
        assert read_error(client.post(path, content=body), Problem.MALFORMED_BODY).startswith("the body is not JSON: ")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"vectors":[[NaN,1,1,1,1]]}', f"vectors[0][0] {REFUSED}"),
        (b'{"vectors":[[Infinity,1,1,1,1]]}', "vectors[0][0] must be a finite number, not inf"),
        (b'{"vectors":[[1,1,1,1,-1e999]]}', "vectors[0][4] must be a finite number, not -inf"),
        (b'{"vectors":"\xed\xa0\x80"}', "vectors must be an array of arrays of numbers, not a string"),
    ],
)
def test_json_that_only_some_parsers_read_is_refused_by_its_numbers(client: Client, body: bytes, text: str) -> None:
    assert read_error(client.post("/v1/project", content=body), Problem.INVALID_REQUEST) == text


def test_the_last_duplicate_of_a_field_counts(client: Client) -> None:
    row = orjson.dumps([ROW])
    answer = client.post("/v1/project", content=b'{"vectors":[[1]],"version":15,"vectors":' + row + b',"version":10}')
    assert answer.json()["version"] == 10


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/cloudevents+json; a=b", "text/plain", "application/x-www-form-urlencoded", ""],
)
def test_a_body_is_json_by_its_types_and_by_those_that_clients_send_unasked(client: Client, kind: str) -> None:
    answer = client.post("/v1/project", content=orjson.dumps({"vectors": [ROW]}), headers={"Content-Type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize("kind", ["a/b/c", "text/csv", "application/jsonl"])
def test_another_type_is_refused_and_the_readable_ones_are_named(client: Client, kind: str) -> None:
    answer = client.post("/v1/project", content=orjson.dumps({"vectors": [ROW]}), headers={"Content-Type": kind})
    text = read_error(answer, Problem.UNSUPPORTED_TYPE)
    assert kind in text
    assert "application/json" in text


def test_unknown_paths_and_methods(client: Client) -> None:
    assert "there is nothing at /v1/other" in read_error(client.get("/v1/other"), Problem.UNKNOWN_PATH)
    assert "there is nothing at /v1/models/" in read_error(client.get("/v1/models/"), 404)
    assert "there is nothing at /docs/static/none.js" in read_error(client.get("/docs/static/none.js"), 404)
    wrong = client.get("/v1/project")
    assert read_error(wrong, Problem.WRONG_METHOD) == "/v1/project does not support GET"
    assert wrong.headers["allow"] == "POST"
    assert read_error(client.request("DELETE", "/v1/model"), 405) == "/v1/model does not support DELETE"


# --- limits ---------------------------------------------------------------------------------------------------------


def test_a_body_with_too_large_a_content_length_is_not_read(client: Client) -> None:
    async def stream() -> AsyncIterator[bytes]:
        yield b"{"
        raise AssertionError("the body was read")

    answer = client.post("/v1/project", content=stream(), headers={"Content-Length": "20001"})
    assert read_error(answer, 413) == "the body exceeds 20000 bytes: send fewer rows at once"


def test_a_body_of_unknown_length_is_read_no_further_than_the_limit(client: Client) -> None:
    sent = itertools.count()

    async def endless() -> AsyncIterator[bytes]:
        while next(sent) < 1000:
            yield b" " * 1000

    answer = client.post("/v1/project", content=endless())
    assert read_error(answer, 413) == "the body exceeds 20000 bytes: send fewer rows at once"
    assert next(sent) < 30


def test_components_too_large_for_json_are_available_as_npy(app: FastAPI, store: FaultyStore) -> None:
    Models(store, TOPIC).save(numbered(30, d=6000, k=2))
    with Client(app) as client:
        answer = client.get("/v1/model/components")
        assert (
            read_error(answer, Problem.TOO_LONG_FOR_JSON)
            == "12000 numbers are too many for JSON: Accept application/x-npy"
        )
        assert client.get("/v1/model/components", headers={"Accept": "application/x-npy"}).status_code == 200


# --- the store's faults ---------------------------------------------------------------------------------------------


def test_a_damaged_old_version_is_a_server_error(client: Client, store: FaultyStore) -> None:
    store.damage(file_of(10), 700)
    answer = client.post("/v1/project", json={"vectors": [ROW], "version": 10})
    assert "digest" in read_error(answer, Problem.DAMAGED_MODEL)
    assert client.post("/v1/project", json={"vectors": [ROW]}).status_code == 200


def test_a_store_that_cannot_be_read_is_503_where_it_is_needed(client: Client, store: FaultyStore) -> None:
    store.fail_reads(1)
    assert "cannot read" in read_error(client.get("/v1/model?version=10"), Problem.STORE_UNREADABLE)
    assert client.get("/v1/model?version=10").status_code == 200


def test_a_bug_has_the_shape_of_other_errors(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    with Client(app, return_server_errors=True) as client:
        monkeypatch.setattr(app.state.model_cache, "versions", fail)
        answer = client.get("/v1/models", headers={"X-Request-Id": "mine-7"})
    assert read_error(answer, Problem.INTERNAL) == "internal error; the server's log has the traceback"
    assert (answer.headers["x-request-id"], answer.headers["x-frame-options"]) == ("mine-7", "DENY")


# --- anything at all ------------------------------------------------------------------------------------------------

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
NEARLY_ROWS = st.lists(st.lists(NUMBERS, min_size=D, max_size=D) | JSON, max_size=4)
NEARLY_RIGHT = st.fixed_dictionaries(
    {},
    optional={
        "vectors": NEARLY_ROWS | JSON,
        "coordinates": st.lists(st.lists(NUMBERS, min_size=2, max_size=2) | JSON, max_size=3),
        "basis": st.sampled_from(["principal", "whitened"]) | JSON,
        "version": st.sampled_from([10, 20, None]) | JSON,
    },
)
BODIES = st.one_of(
    NEARLY_RIGHT.map(lambda content: json.dumps(content).encode()),
    JSON.map(lambda content: json.dumps(content).encode()),
    st.binary(max_size=200),
)
fuzzed = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def strict(number: str) -> None:
    raise AssertionError(f"{number} is not JSON")


@fuzzed
@given(
    path=st.sampled_from(["/v1/project", "/v1/reconstruct"]),
    body=BODIES,
    kind=st.sampled_from(["", "", "text/csv"]),
)
def test_never_a_500_for_any_body(client: Client, path: str, body: bytes, kind: str) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code in ((415,) if kind else (200, 400, 404, 413, 422))
    content = json.loads(answer.content, parse_constant=strict)
    if answer.status_code == 200:
        flat = [value for name in ("coordinates", "residual") for value in content.get(name, [])]
        assert None not in itertools.chain.from_iterable(v if isinstance(v, list) else [v] for v in flat)
    else:
        assert (content["status"], content["detail"]) == (answer.status_code, content["error"])


@fuzzed
@given(path=st.text(max_size=30), method=st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "HEAD"]))
def test_never_a_500_for_any_path(client: Client, path: str, method: str) -> None:
    assert client.request(method, "/" + quote(path)).status_code < 500
    assert client.get("/v1/model?version=" + quote(path)).status_code < 500
