"""Sockets that listen, and their certificates, which are read again when their files change."""

import errno
import os
import socket
import ssl
from pathlib import Path

import structlog

from streampca.errors import SettingsError
from streampca.process.renewed import changed_at

log = structlog.get_logger()

BACKLOG = 128  # connections that are not accepted yet


def listen(host: str, port: int, port_setting: str) -> socket.socket:
    """A socket that listens on the address; `::` includes IPv4. Raises `SettingsError` that names the settings."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        number = error.errno or 0
        cause = os.strerror(number) if number > 0 else "no such host"  # an error of getaddrinfo
        remedy = {
            errno.EADDRINUSE: f"stop the process there or set {port_setting}, 0 for any",
            errno.EACCES: f"set {port_setting} to one above 1023",
        }.get(number, f"set host and {port_setting}")
        raise SettingsError(f"cannot listen on {host}:{port}: {cause} ({remedy})") from None
    # Inherited by connections: with Nagle's algorithm, answers on a kept-alive one wait 40 ms for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Host and port, as in a URL."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server_context(folder: Path | None) -> ssl.SSLContext | None:
    """A context whose new connections have the certificate that the folder holds then; None without a folder.

    It holds tls.crt and tls.key, named as in a Secret of Kubernetes. If there is a client-ca.crt at the start, clients
    must have a certificate that it has signed. Raises `SettingsError`.
    """
    if folder is None:
        return None
    cert, key, client_ca = folder / "tls.crt", folder / "tls.key", folder / "client-ca.crt"
    files = [cert, key, *([client_ca] if client_ca.exists() else [])]

    def read() -> ssl.SSLContext:
        with_ca = client_ca in files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca if with_ca else None)
        context.load_cert_chain(cert, key)
        context.verify_mode = ssl.CERT_REQUIRED if with_ca else ssl.CERT_NONE
        return context

    def versions() -> list[tuple[int, int] | None]:
        return [changed_at(path) for path in files]

    try:
        version, current, context = versions(), read(), read()
    except OSError as error:  # ssl.SSLError is one of them
        raise SettingsError(f"{cert} and {key} cannot be used for TLS: {error}") from None

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal version, current
        try:
            if (newest := versions()) != version:
                current, version = read(), newest
                log.info("certificate read again", file=str(cert))
        except OSError as error:  # the files may be changed one after the other
            log.error("certificate not read again", file=str(cert), error=str(error))
        connection.context = current

    context.sni_callback = choose
    return context
