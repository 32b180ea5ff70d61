"""The object store in trouble: what it raises, how soon, and that no secret is in it."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable

import obstore
import pytest
from obstore.store import from_url

from streampca.errors import StoreBusyError, StoreError
from streampca.stores.choice import open_store
from streampca.stores.object_store import ObjectStore, Timeouts
from tests.errors import refusal
from tests.object_server import Fault, S3Proxy
from tests.ports import free_ports
from tests.s3_process import BUCKET, S3Process

pytestmark = pytest.mark.slow

SECRETS = ("a-key-id", "a-secret-key")
BRIEF = Timeouts(retry_s=0.3)  # an answer may be late: this machine may be busy
IMPATIENT = Timeouts(silence_s=2, retry_s=0.3)
OPERATIONS: dict[str, Callable[[ObjectStore], object]] = {
    "write": lambda store: store.write("a/b", b"new"),
    "read": lambda store: store.read("a/b"),
    "list": lambda store: store.names("a"),
    "delete": lambda store: store.delete("a/b"),
}


def new_store(bucket: str = BUCKET, timeouts: Timeouts = BRIEF) -> ObjectStore:
    return ObjectStore(f"s3://{bucket}/{uuid.uuid4().hex}", timeouts)


def read_failure(action: Callable[[], object]) -> str:
    """The error's sentence; it holds no secret, nor does what the traceback would show."""
    with pytest.raises(StoreError) as caught:
        action()
    text = str(caught.value)
    error = caught.value
    assert "\n" not in text
    assert error.__suppress_context__
    assert not any(secret in text for secret in SECRETS)
    return text


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (403, "SignatureDoesNotMatch", "the credentials are refused: 403 SignatureDoesNotMatch (correct AWS_ACCESS"),
        (404, "InvalidAccessKeyId", "the credentials are refused: 404 InvalidAccessKeyId"),
        (401, "", "the credentials are refused: 401"),
        (403, "AccessDenied", "no permission: 403 AccessDenied (allow s3:"),
        (404, "NoSuchBucket", "there is no such bucket: 404 NoSuchBucket (create it"),
        (400, "AuthorizationHeaderMalformed", "in another region (set AWS_REGION"),
        (503, "SlowDown", "the server answers 503 SlowDown (a retry may help)"),
        (403, "RequestTimeTooSkewed", "clock or the server's is wrong: 403 RequestTimeTooSkewed (a retry may help)"),
        (418, "", "the server answers 418 (is AWS_ENDPOINT_URL the address of an object store?)"),
    ],
)
def test_every_refusal_is_one_sentence_with_a_remedy(proxy: S3Proxy, status: int, code: str, sentence: str) -> None:
    store = new_store()
    proxy.begin(Fault("status", status, code))
    for name, operation in OPERATIONS.items():
        text = read_failure(lambda operation=operation: operation(store))  # type: ignore[misc]
        assert text.startswith(f"cannot {name} s3://{BUCKET}/")
        assert sentence in text
    assert sentence in read_failure(store.check)


ROLE = "User: arn:aws:sts::111122223333:assumed-role/a-secret-key/i is not authorized to perform:"
LACKS = "because no identity-based policy allows the action"


