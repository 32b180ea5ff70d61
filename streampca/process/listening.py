"""Ports: sockets that listen, and their certificates and bearer tokens, which are read again when their files change.

Each line of a file of tokens is a token's scopes and the SHA-256 of the token in hexadecimal: `read,metrics 9f86d0…`.
Empty lines and those that begin with # do not count. `read` is for what shows data, `metrics` for /metrics.
"""

import errno
import hashlib
import hmac
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import structlog

from streampca.errors import SettingsError
from streampca.process.renewed import changed_at, versions

log = structlog.get_logger()

BACKLOG = 128  # connections that are not accepted yet
Scope = Literal["read", "metrics"]
_LINE = re.compile(r"((?:read|metrics)(?:,(?:read|metrics))*)\s+([0-9a-fA-F]{64})(?:\s+#.*)?")
_LOOKED_AT_EVERY_S = 1.0


def listen(host: str, port: int, port_setting: str) -> socket.socket:
    """A socket that listens on the address. Raises `SettingsError` that names the settings.

    `::` is all addresses of IPv6 and IPv4, and of IPv4 alone where the kernel has no IPv6.
    """
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104
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

    try:
        version, current, context = versions(files), read(), read()
    except OSError as error:  # ssl.SSLError is one of them
        raise SettingsError(f"{cert} and {key} cannot be used for TLS: {error}") from None

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal version, current
        try:
            if (newest := versions(files)) != version:
                current, version = read(), newest
                log.info("certificate read again", file=str(cert))
        except OSError as error:  # the files may be changed one after the other
            log.error("certificate not read again", file=str(cert), error=str(error))
        connection.context = current

    context.sni_callback = choose
    return context


class AccessError(Exception):
    """A request is refused; status and header follow RFC 6750."""

    status = 401
    headers: ClassVar = {"WWW-Authenticate": "Bearer"}


class NoTokenError(AccessError):
    """The request has no token."""


class UnknownTokenError(AccessError):
    """The file does not hold the token (any more)."""

    headers: ClassVar = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class MissingScopeError(AccessError):
    """The token has another scope."""

    status = 403
    headers: ClassVar = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}


class BearerTokens:
    """The tokens of a file. Safe to use from any thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `SettingsError` if the file cannot be read."""
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self._looked_at, self._changed = clock(), changed_at(self._path)
        self._scopes = _read(path)

    def check(self, scope: Scope, authorization: str) -> None:
        """Raise `AccessError` unless an Authorization header has a token of this scope."""
        if scope not in self._scopes_of(authorization):
            raise MissingScopeError(f"this token may not do that: it lacks the scope {scope}")

    def _scopes_of(self, authorization: str) -> frozenset[str]:
        self._read_again()
        kind, _, token = authorization.partition(" ")
        digest = hashlib.sha256(token.strip().encode("latin-1")).digest()
        allowed = None
        for accepted, scopes in self._scopes.items():  # all of them: the time says nothing about a token
            allowed = scopes if hmac.compare_digest(accepted, digest) else allowed
        if kind.lower() != "bearer" or not token.strip():
            raise NoTokenError("this needs a token: send Authorization: Bearer TOKEN")
        if allowed is None:
            raise UnknownTokenError("this token is not known: it was revoked, or never valid")
        return allowed

    def has(self, authorization: str) -> bool:
        """Return whether an Authorization header has a token of the file."""
        try:
            return bool(self._scopes_of(authorization))
        except AccessError:
            return False

    def _read_again(self) -> None:
        """Read a file that has changed. One that cannot be read changes nothing."""
        with self._lock:
            if self._clock() - self._looked_at < _LOOKED_AT_EVERY_S:
                return
            self._looked_at = self._clock()
            if (changed := changed_at(self._path)) == self._changed:
                return
            try:
                self._scopes = _read(self._path)
            except SettingsError as error:  # the next look tries again: until then revoked tokens are valid
                log.error("tokens not read again", error=str(error))
            else:
                self._changed = changed
                log.info("tokens read again", tokens=len(self._scopes))


def _read(path: Path) -> Mapping[bytes, frozenset[str]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"tokens_file {path} cannot be read: {error}") from None
    scopes = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            if not (match := _LINE.fullmatch(line.strip())):
                raise SettingsError(
                    f"tokens_file {path}, line {number} is not scopes (read, metrics or both) and the token's SHA-256: "
                    "see docs/security.md"
                )
            scopes[bytes.fromhex(match[2])] = frozenset(match[1].split(","))
    return scopes
