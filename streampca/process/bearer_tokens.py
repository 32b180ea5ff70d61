"""Bearer tokens from a file that may change while the process runs.

Each line is a token's scopes and the SHA-256 of the token in hexadecimal: `read,metrics 9f86d0…`. Empty lines and those
that begin with # do not count. `read` is for what shows data, `metrics` for /metrics.
"""

import hashlib
import hmac
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import structlog

from streampca.errors import SettingsError
from streampca.process.renewed import changed_at

log = structlog.get_logger()

Scope = Literal["read", "metrics"]
_LINE = re.compile(r"((?:read|metrics)(?:,(?:read|metrics))*)\s+([0-9a-fA-F]{64})(?:\s+#.*)?")
_LOOKED_AT_EVERY_S = 1.0


class AccessError(Exception):
    """A request is refused; status and header follow RFC 6750."""

    status = 401
    challenge = "Bearer"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": self.challenge}


class NoTokenError(AccessError):
    """The request has no token."""


class UnknownTokenError(AccessError):
    """The file does not hold the token (any more)."""

    challenge = 'Bearer error="invalid_token"'


class MissingScopeError(AccessError):
    """The token has another scope."""

    status = 403
    challenge = 'Bearer error="insufficient_scope"'


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
