"""The clients, waiting and asynchronous, get what the sidecar computes, and try again while it is busy."""

import asyncio
import inspect
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from streampca.client import AsyncClient, Client, SidecarError
from tests.errors import refusal
from tests.example_models import D, K, example_model, numbered
from tests.sidecar.process import serve_models

VECTORS = np.random.default_rng(0).standard_normal((6, D))
NAMES = list("abcde")
KINDS = [Client, AsyncClient]


def call(kind: type, url: str, act: str, *arguments: Any, options: Any = None, **more: Any) -> Any:
    """The result of one method of a client of this kind."""
    client = kind(url, **(options or {}))
    if kind is Client:
        with client:
            return getattr(client, act)(*arguments, **more)

    async def run() -> Any:
        async with client:
            return await getattr(client, act)(*arguments, **more)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    named = replace(numbered(20), names=NAMES)
    with serve_models(tmp_path_factory.mktemp("store"), numbered(10), named) as sidecar:
        yield sidecar.wait_for_url()


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_go_in_and_arrays_come_out(kind: type, url: str) -> None:
    model = example_model(20)
    for vectors in (VECTORS, VECTORS.astype(np.float32), np.asfortranarray(VECTORS), VECTORS.astype(">f8")):
        projected = call(kind, url, "project", vectors)
        assert projected.version == 20
        expected = model.project(vectors.astype(vectors.dtype.newbyteorder("=")))
        assert np.array_equal(projected.coordinates, expected.coordinates)
        assert np.array_equal(projected.residual, expected.residual)
    whitened = call(kind, url, "project", VECTORS.tolist(), basis="whitened", version=10)
    assert (whitened.version, whitened.coordinates.shape) == (10, (6, K))
    back = call(kind, url, "from_coordinates", whitened.coordinates, basis="whitened", version=10)
    assert back.vectors == pytest.approx(call(kind, url, "reconstruct", VECTORS, version=10).vectors)
    assert back.squared_error is None
    scored = call(kind, url, "score", VECTORS)
    assert scored.score.shape == (6,)
    assert scored.p is None
    assert call(kind, url, "model")["dimensions"] == D
    assert call(kind, url, "model", version=10)["version"] == 10


@pytest.mark.parametrize("kind", KINDS)
def test_records_may_go_in(kind: type, url: str) -> None:
    records = [dict(zip(NAMES[::-1], row[::-1], strict=True)) for row in VECTORS]
    for act in ("project", "reconstruct", "score"):
        for by_name, by_position in zip(call(kind, url, act, records), call(kind, url, act, VECTORS), strict=True):
            assert np.array_equal(by_name, by_position)
    assert "no names of dimensions" in refusal(SidecarError, call, kind, url, "project", records, version=10)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_have_the_words_of_the_sidecar(kind: type, url: str) -> None:
    with pytest.raises(SidecarError, match=r"vectors\[0\] has 10 numbers where this model has 5") as refused:
        call(kind, url, "project", VECTORS.reshape(3, 10))
    assert (refused.value.status, refused.value.type) == (422, "urn:streampca:error:invalid-request")
    assert "in rows[20000:20002], vectors[1][0] must be a finite number" in refusal(
        SidecarError, call, kind, url, "project", np.append(np.zeros((20_001, D)), [[np.inf] * D], axis=0)
    )
    assert "no model version 11" in refusal(SidecarError, call, kind, url, "model", version=11)
    assert "shape" in refusal(ValueError, call, kind, url, "project", VECTORS[0])


class Busy(httpx.MockTransport):
    """Answers 503 a few times, or refuses to connect, before it answers."""

    def __init__(self, times: int, asked: int = 0) -> None:
        self.asked = asked

        def answer(request: httpx.Request) -> httpx.Response:
            self.asked += 1
            if self.asked == 1:
                raise httpx.ConnectError("refused")
            if self.asked <= times:
                return httpx.Response(503, json={"type": "t", "detail": "no model has been published yet"})
            assert request.headers["authorization"] == "Bearer secret"
            return httpx.Response(200, json={"version": 1})

        super().__init__(answer)


@pytest.mark.parametrize("kind", KINDS)
def test_it_tries_again_while_the_sidecar_is_busy(kind: type) -> None:
    busy = Busy(3)
    options = {"transport": busy, "token": "secret"}
    assert call(kind, "http://sidecar", "model", options=options) == {"version": 1}
    assert busy.asked == 4
    assert "no model has been published yet" in refusal(
        SidecarError, call, kind, "http://sidecar", "model", options={"transport": Busy(10**6, asked=1), "retry_s": 0.5}
    )