@pytest.mark.parametrize(
    ("status", "code", "message", "sentence"),
    [
        (403, "AccessDenied", f"{ROLE} kms:GenerateDataKey on resource: x {LACKS}", "(allow kms:GenerateDataKey in"),
        (403, "AccessDenied", f"{ROLE} kms:Decrypt on the resource x {LACKS}", "(allow kms:Decrypt in"),
        (400, "KMS.DisabledException", "arn:aws:kms:x is disabled.", "the bucket cannot be used: 400 KMS.Disabled"),
        (403, "AccessDenied", "Permission denied on Cloud KMS key.", "key of the bucket cannot be used"),
        (403, "KeyVaultEncryptionKeyNotFound", "", "key of the bucket cannot be used"),
        (403, "QuotaExceeded", "", "the quota is used up: 403 QuotaExceeded (raise"),
        (400, "XMinioAdminBucketQuotaExceeded", "Bucket quota exceeded", "the quota is used up: 400 XMinioAdmin"),
        (507, "XMinioStorageFull", "", "the quota is used up: 507 XMinioStorageFull"),
        (403, "InvalidObjectState", "not valid for the object's storage class", "in an archive: 403 InvalidObject"),
        (409, "BlobArchived", "This operation is not permitted on an archived blob.", "in an archive: 409 Blob"),
        (403, "AccessDenied", "Access Denied because object protected by object lock.", "lock protects the object"),
        (403, "RetentionPolicyNotMet", "Object 'a' is subject to a retention policy", "a retention rule or"),
        (409, "BlobImmutableDueToPolicy", "", "a retention rule or object lock"),
        (403, "AuthorizationFailure", "This request is not authorized to perform this operation.", "a firewall"),
        (403, "SecurityPolicyViolated", "Request violates VPC Service Controls.", "a firewall refuses"),
        (403, "AllAccessDisabled", "", "the account or bucket is disabled"),
        (403, "AccessDenied", f"{ROLE} s3:GetObjectTagging on resource: x {LACKS}", "(allow s3:GetObjectTagging)"),
        (
            403, "AccessDenied", f"{ROLE} s3:PutObject on resource: x with an explicit deny in a resource-based policy",
            "a resource-based policy does not allow s3:PutObject: 403 AccessDenied (correct the policy",
        ),
        (
            403, "AccessDenied", f"{ROLE} s3:PutObject on resource: x because no VPC endpoint policy allows the action",
            "a VPC endpoint policy does not allow s3:PutObject",
        ),
        (400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required", "AWS_CHECKSUM_ALGORITHM"),
    ],
)  # fmt: skip
def test_a_refusal_is_explained_by_what_the_answer_names_and_not_by_a_right_that_the_role_has(
    proxy: S3Proxy, status: int, code: str, message: str, sentence: str
) -> None:
    store = new_store()
    proxy.begin(Fault("status", status, code, message=message))
    for operation in ("read", "delete"):
        text = read_failure(lambda operation=operation: OPERATIONS[operation](store))  # type: ignore[misc]
        assert sentence in text
        assert not any(wrong in text for wrong in ("allow s3:GetObject)", "allow s3:DeleteObject)", "AWS_ENDPOINT_URL"))


def test_an_error_that_a_retry_may_fix_is_a_busy_store(proxy: S3Proxy) -> None:
    store = new_store(timeouts=IMPATIENT)
    for status, only in ((429, ""), (500, ""), (404, "read")):
        proxy.begin(Fault("status", status, "NoSuchKey", only=only))
        assert "a retry may help" in refusal(StoreBusyError, store.check)
    for kind, only in (("reset", ""), ("cut", ""), ("cut", "list"), ("hang", "")):
        proxy.begin(Fault(kind, only=only))
        assert "a retry may help" in refusal(StoreBusyError, store.check)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_check_notices_each_permission_that_is_missing(proxy: S3Proxy, operation: str) -> None:
    store = new_store(timeouts=Timeouts())
    permission = {"write": "PutObject", "read": "GetObject", "list": "ListBucket", "delete": "DeleteObject"}[operation]
    proxy.begin(Fault("status", 403, "AccessDenied", only=operation))
    assert read_failure(store.check).endswith(f"(allow s3:{permission})")
    proxy.end()
    store.check()


def test_a_missing_bucket_is_not_taken_for_a_missing_file(s3: S3Process) -> None:
    store = new_store("no-such-bucket")
    for action in (lambda: store.read("a/b"), lambda: store.names("a"), lambda: store.write("a/b", b""), store.check):
        assert "there is no such bucket" in read_failure(action)


def test_the_error_names_a_server_that_is_away_or_plain_http(s3: S3Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert "refuses connections" in read_failure(new_store().check)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    assert "plain HTTP (set AWS_ALLOW_HTTP=true" in read_failure(new_store().check)


def test_missing_credentials_are_named(s3: S3Process, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254.invalid")
    assert "no credentials were found (set AWS_ACCESS_KEY_ID" in read_failure(new_store().check)
    assert "no credentials were found (set AZURE_STORAGE_ACCOUNT_NAME" in read_failure(
        lambda: open_store("az://container/a")
    )


@pytest.mark.parametrize("kind", ["hang", "reset", "cut"])
@pytest.mark.parametrize("operation", ["write", "read", "list"])
def test_a_store_in_trouble_raises_soon_and_recovers(proxy: S3Proxy, kind: str, operation: str) -> None:
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    store = ObjectStore(url)
    impatient = ObjectStore(url, IMPATIENT)
    store.write("a/b", b"old" * 1000)
    proxy.begin(Fault(kind))
    started = time.monotonic()
    read_failure(lambda: OPERATIONS[operation](impatient))
    assert time.monotonic() - started < Timeouts().silence_s  # a patient one waits longer
    assert proxy.faults >= 1
    proxy.end()
    assert store.read("a/b") == b"old" * 1000
    OPERATIONS[operation](store)
    assert store.names("a") == ["a/b"]


def test_a_server_that_cannot_create_conditionally_is_asked_first(proxy: S3Proxy) -> None:
    store = new_store()
    proxy.begin(Fault("status", 501, "NotImplemented", only="create"))
    assert (store.create("a/b", b"first"), store.create("a/b", b"second")) == (True, False)
    assert store.read("a/b") == b"first"
    assert proxy.faults >= 2


def test_a_short_outage_is_not_noticed(proxy: S3Proxy) -> None:
    store = new_store(timeouts=Timeouts())
    proxy.begin(Fault("status"))

    def recover() -> None:
        while proxy.faults < 2:
            time.sleep(0.01)
        proxy.end()

    thread = threading.Thread(target=recover)
    thread.start()
    store.write("a/b", b"x")
    thread.join()
    assert store.read("a/b") == b"x"


def test_foreign_objects_are_not_listed(s3: S3Process) -> None:
    prefix = uuid.uuid4().hex
    bucket = from_url(f"s3://{BUCKET}/{prefix}", client_options={"allow_http": True})
    for name in ("a/b", "a/two words", "a/~temporary", "a/c d/x", "ab/c"):
        obstore.put(bucket, name, b"")
    assert ObjectStore(f"s3://{BUCKET}/{prefix}").names("a") == ["a/b"]


def test_requests_are_counted_as_the_server_counts_them(proxy: S3Proxy) -> None:
    counted: Counter[tuple[str, str]] = Counter()

    def observe(operation: str, outcome: str, seconds: float, requests: int) -> None:
        assert seconds > 0
        counted[operation, outcome] += requests

    store = ObjectStore(f"s3://{BUCKET}/{uuid.uuid4().hex}", observe=observe)
    store.check()
    store.write("a/b", b"x")
    assert (store.create("a/c", b"x"), store.create("a/c", b"x")) == (True, False)
    store.write("a/large", bytes(17 * 2**20))
    store.read("a/b")
    store.names("a")
    store.delete("a/b")
    refusal(FileNotFoundError, store.read, "a/b")
    assert counted == {
        ("write", "ok"): 8, ("read", "ok"): 2, ("read", "missing"): 1, ("list", "ok"): 2, ("delete", "ok"): 2,
    }  # fmt: skip
    assert proxy.requests == {"write": 8, "read": 3, "list": 2, "delete": 2}
    proxy.begin(Fault("status", 403, "AccessDenied"))
    read_failure(lambda: store.names("a"))
    assert counted["list", "error"] == 1


def test_a_large_file_is_created_in_parts(proxy: S3Proxy) -> None:
    store = new_store()
    data = bytes(17 * 2**20)
    assert (store.create("a/b", data), store.create("a/b", b"other" * 2**22)) == (True, False)
    assert len(store.read("a/b")) == len(data)
    assert proxy.requests["write"] == 4
