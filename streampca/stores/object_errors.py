"""Explains the errors of object stores in a sentence with a remedy.

obstore's classes do not carry enough: they have no attributes, and a failed listing, a busy server, a lost connection
and a wrong setting are all a `GenericError`. So the status, the server's short code and the names of the library's own
errors are found in the text. Only the status and the code are passed on: the rest may quote secrets.
"""

import re
from typing import Literal

from streampca.errors import RETRY_MAY_HELP, StoreBusyError, StoreError
from streampca.settings import store_url

Action = Literal["open", "write", "read", "list", "delete"]

_STATUS = re.compile(r"status code: (\d{3})")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_NO_BUCKET = r"<Code>(NoSuchBucket|ContainerNotFound)<"
_BAD_CREDENTIALS = (
    r"<Code>(AuthenticationFailed|ExpiredToken|InvalidAccessKeyId|InvalidSecurity|InvalidToken|InvalidTokenId|"
    r"SignatureDoesNotMatch|TokenRefreshRequired)<"
)
_OTHER_REGION = r"<Code>(AuthorizationHeaderMalformed|IllegalLocationConstraintException|PermanentRedirect)<"
_METADATA_HOSTS = r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal"

_EXPLANATIONS = {
    r"<Code>RequestTimeTooSkewed<": f"this machine's clock or the server's is wrong: {{answer}} ({RETRY_MAY_HELP})",
    rf"{_METADATA_HOSTS}|MissingAccount": (
        "no credentials were found (set {credentials}, or run with a role that may use the bucket)"
    ),
    rf"{_BAD_CREDENTIALS}|status code: 401": (
        "the credentials are refused: {answer} (correct {credentials}; compare this machine's clock)"
    ),
    rf"{_NO_BUCKET}|^(write|list) [^<]*status code: 404": (
        "there is no such bucket: {answer} (create it, or correct the URL of the store)"
    ),
    rf"{_OTHER_REGION}|BareRedirect": "the bucket is in another region (set AWS_REGION to the bucket's)",
    r"status code: 403": "no permission: {answer} (allow {permission})",
    r"status code: (429|5)": f"the server answers {{answer}} ({RETRY_MAY_HELP})",
    r"status code: ": "the server answers {answer} (is {endpoint} the address of an object store?)",
    r"kind: Builder": "the endpoint is plain HTTP (set AWS_ALLOW_HTTP=true if this is meant)",
    r"InvalidCertificate": (
        "the server's certificate is not trusted: {certificate} (set SSL_CERT_FILE to its authority's "
        "certificates, PEM, or correct the name in {endpoint})"
    ),
    r"InvalidContentType": "the server does not speak TLS (use http:// in {endpoint}, with AWS_ALLOW_HTTP=true)",
    r"dns error": f"the server's name cannot be resolved ({RETRY_MAY_HELP}; else check {{endpoint}})",
    r"ConnectionRefused": f"the server refuses connections ({RETRY_MAY_HELP}; else check {{endpoint}})",
    r"kind: Timeout": f"the server does not answer in time ({RETRY_MAY_HELP}; else check the network and {{endpoint}})",
    r"HttpError": f"no connection to the server, or it was cut ({RETRY_MAY_HELP}; else check {{endpoint}})",
    r"InvalidListResponse": "the answer is not a listing (is {endpoint} the address of an object store?)",
    r"": "the settings of the object store are not valid (see the provider's environment variables)",
}
"""The explanation of `<action> <text>` by a pattern in it; the first that is found counts."""

_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_ENDPOINT"}
_PERMISSIONS = {
    "s3": {"write": "s3:PutObject", "read": "s3:GetObject", "list": "s3:ListBucket", "delete": "s3:DeleteObject"},
    "gs": {"write": "storage.objects.create", "read": "storage.objects.get", "list": "storage.objects.list",
           "delete": "storage.objects.delete"},
    "az": dict.fromkeys(("write", "read", "list", "delete"), "the role Storage Blob Data Contributor"),
}  # fmt: skip


def store_error(action: Action, url: str, name: str, error: Exception) -> StoreError:
    """Explain what failed where, why, and what to do. `url` holds no secrets, `name` may be empty."""
    text, scheme = f"{action} {error}", store_url.scheme_of(url) or ""
    explanation = next(value for pattern, value in _EXPLANATIONS.items() if re.search(pattern, text)).format(
        answer=f"{_found(_STATUS, text)} {_found(_CODE, text)}".strip(),
        certificate=_found(_CERTIFICATE, text),
        credentials=store_url.CREDENTIALS[scheme],
        endpoint=_ENDPOINT[scheme],
        permission=_PERMISSIONS[scheme].get(action, "it"),
    )
    kind = StoreBusyError if RETRY_MAY_HELP in explanation else StoreError
    return kind(f"cannot {action} {url}/{name}: {explanation}" if name else f"cannot {action} {url}: {explanation}")


def is_missing_object(error: FileNotFoundError) -> bool:
    """Return whether only the object is missing, not the bucket or the key that was to open it."""
    return not re.search(f"{_NO_BUCKET}|{_BAD_CREDENTIALS}", str(error))


def is_not_implemented(error: Exception) -> bool:
    """Return whether the server does not know this kind of request."""
    return isinstance(error, NotImplementedError) or _found(_STATUS, str(error)) == "501"


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
