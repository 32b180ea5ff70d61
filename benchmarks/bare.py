"""The barest FastAPI application, for serving to be measured against.

It parses the body as ours has to, and answers so many bytes: `python -m benchmarks.bare KIND BYTES DIMENSIONS`.
"""

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import orjson


@contextlib.contextmanager
def bare_process(kind: str, size: int, dimensions: int) -> Iterator[str]:
    """The bare application as a process, and where it listens."""
    command = [sys.executable, "-m", "benchmarks.bare", kind, str(size), str(dimensions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ourselves
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def be_bare(kind: str, size: int, dimensions: int) -> None:
    """Parse the body, answer `size` bytes."""
    import uvicorn  # only this process needs them
    from fastapi import FastAPI, Request, Response

    from streampca.api.server import listen

    app, answer = FastAPI(), b"x" * size
    parse = {
        "json": orjson.loads,
        "npy": lambda body: np.load(io.BytesIO(body), allow_pickle=False),
        "raw": lambda body: np.frombuffer(body, "<f4").reshape(-1, dimensions),
    }[kind]

    @app.post("/")
    async def echo(request: Request) -> Response:
        parse(await request.body())
        return Response(answer, media_type="application/json")

    sockets = listen("127.0.0.1", 0)
    print(f"http://127.0.0.1:{sockets[0].getsockname()[1]}/", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets)


if __name__ == "__main__":
    be_bare(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
