"""Sockets that listen for HTTP connections."""

import errno
import os
import socket

from streampca.errors import SettingsError

BACKLOG = 128  # connections that the kernel keeps until they are accepted


def listen(host: str, port: int, port_setting: str) -> socket.socket:
    """Return a socket that listens on the address. The host `::` means all addresses, of IPv4 as well.

    Raises `SettingsError`, which names `port_setting`.
    """
    has_ipv6_and_ipv4 = socket.has_dualstack_ipv6()
    if host == "::" and not has_ipv6_and_ipv4:
        host = "0.0.0.0"  # noqa: S104
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_dual_stack = family == socket.AF_INET6 and has_ipv6_and_ipv4
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual_stack)
    except OSError as error:
        raise _explain_failure(error, f"{host}:{port}", port_setting) from None
    # Accepted connections inherit this option. Without it, answers wait 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _explain_failure(error: OSError, address: str, port_setting: str) -> SettingsError:
    """Return the error that says why nothing can listen on the address, and which setting to change."""
    error_number = error.errno or 0  # 0: an error without a number
    if error_number == errno.EADDRINUSE:
        remedy = f"stop the process there or set {port_setting}, 0 for any"
    elif error_number == errno.EACCES:
        remedy = f"set {port_setting} to one above 1023"
    else:
        remedy = f"set host and {port_setting}"
    # The number is negative if the host cannot be resolved: `create_server` then raises OSError instead of gaierror.
    is_unknown_host = error_number <= 0
    cause = "no such host" if is_unknown_host else os.strerror(error_number)
    return SettingsError(f"cannot listen on {address}: {cause} ({remedy})")


def format_address(listening: socket.socket) -> str:
    """Return the host and the port of a socket, as in a URL."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
