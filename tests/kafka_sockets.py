"""Closes the sockets that kafka-python makes and does not get to use; it leaves them to the garbage collector.

Each would be a ResourceWarning, and that an error in whatever test runs by then. Those of clients that a test forgets
to close are left alone.
"""

from functools import wraps
from typing import Any

from kafka.net.inet import KafkaNetSocket
from kafka.net.transport import KafkaSSLTransport

_connect, _secure, _shake_hands = KafkaNetSocket.sock_connect, KafkaSSLTransport.__init__, KafkaSSLTransport.handshake


@wraps(_connect)
async def _connect_or_close(self: Any, net: Any, sock: Any, *rest: Any, **named: Any) -> Any:
    try:
        return await _connect(self, net, sock, *rest, **named)
    except BaseException:  # refused, or the client was closed meanwhile
        sock.close()
        raise


@wraps(_secure)
def _secure_or_close(self: Any, net: Any, sock: Any, *rest: Any, **named: Any) -> None:
    try:
        _secure(self, net, sock, *rest, **named)
    except BaseException:  # a certificate or a key that cannot be read
        sock.close()
        raise


@wraps(_shake_hands)
async def _shake_hands_or_close(self: Any) -> None:
    try:
        await _shake_hands(self)
    except BaseException:
        self.close()
        raise


def close_what_is_not_used() -> None:
    """From now on, in this process."""
    KafkaNetSocket.sock_connect = _connect_or_close
    KafkaSSLTransport.__init__ = _secure_or_close
    KafkaSSLTransport.handshake = _shake_hands_or_close
