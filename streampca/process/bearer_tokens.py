"""Bearer tokens of HTTP requests, in a file that is read again when it changes.

A line of the file holds the scopes of a token and its SHA-256 in hexadecimal: `read,metrics 9f86d0…`. Empty lines and
lines that begin with # are ignored. The scope `metrics` is for /metrics, `read` for everything that is data.
"""

import hashlib
import hmac
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import structlog

from streampca.errors import SettingsError
from streampca.process.file_versions import read_file_version

log = structlog.get_logger()

Scope = Literal["read", "metrics"]
# Scopes, the SHA-256 of a token in hexadecimal, and perhaps a comment:
_LINE = re.compile(r"((?:read|metrics)(?:,(?:read|metrics))*)\s+([0-9a-fA-F]{64})(?:\s+#.*)?")
_CHECK_FILE_EVERY_S = 1.0


class AccessError(Exception):
    """A request is refused. Status and header are those of RFC 6750."""

    status = 401
    headers: ClassVar = {"WWW-Authenticate": "Bearer"}


class NoTokenError(AccessError):
    """The request has no token."""


class UnknownTokenError(AccessError):
    """The file does not hold the token, or does not hold it any more."""

    headers: ClassVar = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class MissingScopeError(AccessError):
    """The token does not have the scope that the request needs."""

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
        self._version = read_file_version(path)
        self._scopes_by_digest = _read_tokens(path)

    def require_scope(self, scope: Scope, authorization: str) -> None:
        """Raise `AccessError` unless this Authorization header has a token with this scope."""
        if scope not in self._find_scopes(authorization):
            raise MissingScopeError(f"this token may not do that: it lacks the scope {scope}")

    def _find_scopes(self, authorization: str) -> frozenset[str]:
        """Return the scopes of the token in an Authorization header. Raises `AccessError` if it has no known token."""
        self._reread_if_changed()
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise NoTokenError("this needs a token: send Authorization: Bearer TOKEN")
        digest = hashlib.sha256(token.encode("latin-1")).digest()
        # Compare all digests, so that the time of an answer does not help to guess a token.
        scopes_of_token = [
            scopes for valid, scopes in self._scopes_by_digest.items() if hmac.compare_digest(valid, digest)
        ]
        if not scopes_of_token:
            raise UnknownTokenError("this token is not known: it was revoked, or never valid")
        return scopes_of_token[0]

    def knows(self, authorization: str) -> bool:
        """Return whether this Authorization header has a token of the file, whatever its scopes."""
        try:
            self._find_scopes(authorization)
        except AccessError:
            return False
        return True

    def _reread_if_changed(self) -> None:
        """Read the file again if it has changed, at most once a second.

        While the file cannot be read, the known tokens stay valid.
        """
        with self._lock:
            if self._clock() - self._checked_at < _CHECK_FILE_EVERY_S:
                return
            self._checked_at = self._clock()
            version = read_file_version(self._path)
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
    """Read a file of tokens: the scopes of each token, by its SHA-256. Raises `SettingsError`."""
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
        if match is None:
            raise SettingsError(
                f"tokens_file {path}, line {number} is not scopes (read, metrics or both) and the token's SHA-256: "
                "see docs/security.md"
            )
        names, digest = match.groups()
        scopes[bytes.fromhex(digest)] = frozenset(names.split(","))
    return scopes
