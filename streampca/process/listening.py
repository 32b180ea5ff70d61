"""Sockets that listen, with an error that names the setting to change."""

import errno
import os
import socket

from streampca.errors import SettingsError

BACKLOG = 128  # connections that are not accepted yet


def listen(host: str, port: int, port_setting: str) -> socket.socket:
    """A socket that listens on the address, on `::` for IPv4, too; port 0: any free one.

    Raises `SettingsError`; `port_setting` is the name of the setting with the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        cause, number = str(error), getattr(error, "errno", None)
        if isinstance(error.__context__, socket.gaierror):
            cause = "no such host"
        elif number:
            cause = os.strerror(number)
        remedy = f"set host and {port_setting}"
        if number == errno.EADDRINUSE:
            remedy = f"stop the process there or set {port_setting}, 0 for any"
        elif number == errno.EACCES:
            remedy = f"set {port_setting} to one above 1023"
        raise SettingsError(f"cannot listen on {host}:{port}: {cause} ({remedy})") from None
    # Inherited by connections: with Nagle's algorithm, answers on a kept-alive one wait 40 ms for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Host and port, as in a URL."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
