"""The baseline of `benchmarks.serving`: a bare FastAPI application that parses the body and answers as many bytes.

`python -m benchmarks.bare_server KIND BYTES DIMENSIONS` prints its address.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson

from benchmarks.workers import start


@contextlib.contextmanager
def bare_process(kind: str, size: int, dimensions: int) -> Iterator[str]:
    """The bare application as a process; yields its address."""
    with start("bare_server", kind, str(size), str(dimensions)) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def serve(kind: str, size: int, dimensions: int) -> None:
    """Parse each body, answer `size` bytes."""
    import uvicorn  # only this process needs them
    from fastapi import FastAPI, Request, Response

    from streampca.process.listening import listen

    app, answer = FastAPI(), b"x" * size
    parsers: dict[str, Callable[[bytes], Any]] = {
        "json": orjson.loads,
        "npy": lambda body: np.load(io.BytesIO(body), allow_pickle=False),
        "raw": lambda body: np.frombuffer(body, "<f4").reshape(-1, dimensions),
    }
    parsers["v2"] = lambda body: parsers["raw"](body[len(body) % (4 * dimensions) :])
    parse = parsers[kind]

    @app.post("/")
    async def echo(request: Request) -> Response:
        parse(await request.body())
        return Response(answer, media_type="application/json")

    listening = listen("127.0.0.1", 0, "port")
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
