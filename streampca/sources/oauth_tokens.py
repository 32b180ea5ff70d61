"""Tokens for SASL OAUTHBEARER: from the token endpoint of an identity provider, or signed for AWS MSK."""

import contextlib
import functools
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import parse_qsl

import structlog

from streampca.errors import RETRY_MAY_HELP, NoBrokerError, SourceError
from streampca.settings.kafka import KafkaSettings, find_aws_region
from streampca.sources.broker_errors import one_line

_TIMEOUT_S = 3.0
_RETRY_AFTER_S = 2.0
_RENEW_AFTER = 0.5  # share of a token's lifetime after which it is renewed; librdkafka asks for a new token at 0.8
# A token that expires within this time is not given to clients, since the clocks of some brokers may be ahead.
_TOO_SHORT_TO_USE_S = 60.0
# For this long, a client may log in with an old token, after the token has expired or a new one could not be requested:
# librdkafka asks for a token again ten seconds after a failure.
_CLIENTS_KEEP_OLD_TOKEN_S = 20.0
_TRY_LATER = (408, 429)  # HTTP statuses
_REPLACED_TOKENS_REMEMBERED = 100  # more than are replaced within `_CLIENTS_KEEP_OLD_TOKEN_S`

log = structlog.get_logger()


class OAuthTokens:
    """The tokens of one login, for all its clients and threads. All times are in seconds since 1970."""

    def __init__(self, request: Callable[[], tuple[str, float]]) -> None:
        """`request` asks for a new token, and returns it with its expiry."""
        self._request = request
        self._lock = threading.Lock()
        self._token = ""  # the newest; "" before the first request
        self._expiry = 0.0
        self._next_request_at = 0.0
        self._failure: SourceError | None = None  # of the last request; None if it succeeded
        self._failed_at = 0.0
        # When each replaced token ended: at its expiry, or at its replacement if it had expired before. Shortly after
        # this time, brokers may refuse a client that has not taken the new token yet: see `may_be_expired`.
        self._ends_of_replaced_tokens: deque[float] = deque(maxlen=_REPLACED_TOKENS_REMEMBERED)

    @property
    def may_be_expired(self) -> bool:
        """Whether brokers may refuse a client because its token has expired, so that a later login may succeed.

        1. If the newest token has expired, no client has a valid token. A later token helps, if one can be had.
        2. If the last request for a token has just failed, a client may still use its old token: it asks again later.
        3. If a replaced token has just reached its end, a client may use it: clients take new tokens some seconds late.
        """
        now = time.time()
        # 1. The newest token:
        is_newest_expired = self._token != "" and now >= self._expiry
        if is_newest_expired:
            # After `NoBrokerError`, a later request may succeed: the token endpoint did not answer, or is overloaded.
            # After any other failure, such as a refused login, no later token can be had.
            can_get_later_token = self._failure is None or isinstance(self._failure, NoBrokerError)
            return can_get_later_token
        # 2. The last request:
        has_request_just_failed = now - self._failed_at < _CLIENTS_KEEP_OLD_TOKEN_S
        # 3. Replaced tokens:
        has_replaced_token_just_ended = any(
            0 <= now - end < _CLIENTS_KEEP_OLD_TOKEN_S for end in self._ends_of_replaced_tokens
        )
        return has_request_just_failed or has_replaced_token_just_ended

    def current(self) -> tuple[str, float]:
        """Return a usable token and its expiry.

        If no new token can be had, return the old token while it is usable. When it is not usable any more, raise
        `SourceError` if the login is refused, and `NoBrokerError` if a later request may succeed.
        """
        with self._lock:
            if time.time() >= self._next_request_at:
                self._renew(time.time())
            if self._failure is not None:
                self._raise_if_old_token_is_useless(self._failure)
            return self._token, self._expiry

    def _raise_if_old_token_is_useless(self, failure: SourceError) -> None:
        """After a failed request, raise its error unless the old token can still be used."""
        left_s = self._expiry - time.time()
        if left_s <= 0:
            raise failure
        if left_s < _TOO_SHORT_TO_USE_S:
            # The token may be useless, since a broker's clock may be ahead. `NoBrokerError` lets the caller try again,
            # even if `failure` is final.
            raise NoBrokerError(str(failure))

    def _renew(self, now: float) -> None:
        """Request a token. If this fails, keep the old token and note the error in `_failure`."""
        try:
            token, expiry = self._request()
        except SourceError as error:
            if self._token and self._failure is None:
                log.warning("no new token, waiting", error=str(error))
            self._failure = error
            self._failed_at = now
            self._next_request_at = now + _RETRY_AFTER_S
            return
        if self._token:
            # Clients may use the old token until it expires. If it has expired already, they have used it until now,
            # since they had no other.
            end_of_old_token = max(self._expiry, now)
            # If brokers refuse a client soon after this time, `may_be_expired` says that an old token may be the cause.
            self._ends_of_replaced_tokens.append(end_of_old_token)
        self._token = token
        self._expiry = expiry
        self._failure = None
        self._next_request_at = now + _RENEW_AFTER * (expiry - now)


