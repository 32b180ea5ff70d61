"""Sockets that listen, with their certificates and bearer tokens. The files of both are read again when they change.

A line of a file of tokens holds the scopes of a token and its SHA-256 in hexadecimal: `read,metrics 9f86d0…`. Empty
lines and lines that begin with # are ignored. The scope `metrics` is for /metrics, `read` for everything that is data.
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
from streampca.process.renewed import file_version, file_versions

log = structlog.get_logger()

BACKLOG = 128  # connections that the kernel keeps until they are accepted
Scope = Literal["read", "metrics"]
_LINE = re.compile(r"((?:read|metrics)(?:,(?:read|metrics))*)\s+([0-9a-fA-F]{64})(?:\s+#.*)?")
_CHECK_FILE_EVERY_S = 1.0


def listen(host: str, port: int, port_setting: str) -> socket.socket:
    """Return a socket that listens on the address. Raises `SettingsError` that names the settings.

    The host `::` means all addresses of IPv6 and IPv4. If the kernel has no IPv6, it means those of IPv4.
    """
    has_both = socket.has_dualstack_ipv6()
    if host == "::" and not has_both:
        host = "0.0.0.0"  # noqa: S104
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_dual_stack = family == socket.AF_INET6 and has_both
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual_stack)
    except OSError as error:
        number = error.errno or 0
        if number == errno.EADDRINUSE:
            remedy = f"stop the process there or set {port_setting}, 0 for any"
        elif number == errno.EACCES:
            remedy = f"set {port_setting} to one above 1023"
        else:
            remedy = f"set host and {port_setting}"
        is_unknown_host = number <= 0  # getaddrinfo has negative numbers
        cause = "no such host" if is_unknown_host else os.strerror(number)
        raise SettingsError(f"cannot listen on {host}:{port}: {cause} ({remedy})") from None
    # Accepted connections inherit this option. With Nagle's algorithm, the second answer on a kept-alive connection
    # would wait 40 ms for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the host and the port of a socket, as in a URL."""
    host, port = listening.getsockname()[:2]  # IPv6 has two more fields
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server_context(folder: Path | None) -> ssl.SSLContext | None:
    """Return a TLS context whose new connections get the certificate that the folder then holds.

    The folder holds tls.crt and tls.key, named as in a Secret of Kubernetes. If it holds client-ca.crt at the start,
    clients must have a certificate that this authority has signed. Without a folder, return None. Raises
    `SettingsError`.
    """
    if folder is None:
        return None
    cert = folder / "tls.crt"
    key = folder / "tls.key"
    client_ca = folder / "client-ca.crt"
    needs_client_cert = client_ca.exists()
    files = [cert, key]
    if needs_client_cert:
        files.append(client_ca)

    def read() -> ssl.SSLContext:
        cafile = client_ca if needs_client_cert else None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=cafile)
        context.load_cert_chain(cert, key)
        context.verify_mode = ssl.CERT_REQUIRED if needs_client_cert else ssl.CERT_NONE
        return context

    try:
        current_version = file_versions(files)
        current = read()
        listening_context = read()
    except OSError as error:  # ssl.SSLError is a subclass
        raise SettingsError(f"{cert} and {key} cannot be used for TLS: {error}") from None

    def give_current(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal current_version, current
        try:
            version = file_versions(files)
            if version != current_version:
                current = read()
                current_version = version
                log.info("certificate read again", file=str(cert))
        except OSError as error:
            # The files do not fit while they are replaced one after the other; the next connection tries again.
            log.error("certificate not read again", file=str(cert), error=str(error))
        connection.context = current

    listening_context.sni_callback = give_current
    return listening_context


class AccessError(Exception):
    """A request is refused. Status and header are those of RFC 6750."""

    status = 401
    headers: ClassVar = {"WWW-Authenticate": "Bearer"}


class NoTokenError(AccessError):
    """The request has no token."""


class UnknownTokenError(AccessError):
    """The file does not hold the token, or no longer."""

    headers: ClassVar = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class MissingScopeError(AccessError):
    """The token has another scope."""

    status = 403
    headers: ClassVar = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}


class BearerTokens:
    """The tokens of a file. Safe to use from any thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `SettingsError` if the file cannot be read."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_at = clock()
        self._version = file_version(path)
        self._scopes_by_digest = _read_tokens(path)

    def check(self, scope: Scope, authorization: str) -> None:
        """Raise `AccessError` unless this Authorization header has a token with this scope."""
        if scope not in self._find_scopes(authorization):
            raise MissingScopeError(f"this token may not do that: it lacks the scope {scope}")

    def _find_scopes(self, authorization: str) -> frozenset[str]:
        """Return the scopes of the token in an Authorization header. Raises `AccessError` without a known token."""
        self._reread_if_changed()
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        digest = hashlib.sha256(token.encode("latin-1")).digest()
        found = None
        # The guess is compared with all tokens, so that the time of an answer does not tell how close the guess is.
        for accepted, scopes in self._scopes_by_digest.items():
            if hmac.compare_digest(accepted, digest):
                found = scopes
        if scheme.lower() != "bearer" or not token:
            raise NoTokenError("this needs a token: send Authorization: Bearer TOKEN")
        if found is None:
            raise UnknownTokenError("this token is not known: it was revoked, or never valid")
        return found

    def has(self, authorization: str) -> bool:
        """Return whether this Authorization header has a token of the file, whatever its scopes."""
        try:
            return bool(self._find_scopes(authorization))
        except AccessError:
            return False

    def _reread_if_changed(self) -> None:
        """Read the file again if it has changed, at most once a second.

        If it cannot be read, the tokens stay as they are, so a token that the file revokes is still valid. The next
        check tries again.
        """
        with self._lock:
            if self._clock() - self._checked_at < _CHECK_FILE_EVERY_S:
                return
            self._checked_at = self._clock()
            version = file_version(self._path)
            if version == self._version:
                return
            try:
                self._scopes_by_digest = _read_tokens(self._path)
            except SettingsError as error:
                log.error("tokens not read again", error=str(error))
            else:
                self._version = version
                log.info("tokens read again", tokens=len(self._scopes_by_digest))


def _read_tokens(path: Path) -> Mapping[bytes, frozenset[str]]:
    """Return the scopes of each token by its SHA-256. Raises `SettingsError`."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"tokens_file {path} cannot be read: {error}") from None
    scopes = {}
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise SettingsError(
                f"tokens_file {path}, line {number} is not scopes (read, metrics or both) and the token's SHA-256: "
                "see docs/security.md"
            )
        scopes[bytes.fromhex(match[2])] = frozenset(match[1].split(","))
    return scopes
