"""Explains the errors of object stores in a sentence with a remedy.

obstore's error classes do not tell enough: they have no attributes, and a failed listing, a busy server, a lost
connection and a wrong setting are all a `GenericError`. So we look in the text for the status, the server's short code
and the names of the library's own errors. Only the status, the code, and the names of an action and a kind of policy
are passed on: the rest may quote secrets.
"""

import re
from typing import Literal

from streampca.errors import RETRY_MAY_HELP, StoreBusyError, StoreError
from streampca.settings import store_url

Action = Literal["open", "write", "read", "list", "delete"]

_STATUS = re.compile(r"status code: (\d{3})")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CODE = re.compile(r"<Code>([\w.]{1,60})</Code>")
_DENIED_PERMISSION = re.compile(r"not authorized to perform: (\w{1,20}:\w{1,60})")
_POLICY = re.compile(r"(?:explicit deny in an?|because no) (?!identity-based)([\w -]{1,40}?(?:policy|boundary))")
_NO_BUCKET = r"<Code>(NoSuchBucket|ContainerNotFound)<"
_BAD_CREDENTIALS = (
    r"<Code>(AuthenticationFailed|ExpiredToken|InvalidAccessKeyId|InvalidSecurity|InvalidToken|InvalidTokenId|"
    r"SignatureDoesNotMatch|TokenRefreshRequired)<"
)
_OTHER_REGION = r"<Code>(AuthorizationHeaderMalformed|IllegalLocationConstraintException|PermanentRedirect)<"
_ARCHIVED = r"<Code>(InvalidObjectState|BlobArchived|BlobBeingRehydrated)<"
_DISABLED = r"<Code>(AccountIsDisabled|AccountProblem|AllAccessDisabled|UserProjectAccountProblem|UserSuspended)<"
_FIREWALL = r"<Code>(AuthorizationFailure|AuthorizationSourceIPMismatch|SecurityPolicyViolated)<|VPC Service Controls"
_FULL = r"<Code>\w*(QuotaExceeded|StorageFull)<"
_RETAINED = (
    r"<Code>(ObjectLocked|ObjectUnderActiveHold|RetentionPolicyNotMet|BlobImmutable\w*)<|"
    r"<Message>[^<]*(object lock\b|retention policy)"
)
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
    r"kms:[A-Z]": (
        "no permission for the encryption key: {answer} (allow {permission} in the key's policy and to this role)"
    ),
    r"<Code>(KMS\.|KeyVault)|Cloud KMS|<Message>[^<]*(KMS|customer master) key": (
        "the encryption key of the bucket cannot be used: {answer} (enable the key, and allow its use to the bucket)"
    ),
    _FULL: "the quota is used up: {answer} (raise the quota of the bucket or its user, or free space)",
    _ARCHIVED: (
        "the object is in an archive: {answer} (restore it, and exempt the store from the rule that archives objects)"
    ),
    _RETAINED: (
        "a retention rule or object lock protects the object: {answer} (exempt the store from it: old files must go)"
    ),
    _FIREWALL: (
        "a firewall refuses requests from this network: {answer} (allow this machine's network in the rules of the "
        "account or bucket)"
    ),
    _DISABLED: "the account or bucket is disabled: {answer} (ask its owner to enable it)",
    _POLICY.pattern: "a {policy} does not allow {permission}: {answer} (correct the policy, or meet its conditions)",
    r"Content-MD5": "the bucket wants checksums of uploads: {answer} (set AWS_CHECKSUM_ALGORITHM=SHA256)",
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
"""Explanations by a pattern of the text, which begins with the action; the first pattern that is found counts."""

_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_ENDPOINT"}
_PERMISSIONS = {
    "s3": {"write": "s3:PutObject", "read": "s3:GetObject", "list": "s3:ListBucket", "delete": "s3:DeleteObject"},
    "gs": {"write": "storage.objects.create", "read": "storage.objects.get", "list": "storage.objects.list",
           "delete": "storage.objects.delete"},
    "az": dict.fromkeys(("write", "read", "list", "delete"), "the role Storage Blob Data Contributor"),
}  # fmt: skip


def explain_error(action: Action, url: str, name: str, error: Exception) -> StoreError:
    """Return the error to raise after a failed action, with its cause and a remedy.

    `name` is the name of the object, or "" if there is none.
    """
    text = f"{action} {error}"
    scheme = store_url.find_scheme(url) or ""  # never "": a bucket's URL has a scheme
    status_and_code = f"{_search(_STATUS, text)} {_search(_CODE, text)}"
    # The first pattern that is found in the text counts; the last pattern is found in any text.
    template = next(template for pattern, template in _EXPLANATIONS.items() if re.search(pattern, text))
    explanation = template.format(
        answer=status_and_code.strip(),
        certificate=_search(_CERTIFICATE, text),
        credentials=store_url.CREDENTIALS[scheme],
        endpoint=_ENDPOINT[scheme],
        # The permission that the server names, or else the permission that the action needs; "allow it" for "open".
        permission=_search(_DENIED_PERMISSION, text) or _PERMISSIONS[scheme].get(action, "it"),
        policy=_search(_POLICY, text),
    )
    is_temporary = RETRY_MAY_HELP in template  # only the templates of temporary errors contain this hint
    error_type = StoreBusyError if is_temporary else StoreError
    place = f"{url}/{name}" if name else url
    return error_type(f"cannot {action} {place}: {explanation}")


def is_missing_object(error: FileNotFoundError) -> bool:
    """Return whether only the object is missing, and neither the bucket nor the access key."""
    return not re.search(f"{_NO_BUCKET}|{_BAD_CREDENTIALS}", str(error))


def is_not_implemented(error: Exception) -> bool:
    """Return whether the server does not know this kind of request."""
    return isinstance(error, NotImplementedError) or _search(_STATUS, str(error)) == "501"


def _search(pattern: re.Pattern[str], text: str) -> str:
    """Return what the group of the pattern matches in the text, or "" if the text does not match."""
    match = pattern.search(text)
    return match[1] if match else ""
