"""Closes sockets whose connection fails, or whose client is closed; kafka-python leaves some to the garbage collector.

Each would raise a ResourceWarning, an error, in some later test. Clients that a test forgets to close still do.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport

_connect, _secure, _shake_hands = KafkaNetSocket.sock_connect, KafkaSSLTransport.__init__, KafkaSSLTransport.handshake
_close = NetworkSelector.close
_sockets: WeakKeyDictionary[NetworkSelector, WeakSet[socket.socket]] = WeakKeyDictionary()


@contextmanager
def _closed_on_failure(resource: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:  # also if the client, and with it the coroutine, is closed
        resource.close()
        raise


@wraps(_connect)
async def _connect_or_close(self: Any, net: Any, sock: Any, *rest: Any, **named: Any) -> Any:
    _sockets.setdefault(net, WeakSet()).add(sock)
    with _closed_on_failure(sock):
        return await _connect(self, net, sock, *rest, **named)


@wraps(_close)
def _close_with_sockets(self: Any) -> None:
    """A connection that is closed with unsent requests waits until they are written; nothing writes them any more."""
    _close(self)
    for each in list(_sockets.pop(self, ())):
        each.close()


@wraps(_secure)
def _secure_or_close(self: Any, net: Any, sock: Any, *rest: Any, **named: Any) -> None:
    with _closed_on_failure(sock):  # a certificate or key may be unreadable
        _secure(self, net, sock, *rest, **named)


@wraps(_shake_hands)
async def _shake_hands_or_close(self: Any) -> None:
    with _closed_on_failure(self):
        await _shake_hands(self)


def close_unused_sockets() -> None:
    """Patch kafka-python in this process."""
    KafkaNetSocket.sock_connect = _connect_or_close
    NetworkSelector.close = _close_with_sockets
    KafkaSSLTransport.__init__ = _secure_or_close
    KafkaSSLTransport.handshake = _shake_hands_or_close
