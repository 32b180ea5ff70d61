"""Tokens for SASL OAUTHBEARER: of an identity provider (OIDC, client credentials), or of AWS for MSK."""

import os
import re
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import parse_qs, urlsplit

from streampca.errors import SettingsError
from streampca.settings import KafkaSettings
from streampca.sources.broker_errors import one_line

_TIMEOUT_S = 5.0
_FRESH = 0.8  # share of its life after which a token is replaced: there is time to try again
_AWS_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class TokenRefusedError(Exception):
    """The provider refuses the client's credentials."""


class Tokens:
    """The current token of one client. Safe to use from any thread."""

    def __init__(self, request: Callable[[], tuple[str, float]], clock: Callable[[], float] = time.time) -> None:
        """`request` gets a token, and when it expires, in seconds since 1970."""
        self._request, self._clock, self._lock = request, clock, threading.Lock()
        self._token, self._expires_at, self._renew_at = "", 0.0, 0.0

    def current(self) -> tuple[str, float]:
        """A valid token, and when it expires. Raises `TokenRefusedError`, or `OSError` if nobody answers."""
        with self._lock:
            now = self._clock()
            if now >= self._renew_at:
                try:
                    self._token, self._expires_at = self._request()
                except OSError:
                    if now >= self._expires_at:
                        raise
                else:
                    self._renew_at = now + _FRESH * (self._expires_at - now)
            return self._token, self._expires_at


@lru_cache(maxsize=8)  # all connections of a process use the same
def tokens_of(settings: KafkaSettings) -> Tokens | None:
    """The tokens that these settings ask for; None if they log in otherwise. Raises `SettingsError`."""
    if settings.sasl_mechanism == "AWS_MSK_IAM":
        return Tokens(lambda: _of_aws(region)) if (region := _region(settings)) else None
    return Tokens(lambda: _of_provider(settings)) if settings.sasl_mechanism == "OAUTHBEARER" else None


def check_login(settings: KafkaSettings) -> None:
    """Get a token if one is needed. Raises as `Tokens.current`, and `SettingsError`."""
    if tokens := tokens_of(settings):
        tokens.current()


def _of_provider(settings: KafkaSettings) -> tuple[str, float]:
    import httpx  # an optional extra

    url = settings.sasl_token_url or ""
    place, scope = url.partition("?")[0], parse_qs(urlsplit(url).query).get("scope", [])
    secret = settings.sasl_password.get_secret_value() if settings.sasl_password else ""
    asked = {"grant_type": "client_credentials"} | ({"scope": scope[0]} if scope else {})
    try:
        answer = httpx.post(place, data=asked, auth=(settings.sasl_username or "", secret), timeout=_TIMEOUT_S)
        if answer.status_code >= 500 or answer.status_code == 429:
            raise OSError(f"no answer from the token endpoint {place}: status {answer.status_code}")
        if not answer.is_success:
            raise TokenRefusedError(f"the token endpoint {place} answers {answer.status_code}")
        found = answer.json()
        return str(found["access_token"]), time.time() + float(found.get("expires_in", 300))
    except httpx.TransportError as error:
        raise OSError(f"no answer from the token endpoint {place}: {one_line(error)}") from None
    except (ValueError, KeyError, TypeError):
        raise TokenRefusedError(f"the token endpoint {place} answers without an access_token") from None


def _of_aws(region: str) -> tuple[str, float]:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # an optional extra

    try:
        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # botocore has many kinds
        raise TokenRefusedError(f"AWS gives no credentials: {one_line(error)}") from None
    return token, expires_ms / 1000


def _region(settings: KafkaSettings) -> str:
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = _AWS_HOST.search(settings.bootstrap_servers)
    if not (region := named or (found[1] if found else "")):
        raise SettingsError("sasl_mechanism AWS_MSK_IAM needs a region: set AWS_REGION")
    return region