def create_tokens(settings: KafkaSettings) -> OAuthTokens | None:
    """Return the tokens of the login in the settings; None if the login needs no tokens.

    All clients with the same login share one `OAuthTokens`. Raises `NoBrokerError` or `SourceError` without a token.
    """
    secret = settings.sasl_password
    if settings.sasl_mechanism == "AWS_MSK_IAM":
        tokens = _shared_tokens(_sign_for_msk, find_aws_region(settings.bootstrap_servers))
    elif settings.sasl_mechanism == "OAUTHBEARER" and secret:  # the settings require a secret: only mypy needs `secret`
        login = (settings.sasl_token_url, settings.sasl_username, secret.get_secret_value())
        tokens = _shared_tokens(_request_token, *login)
    else:
        return None
    tokens.current()  # raises if there is no token
    return tokens


@functools.cache
def _shared_tokens(request: Callable[..., tuple[str, float]], *login: str | None) -> OAuthTokens:
    """Return the tokens that all clients with this login share."""
    return OAuthTokens(functools.partial(request, *login))


def _request_token(url: str, client: str, secret: str) -> tuple[str, float]:
    """Request a token for client credentials (RFC 6749, section 4.4), and return it with its expiry.

    Raises `NoBrokerError` if a later request may succeed, else `SourceError`.
    """
    import httpx

    endpoint, _, query = url.partition("?")
    asked_at = time.time()
    more_fields = dict(parse_qsl(query))  # such as a scope
    form = {"grant_type": "client_credentials"} | more_fields
    try:
        answer = httpx.post(endpoint, data=form, auth=(client, secret), timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NoBrokerError(
            f"no token endpoint answers at {endpoint} ({one_line(error)}); check sasl_token_url"
        ) from None
    with contextlib.suppress(ValueError, KeyError, TypeError):  # the answer holds no token
        issued = answer.json()
        return str(issued["access_token"]), asked_at + float(issued["expires_in"])
    raise _make_refusal_error(endpoint, answer.status_code, answer.text)


def _make_refusal_error(endpoint: str, status: int, text: str) -> SourceError:
    """Return the error for an answer of a token endpoint with this HTTP status and text, which holds no token."""
    # The text need not be JSON.
    reason = re.search(r'"error"\s*:\s*"(\w+)"', text)
    status_and_reason = f"{status} {reason[1]}" if reason else str(status)
    refusal = f"the token endpoint {endpoint} gives no token ({status_and_reason})"
    if status >= 500 or status in _TRY_LATER:
        return NoBrokerError(f"{refusal}; {RETRY_MAY_HELP}")
    return SourceError(f"{refusal}; check sasl_username, sasl_password and sasl_token_url")


def _sign_for_msk(region: str) -> tuple[str, float]:
    """Sign a token with the credentials that AWS's own chain finds, and return it with its expiry.

    Raises `NoBrokerError`.
    """
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    try:
        token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # botocore fails in many ways
        # Without credentials, the signer reads attributes of None.
        is_without_credentials = isinstance(error, AttributeError)
        cause = "there are none" if is_without_credentials else one_line(error)
        raise NoBrokerError(f"AWS_MSK_IAM needs credentials of AWS ({cause}): see AWS's credential chain") from None
    return token, expiry_ms / 1000
