"""No request, and no client that leaves its answer unread, needs the sidecar's shipped memory limit of 512 MiB."""

import contextlib
import gzip
import select
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import orjson
import pytest

from streampca.sidecar import compute, engine, middleware
from streampca.sidecar.request import JSON_LENGTH_HEADER
from tests.example_models import TOPIC, example_model, numbered
from tests.sidecar.http_client import Client, create_client, read_error
from tests.sidecar.process import connect, count_reached, serve_models
from tests.waiting import wait_until

MIB = 2**20
BODY = 16 * MIB  # the default limit
PEAK_MIB = 420  # of 512
CLIENTS = 32
RAW = "application/octet-stream;dtype=float32"
NUMBERS = 1_000_000  # the default limit


def fill_body(piece: bytes, size: int = BODY) -> bytes:
    start, end = b'{"vectors":[', b"0]}"
    return start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def encode_rows(n: int, d: int) -> bytes:
    """Return a body with n rows of d numbers of 15 letters."""
    return b'{"vectors":[' + b",".join([b"[" + b",".join([b"0.1234567890123"] * d) + b"]"] * n) + b"]}"


BODIES: dict[str, Callable[[], bytes]] = {  # made when they are sent: 16 MiB each
    "empty rows": lambda: fill_body(b"[],"),
    "rows of one": lambda: fill_body(b"[1],"),
    "objects": lambda: fill_body(b'{"":1},'),
    "nested": lambda: fill_body(b"[[[[[[]]]]]],"),
    "many objects": lambda: fill_body(b'{"":1},', 7 * (NUMBERS // 7)),
    "many lists": lambda: fill_body(b"[1],", 4 * (NUMBERS // 4)),
    "many keys": lambda: b'{"vectors":{' + b",".join(b'"%d":1' % i for i in range(NUMBERS // 4)) + b"}}",
    "many integers": lambda: fill_body(b"9999999999999,", 14 * NUMBERS),
    "many strings": lambda: fill_body(b'"abcdefghi",', 12 * NUMBERS),
    "closing brackets": lambda: fill_body(b"]"),  # not counted as values
    "wide text": lambda: b'{"vectors":"' + "😀".encode() * (BODY // 4 - 10) + b'"}',
    "rows": lambda: encode_rows(1000, 1000),
    "long rows": lambda: encode_rows(10, 100_000),
}
STATUSES = {"rows": (200, 422), "closing brackets": (400,)}


class MeasuredSidecar(NamedTuple):
    """A sidecar whose memory is measured."""

    url: str
    status: Path

    @property
    def peak(self) -> float:
        """The peak memory of the process so far, MiB."""
        return int(self.status.read_text().partition("VmHWM:")[2].split()[0]) / 1024


@pytest.fixture(scope="module", params=[1000])
def sidecar(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredSidecar]:
    """A sidecar whose model has as many dimensions as the parameter says."""
    store = tmp_path_factory.mktemp("store")
    with serve_models(store, numbered(1, d=request.param, k=20), forked=False) as process:
        yield MeasuredSidecar(process.wait_for_url(), Path(f"/proc/{process.process.pid}/status"))


def encode_infer_request(**more: Any) -> bytes:
    vectors = {"name": "vectors", "shape": [1, 1000], "datatype": "FP64", "data": [1.0] * 1000}
    return orjson.dumps({"inputs": [vectors], **more})


MANY = [0] * NUMBERS
NAMES = b",".join(b'"%d":1' % i for i in range(NUMBERS // 4))
INFER, PACKED = f"/v2/models/{TOPIC}/infer", {"Content-Encoding": "gzip"}
MISTAKES: dict[str, tuple[str, Callable[[], bytes], dict[str, str]]] = {
    "fields": ("/v1/project", lambda: orjson.dumps({"vectors": [[1.0] * 1000], "fields": MANY}), {}),
    "fields as text": ("/v1/project", lambda: orjson.dumps({"vectors": [[1.0]], "fields": "," * NUMBERS}), {}),
    "outputs": (INFER, lambda: encode_infer_request(outputs=MANY), {}),
    "inputs": (INFER, lambda: encode_infer_request(inputs=MANY), {}),
    "params": ("/invocations", lambda: b'{"instances":[[1]],"params":{' + NAMES + b"}}", {}),
    "packed": ("/v1/project", lambda: gzip.compress(bytes(BODY - 1)), PACKED),
    "JSON as if binary": (INFER, lambda: b" " * 15_000_000 + b"{}", {JSON_LENGTH_HEADER: "15000002"}),
}


@pytest.mark.slow
def test_a_wrong_request_takes_little_memory_and_many_at_once_not_much(sidecar: MeasuredSidecar) -> None:
    with httpx.Client(base_url=sidecar.url, timeout=120) as client:
        client.post("/v1/project", content=orjson.dumps({"vectors": [[1.0] * 1000]}))
        idle = sidecar.peak

        def send(name: str) -> int:
            path, _, headers = MISTAKES[name]
            return client.post(path, content=bodies[name], headers=headers).status_code

        bodies = {name: make() for name, (_, make, _) in MISTAKES.items()}
        for name in MISTAKES:
            assert send(name) in (400, 413, 422), name
            assert sidecar.peak - idle < 64, name
        for name in MISTAKES:
            with ThreadPoolExecutor(40) as threads:
                assert set(threads.map(send, [name] * 40)) <= {400, 413, 422, 503}
            assert sidecar.peak - idle < 300, name


@pytest.mark.slow
def test_one_request_of_any_kind_stays_within_the_memory(sidecar: MeasuredSidecar) -> None:
    with httpx.Client(base_url=sidecar.url, timeout=120) as client:
        for name, make in BODIES.items():
            body = make()
            for path in ("/v1/project", "/v1/reconstruct"):
                answer = client.post(path, content=body)
                assert answer.status_code in STATUSES.get(name, (413, 422)), (name, answer.text[:200])
                assert sidecar.peak < PEAK_MIB, (name, path)


@pytest.mark.slow
def test_many_large_requests_at_once_stay_within_the_memory(sidecar: MeasuredSidecar) -> None:
    with httpx.Client(base_url=sidecar.url, timeout=120) as client:
        body = BODIES["rows"]()

        def send(i: int) -> tuple[int, str | None]:
            answer = client.post("/v1/reconstruct" if i % 2 else "/v1/project", content=body)
            return answer.status_code, answer.headers.get("retry-after")

        with ThreadPoolExecutor(CLIENTS) as threads:
            answers = set(threads.map(send, range(CLIENTS)))
        assert {(200, None)} <= answers <= {(200, None), (503, "1")}
        assert sidecar.peak < PEAK_MIB


@pytest.mark.slow
def test_connections_that_send_nothing_stay_within_the_memory(sidecar: MeasuredSidecar) -> None:
    """While they last they keep others out, which is a proxy's job to prevent."""
    with contextlib.ExitStack() as stack:
        for i in range(1100):  # more than the files that the sidecar may open; the others wait to be accepted
            stack.enter_context(connect(sidecar.url)).sendall(b"GET /healthz HTTP/1.1\r\n" + b"x: " * (5000 * (i % 2)))
    wait_until(lambda: httpx.get(f"{sidecar.url}/healthz", timeout=60).status_code == 200, 60)
    assert sidecar.peak < PEAK_MIB


COORDINATES = orjson.dumps({"coordinates": [[1.0] * 20] * 10})
REQUESTS = {
    name: b"POST /v1/reconstruct HTTP/1.1\r\n%sHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
    % (header, len(COORDINATES), COORDINATES)
    for name, header in {
        "json": b"", "gzip": b"Accept-Encoding: gzip\r\n",
        "last": b"Connection: close\r\n",
    }.items()
} | {
    "components": b"GET /v1/model/components HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n\r\n"
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sidecar", [100_000], indirect=True)
@pytest.mark.parametrize("name", ["json", "gzip", "components"])
def test_answers_that_are_not_read_stay_within_the_memory(name: str, sidecar: MeasuredSidecar) -> None:
    refused_before = count_reached(sidecar.url, "memory")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(sidecar.url)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(REQUESTS[name] * 3)
        answers = [client.recv(12) for client in clients]
        assert {b"HTTP/1.1 200"} < set(answers) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        wait_until(lambda: count_reached(sidecar.url, "memory") > refused_before)
        assert sidecar.peak < PEAK_MIB
    wait_until(lambda: gets_whole_answer(sidecar), what="an answer after the clients are gone")


def gets_whole_answer(sidecar: MeasuredSidecar) -> bool:
    """Send a request whose answer is long, and check the answer; False if there is no memory for it."""
    with connect(sidecar.url) as client:
        client.sendall(REQUESTS["last"])
        assert select.select([client], [], [], 60)[0]  # the rest waits for the client
        head, _, content = b"".join(iter(lambda: client.recv(MIB), b"")).partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 503"):
        return False
    model = example_model(1, d=100_000, k=20)
    np.testing.assert_allclose(orjson.loads(content)["vectors"], model.reconstruct(np.ones((10, 20))), atol=1e-12)
    return True


def test_a_body_with_too_many_numbers_is_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MAX_NUMBERS", 100)
    with create_client(numbered(1)) as client:
        body = np.zeros((21, 5), "<f4").tobytes()
        answer = client.post("/v1/project", content=body, headers={"Content-Type": RAW})
        assert read_error(answer, 413) == "vectors has 105 numbers, at most 100 are allowed: send fewer rows"
        assert f'streampca_limits_reached_total{{limit="numbers",topic="{TOPIC}"}} 1.0' in client.get("/metrics").text


def assert_refused(client: Client, answer: httpx.Response) -> None:
    assert read_error(answer, 503) == "too many large requests at once: try again"
    assert answer.headers["retry-after"] == "1"
    assert f'streampca_limits_reached_total{{limit="memory",topic="{TOPIC}"}} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize(("body", "headers"), [(bytes(180_000), {}), (gzip.compress(bytes(180_000)), PACKED)])
def test_a_large_request_among_too_many_is_refused_for_the_moment(
    body: bytes, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    large: dict[str, Any] = {"content": body, "headers": {"Content-Type": RAW} | headers}
    monkeypatch.setattr(middleware, "LARGE_REQUESTS", 1)
    monkeypatch.setattr(middleware, "SLOT_TIMEOUT_S", 0.01)
    refused: list[httpx.Response] = []

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(90_000)
        refused.append(await client.request_in_loop("POST", "/v1/project", **large))
        refused.append(await client.request_in_loop("POST", "/v1/project", json={"vectors": [[0.0] * 5]}))
        yield bytes(90_000)

    with create_client(numbered(1)) as client:
        assert client.post("/v1/project", content=slow(), headers={"Content-Type": RAW}).status_code == 200
        assert_refused(client, refused[0])
        assert refused[1].status_code == 200  # small ones are not limited
        assert client.post("/v1/project", **large).status_code == 200


def test_a_request_that_gets_no_memory_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 7.63 MiB")

    with create_client(numbered(1)) as client:
        with monkeypatch.context() as failing:
            failing.setattr(compute, "_project_request", fails)
            assert_refused(client, client.post("/v1/project", json={"vectors": [[0.0] * 5]}))
        assert client.post("/v1/project", json={"vectors": [[0.0] * 5]}).status_code == 200
