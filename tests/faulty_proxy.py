"""A TCP proxy in front of the test broker that cuts, slows down or swallows answers, or delays a request."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

_RESET = struct.pack("ii", 1, 0)  # closing sends RST
_LARGE = 1000  # bytes: answers that are cut hold records, most likely
_PIECE, _PIECE_S = 5, 0.002
_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")


class FaultyProxy:
    """Forwards connections from one loopback port to another; `fault` says what happens to answers.

    - "": they pass.
    - "cut": of a large one only a part passes, then the connection is reset.
    - "slow": they pass a few bytes at a time.
    - "silent": connections are accepted, requests are read, and nothing is answered.

    A test may set another `target`, for later connections.

    `hold` is the other way round: a request arrives late, after its connection was cut.
    """

    def __init__(self, port: int, target: int) -> None:
        self.fault = ""
        self.requests = bytearray()  # all that clients have sent
        self.faults = 0  # answers that were cut, pieces that were slow, or answers that were swallowed
        self._hold: int | None = None  # the API key of a request that is to be held, once
        self._held: list[tuple[socket.socket, bytes]] = []
        self.target = target
        self._server = socket.create_server(("127.0.0.1", port))
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.reset()

    def begin(self, fault: str) -> None:
        """Inflict this fault from now on."""
        self.faults, self.fault = 0, fault

    def reset(self) -> None:
        """End the fault; connections that lost bytes are reset."""
        lossy, self.fault = self.fault != "slow", ""
        for connection in list(self._sockets) if lossy else ():
            self._close(connection)

    def hold(self, api_key: int) -> None:
        """Keep the next request of this kind, and reset the connection of its client."""
        self._hold = api_key

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def deliver(self) -> None:
        """Hand the held request to the broker."""
        for broker, request in self._held:
            broker.sendall(request)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.socket()
                self._sockets |= {client, broker}
                broker.connect_ex(("127.0.0.1", self.target))  # if it is away, the client's connection is reset
                for source, sink, answers in ((client, broker, False), (broker, client, True)):
                    threading.Thread(target=self._pump, args=(source, sink, answers), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        received = bytearray()
        with suppress(OSError):
            while data := source.recv(65_536):
                if answers:
                    self._answer(sink, data)
                    continue
                self.requests += data
                received += data
                # A client may send several requests at once: without this, one behind another would not be held.
                for request in _take_requests(received):
                    if self._hold is not None and _api_key(request) == self._hold:
                        self._hold = None
                        self._held.append((sink, request))
                        self._close(source)
                        return  # the broker sees nothing of it
                    sink.sendall(request)
        for end in (source, sink):
            if all(end is not broker for broker, _ in self._held):  # a held request is still to be delivered
                self._close(end)

    def _answer(self, sink: socket.socket, data: bytes) -> None:
        while self.fault == "slow" and data:
            sink.sendall(data[:_PIECE])
            data = data[_PIECE:]
            self.faults += 1
            time.sleep(_PIECE_S)  # how slow it is
        if self.fault == "silent":
            self.faults += 1
        elif self.fault == "cut" and len(data) > _LARGE:
            self.faults += 1
            sink.sendall(data[: len(data) // 2])
            raise ConnectionResetError
        else:
            sink.sendall(data)

    def _close(self, which: socket.socket) -> None:
        self._sockets.discard(which)
        with suppress(OSError):
            which.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            which.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
        which.close()


def _take_requests(received: bytearray) -> Iterator[bytes]:
    """Remove the whole requests from the beginning of these bytes, and yield each with its length in front."""
    while len(received) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
        if len(received) < end:
            return
        yield bytes(received[:end])
        del received[:end]


def _api_key(request: bytes) -> int:
    """Return which kind of request this is; the number stands behind the length."""
    (api_key,) = _API_KEY.unpack_from(request, _LENGTH.size)
    return int(api_key)
