"""Explains the errors of object stores in a sentence with a remedy.

The library's messages quote URLs, keys and whole answers of the server. None of it is passed on but the status and the
server's short code, so no secret can reach a log.
"""

import re
from typing import Literal

from streampca.errors import RETRY_MAY_HELP, StoreBusyError, StoreError
from streampca.settings import store_url

Action = Literal["open", "write", "read", "list", "delete"]

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_BAD_CREDENTIALS = {
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "InvalidTokenId",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_OTHER_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_ENDPOINT"}
_PERMISSIONS = {
    "s3": {"write": "s3:PutObject", "read": "s3:GetObject", "list": "s3:ListBucket", "delete": "s3:DeleteObject"},
    "gs": {action: f"storage.objects.{verb}" for action, verb in (
        ("write", "create"), ("read", "get"), ("list", "list"), ("delete", "delete"))},
    "az": dict.fromkeys(("write", "read", "list", "delete"), "the role Storage Blob Data Contributor"),
}  # fmt: skip


def store_error(action: Action, url: str, name: str, error: Exception) -> StoreError:
    """Explain what failed where, why, and what to do. `url` holds no secrets, `name` may be empty."""
    location = f"{url}/{name}" if name else url
    explanation = _explanation(action, store_url.scheme_of(url) or "", error)
    kind = StoreBusyError if RETRY_MAY_HELP in explanation else StoreError
    return kind(f"cannot {action} {location}: {explanation}")


def is_missing_object(error: FileNotFoundError) -> bool:
    """Return whether only the object is missing, not the bucket or the key that was to open it."""
    return _found(_CODE, str(error)) not in _NO_BUCKET | _BAD_CREDENTIALS


def is_not_implemented(error: Exception) -> bool:
    """Return whether the server does not know this kind of request."""
    return isinstance(error, NotImplementedError) or _found(_STATUS, str(error)) == "501"


def _explanation(action: Action, scheme: str, error: Exception) -> str:
    text = str(error)
    status, code = _found(_STATUS, text), _found(_CODE, text)
    answer = f"{status} {code}".strip()
    credentials, endpoint = store_url.CREDENTIALS[scheme], _ENDPOINT[scheme]
    if any(host in text for host in _METADATA_HOSTS) or "must be specified" in text:
        return f"no credentials were found (set {credentials}, or run with a role that may use the bucket)"
    if code in _BAD_CREDENTIALS or status == "401":
        return f"the credentials are refused: {answer} (correct {credentials}; compare this machine's clock)"
    if code in _NO_BUCKET or (status == "404" and action in ("write", "list")):
        return f"there is no such bucket: {answer} (create it, or correct the URL of the store)"
    if code in _OTHER_REGION or "configured region" in text:
        return "the bucket is in another region (set AWS_REGION to the bucket's)"
    if status == "403":
        return f"no permission: {answer} (allow {_PERMISSIONS[scheme].get(action, 'it')})"
    if "BadScheme" in text or "builder error" in text:
        return "the endpoint is plain HTTP (set AWS_ALLOW_HTTP=true if this is meant)"
    if status:
        is_busy = status.startswith("5") or status == "429"
        remedy = RETRY_MAY_HELP if is_busy else f"is {endpoint} the address of an object store?"
        return f"the server answers {answer} ({remedy})"
    if "Timeout" in text or "TimedOut" in text or "timed out" in text:
        return f"the server does not answer in time ({RETRY_MAY_HELP}; else check the network and {endpoint})"
    if "list response" in text:
        return f"the answer is not a listing (is {endpoint} the address of an object store?)"
    if "HTTP error" in text or "request or response body" in text:
        return f"no connection to the server, or it was cut ({RETRY_MAY_HELP}; else check {endpoint})"
    return "the settings of the object store are not valid (see the provider's environment variables)"


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