def test_an_answer_of_another_server_is_an_error() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(502, text="<html>"))
    assert "http://proxy/v1/model: status 502, and not an answer of a sidecar" in refusal(
        SidecarError, call, Client, "http://proxy", "model", options={"transport": transport}
    )


def test_a_certificate_that_is_not_trusted_has_another_remedy_than_a_port_without_tls() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")

    with pytest.raises(SidecarError, match="self-signed certificate; set SSL_CERT_FILE to a file with"):
        call(Client, "https://a", "model", options={"transport": httpx.MockTransport(refuse), "retry_s": 0.0})


@pytest.mark.parametrize("kind", KINDS)
def test_rows_beyond_the_limits_are_sent_in_pieces_to_one_version(kind: type, url: str) -> None:
    Y = np.random.default_rng(1).standard_normal((25_000, D))
    scored = call(kind, url, "score", Y, contributions=2)
    expected = numbered(20).project(Y)
    which, contributions = expected.contributions(2)
    assert np.array_equal(scored.score, expected.scores.score)
    assert np.array_equal(scored.t2_dimensions, which[0])
    assert np.array_equal(scored.spe_contributions, contributions.spe)
    assert call(kind, url, "versions") == [10, 20]
    assert call(kind, url, "project", np.zeros((0, D))).coordinates.shape == (0, K)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_too_large_is_asked_for_in_halves_and_a_row_that_is_ends_it(kind: type) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        rows = np.load(io.BytesIO(request.content))
        if len(rows) > 3:
            return httpx.Response(413, json={"type": "t", "detail": "too large"})
        assert request.url.params.get("version") == (None if rows[0, 0] == 0 else "7")
        np.savez(out := io.BytesIO(), version=7, vectors=rows, squared_error=rows[:, 0])
        return httpx.Response(200, content=out.getvalue())

    options, rows = {"transport": httpx.MockTransport(answer)}, np.arange(22.0).reshape(11, 2)
    assert np.array_equal(call(kind, "http://sidecar", "reconstruct", rows, options=options).vectors, rows)
    with pytest.raises(SidecarError, match="too large"):
        call(kind, "http://sidecar", "model", options={"transport": httpx.MockTransport(
            lambda request: httpx.Response(413, json={"type": "t", "detail": "too large"}))})  # fmt: skip


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *(
            (wrong, "not the URL of a sidecar, such as http")
            for wrong in ("localhost:8000", "ftp://a", "http://", "http://[::1")
        ),
        ("HTTP://127.0.0.1:9", "no sidecar answers: .* is it running there, or is it https"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sidecar_that_cannot_be_asked_is_an_error_of_one_sentence(kind: type, url: str, words: str) -> None:
    with pytest.raises(SidecarError, match=words) as refused:
        call(kind, url, "model", options={"retry_s": 0.1})
    assert (refused.value.status, url in str(refused.value)) == (0, True)


def test_without_httpx_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['httpx'] = None; import streampca.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: streampca.client needs httpx: pip install '.[client]'"


def test_both_have_the_same_methods() -> None:
    def signatures(kind: type) -> dict[str, Any]:
        methods = {name: method for name, method in vars(kind).items() if not name.startswith("_") and name != "close"}
        return {name: inspect.signature(method) for name, method in methods.items()}

    assert signatures(Client) == signatures(AsyncClient)


ORDERS = [NAMES, NAMES[::-1], ["x", *NAMES[2:], "note", *NAMES[:2], "at"]]
FRAME = pd.DataFrame(VECTORS, columns=NAMES).assign(x=7.0, note="text", at=pd.Timestamp("2026-01-01", tz="UTC"))
TABLES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "Float64": lambda frame: frame.convert_dtypes(),
    "Arrow": pa.Table.from_pandas,
    "record batch": pa.RecordBatch.from_pandas,
    "structured": lambda frame: frame.to_records(index=False),
    "records": lambda frame: frame.to_dict("records"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS, ids=len)
@pytest.mark.parametrize("table", TABLES)
def test_tables_and_records_are_read_by_name_in_any_order(kind: type, url: str, order: list[str], table: str) -> None:
    """Other columns, whatever they hold, are not sent."""
    rows = TABLES[table](FRAME[order])
    for act in ("project", "reconstruct", "score"):
        for by_name, by_position in zip(call(kind, url, act, rows), call(kind, url, act, VECTORS), strict=True):
            assert np.array_equal(by_name, by_position)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_the_dimensions_is_refused_with_both_lists(kind: type, url: str) -> None:
    for wrong in (FRAME[NAMES[1:]], FRAME[["x", "note"]], FRAME[[]], FRAME[NAMES].rename(columns={"c": "x"})):
        said = refusal(ValueError, call, kind, url, "project", wrong)
        assert f"the columns {', '.join(wrong.columns)}, but the model has 5 dimensions: a, b, c, d, e" in said
    twice = FRAME[[*NAMES, "b"]]
    assert "several columns b" in refusal(ValueError, call, kind, url, "project", twice)
    assert "column c holds str" in refusal(ValueError, call, kind, url, "project", FRAME[NAMES].assign(c="1"))


@pytest.mark.parametrize("kind", KINDS)
def test_without_names_a_table_is_read_by_position(kind: type, url: str) -> None:
    expected = call(kind, url, "project", VECTORS, version=10).coordinates
    numbered_columns = pd.DataFrame(VECTORS)  # pandas calls its columns 0, 1, …
    for rows, version in ((FRAME[NAMES[::-1]].iloc[:, ::-1], 10), (numbered_columns, 10), (numbered_columns, None)):
        answer = call(kind, url, "project", rows, version=version)
        assert np.array_equal(answer.coordinates, expected if version else call(kind, url, "project", VECTORS)[1])
    said = refusal(ValueError, call, kind, url, "project", FRAME[[*NAMES, "x"]], version=10)
    assert "the columns a, b, c, d, e, x, but the model has 5 dimensions without names" in said
    back = call(kind, url, "from_coordinates", pd.DataFrame(np.ones((2, K)), columns=list("ab")[:K]))
    assert back.vectors.shape == (2, D)


@pytest.mark.parametrize("wrong", [VECTORS.astype(complex), (VECTORS * 1e9).astype("M8[s]"), [["1"] * D]])
def test_what_is_no_number_is_refused(wrong: Any, url: str) -> None:
    assert "not numbers" in refusal(ValueError, call, Client, url, "project", wrong)


class Versions(httpx.MockTransport):
    """A sidecar whose newest version is `newest`. The names of its dimensions are those of that version."""

    def __init__(self, names: dict[int, list[str]]) -> None:
        self.newest = min(names)
        self.asked_for_names = 0

        def answer(request: httpx.Request) -> httpx.Response:
            version = int(request.url.params.get("version", self.newest))
            if request.method == "GET":
                self.asked_for_names += 1
                about = {"version": version, "dimensions": 2, "names": names[version], "settings": {}}
                return httpx.Response(200, json=about)
            out = io.BytesIO()
            np.savez(out, version=version, coordinates=np.load(io.BytesIO(request.content)), residual=np.zeros(1))
            return httpx.Response(200, content=out.getvalue())

        super().__init__(answer)


def test_names_are_asked_for_once_a_version_and_never_taken_from_another_one() -> None:
    versions = Versions({1: ["a", "b"], 2: ["a", "b"], 3: ["b", "a"]})
    frame = pd.DataFrame({"a": [1.0], "b": [2.0]})
    with Client("http://sidecar", transport=versions) as client:
        for newest, asked in ((1, 1), (2, 2), (3, 3)):
            versions.newest = newest
            for _ in range(3):
                answer = client.project(frame)
                assert answer.version == newest
                assert answer.coordinates.tolist() == [[1.0, 2.0] if newest < 3 else [2.0, 1.0]]
            assert versions.asked_for_names == asked
        assert client.project(frame, version=1).coordinates.tolist() == [[1.0, 2.0]]
        assert versions.asked_for_names == 4


def test_what_a_mask_or_a_null_hides_is_missing(tmp_path: Path) -> None:
    """Never the number behind it. A column that is not there is a gap, too."""
    model = replace(numbered(20), names=NAMES, settings=numbered(20).settings | {"missing": "impute"})
    holed = np.where(np.arange(VECTORS.size).reshape(VECTORS.shape) % 7 == 3, np.nan, VECTORS)
    frame = pd.DataFrame(holed, columns=NAMES)
    with serve_models(tmp_path, model) as sidecar, Client(sidecar.wait_for_url()) as client:
        expected = client.project(holed).coordinates
        hidden = np.ma.masked_array(np.nan_to_num(holed, nan=-9999.0), np.isnan(holed))
        nulls = frame.convert_dtypes()
        for rows in (hidden, list(hidden), nulls, nulls.to_dict("records"), pa.Table.from_pandas(frame)):
            assert client.project(rows).coordinates == pytest.approx(expected)
        without = holed.copy()
        without[:, 1] = np.nan
        rows = frame[["e", "d", "a", "c"]]
        assert client.project(rows).coordinates == pytest.approx(client.project(without).coordinates)
