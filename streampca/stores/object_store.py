"""A store in a bucket: of S3 and servers compatible with it, of Google Cloud Storage or of Azure Blob Storage.

An object appears whole or not at all, and survives once its upload is acknowledged. So there are no temporary files and
no flushes. There are no folders, only names with slashes: `a/b` and `a/b/c` may both be objects.
"""

import copy
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from streampca.errors import RETRY_MAY_HELP, StoreBusyError, StoreError
from streampca.settings import store_url
from streampca.stores.base import Observe, Store, check_name, ignore, is_part
from streampca.stores.object_errors import Action, is_missing_object, is_not_implemented, store_error

_PART_BYTES = 16 * 2**20  # larger objects are uploaded in parts of this size, so that a timeout covers one part
_PARTS_AT_ONCE = 2
_NAMES_PER_REQUEST = 1000  # of a listing
_open: Callable[..., Any] = from_url  # its types depend on the URL's scheme, which mypy does not know
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
# Not every server that is compatible with S3 can delete many objects in one request.
_CONFIG: dict[str, Any] = {"s3": {"disable_bulk_delete": True}}


@dataclass(frozen=True)
class Timeouts:
    """Limits of a request, seconds. If a store hangs, they raise before the group removes the worker."""

    connect_s: float = 5.0
    silence_s: float = 15.0  # without a byte from the server, also while a part is uploaded
    request_s: float = 120.0  # of the whole request, also for the download of a large object
    retry_s: float = 15.0  # no retry begins later than this after the first attempt


class _Listing(NamedTuple):
    """All names below a folder, as a snapshot has listed them."""

    folder: str
    names: set[str]


class ObjectStore(Store):
    """`Store` in a bucket, below the prefix of its URL. Credentials come from the provider's environment variables."""

    def __init__(self, url: str, timeouts: Timeouts = Timeouts(), observe: Observe = ignore) -> None:
        """Does not connect yet. `url` was returned by `store_url.checked`."""
        self.location = url
        self._observe = observe
        self._listing: _Listing | None = None  # of a snapshot
        scheme = store_url.scheme_of(url) or ""
        allow_http = os.environ.get(_ALLOW_HTTP[scheme], "").lower() in ("1", "true", "yes")
        with self._store_errors("open", ""):
            self._bucket = _open(
                url,
                config=_CONFIG.get(scheme, {}),
                client_options={
                    "allow_http": allow_http,
                    "connect_timeout": timedelta(seconds=timeouts.connect_s),
                    "read_timeout": timedelta(seconds=timeouts.silence_s),
                    "timeout": timedelta(seconds=timeouts.request_s),
                },
                retry_config={
                    "max_retries": 10,
                    "retry_timeout": timedelta(seconds=timeouts.retry_s),
                    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2)},
                },
            )

    def write(self, name: str, data: bytes) -> None:
        with self._request("write", name) as request:
            request.count = _count_uploads(len(data))
            obstore.put(self._bucket, name, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        if self._listing:
            self._listing.names.add(name)

    def create(self, name: str, data: bytes) -> bool:
        """Upload the object unless it exists.

        A large object needs several requests, and some servers cannot test and upload in one. Then the store reads the
        object first, so several processes may create it at the same time.
        """
        created = None
        if len(data) <= _PART_BYTES:
            created = self._create_in_one_request(name, data)
        if created is None:
            created = self._write_unless_found(name, data)
        if self._listing:
            self._listing.names.add(name)
        return created

    def _create_in_one_request(self, name: str, data: bytes) -> bool | None:
        """Upload the object unless it exists, and return whether it was uploaded.

        If the server cannot do both in one request, nothing is uploaded, and the result is None.
        """
        with self._request("write", name):
            try:
                obstore.put(self._bucket, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            except (BaseError, NotImplementedError) as error:
                if not is_not_implemented(error):
                    raise
                return None
        return True

    def _write_unless_found(self, name: str, data: bytes) -> bool:
        """Read the object, and upload it if it does not exist; return whether it was uploaded."""
        try:
            self.read(name)
        except FileNotFoundError:
            self.write(name, data)
            return True
        return False

    def read(self, name: str) -> bytes:
        with self._request("read", name):
            return bytes(obstore.get(self._bucket, name).bytes())

    def names(self, folder: str) -> list[str]:
        check_name(folder)
        prefix = f"{folder}/"
        if self._listing and prefix.startswith(f"{self._listing.folder}/"):
            names = self._listing.names
        else:
            with self._request("list", folder) as request:
                answer = obstore.list_with_delimiter(self._bucket, folder)
                names = {*answer["common_prefixes"], *(entry["path"] for entry in answer["objects"])}
                request.count = _count_listings(len(names))
        parts = {name.removeprefix(prefix).split("/")[0] for name in names if name.startswith(prefix)}
        return sorted(f"{prefix}{part}" for part in parts if is_part(part))

    def snapshot(self, folder: str) -> "ObjectStore":
        """Return a copy that answers listings of the folder, and of folders in it, from a single one, made now."""
        view = copy.copy(self)
        with self._request("list", folder) as request:
            names = [entry["path"] for entry in obstore.list(self._bucket, folder).collect()]
            request.count = _count_listings(len(names))
        view._listing = _Listing(folder, set(names))
        return view

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self._request("delete", name):
            obstore.delete(self._bucket, name)
        if self._listing:
            self._listing.names.discard(name)

    def check(self) -> None:
        """Write, read back, list and delete an object."""
        probe = f"check-{secrets.token_hex(8)}"
        content = b"streampca"
        self.write(probe, content)
        try:
            read_back = self.read(probe)
        except FileNotFoundError:
            raise StoreBusyError(f"{self.location} does not show what was just written; {RETRY_MAY_HELP}") from None
        self.names(probe)  # raises without the permission to list
        self.delete(probe)
        if read_back != content:
            raise StoreError(f"cannot use {self.location}: an object read back differs from what was written")

    @contextmanager
    def _request(self, action: Action, name: str) -> Iterator["_Request"]:
        """Observe one operation, and raise its errors as `StoreError`.

        If an object to read or delete is missing, raise `FileNotFoundError`.
        """
        check_name(name)
        request = _Request()
        started = time.perf_counter()
        outcome = "error"
        try:
            with self._store_errors(action, name):
                yield request
            outcome = "ok"
        except FileNotFoundError:
            outcome = "missing"
            raise
        finally:
            self._observe(action, outcome, time.perf_counter() - started, request.count)

    @contextmanager
    def _store_errors(self, action: Action, name: str) -> Iterator[None]:
        """Raise the library's errors as `StoreError`, without what they quote: URLs and answers may hold secrets."""
        try:
            yield
        except (FileNotFoundError, BaseError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and action in ("read", "delete") and is_missing_object(error):
                raise FileNotFoundError(f"{self.location}/{name}") from None
            raise store_error(action, self.location, name, error) from None


@dataclass
class _Request:
    """The cost of one operation."""

    count: int = 1  # HTTP requests, without those that the library has repeated


def _count_uploads(length: int) -> int:
    """Return how many requests upload an object of this many bytes: one, or one for each part and two around them."""
    return 1 if length <= _PART_BYTES else math.ceil(length / _PART_BYTES) + 2


def _count_listings(names: int) -> int:
    """Return how many requests list this many names."""
    return max(1, math.ceil(names / _NAMES_PER_REQUEST))
