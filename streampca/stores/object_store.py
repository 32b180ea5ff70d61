"""A store in a bucket: of S3 and servers compatible with it, of Google Cloud Storage or of Azure Blob Storage.

An object appears whole or not at all, and survives once its upload is acknowledged: no temporary files, no flushes.
There are no folders, only names with slashes: `a/b` and `a/b/c` may both be objects.
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
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from streampca.errors import RETRY_MAY_HELP, StoreBusyError, StoreError
from streampca.settings import store_url
from streampca.stores.base import Observe, Store, check_name, ignore, is_part
from streampca.stores.object_errors import Action, is_missing_object, is_not_implemented, store_error

_PART_BYTES = 16 * 2**20  # larger objects are uploaded in parts of this size, so that a timeout covers one part
_PARTS_AT_ONCE = 2
_NAMES_A_PAGE = 1000  # of a listing
_open: Callable[..., Any] = from_url  # typed by scheme, which is not known before it runs
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_CONFIG: dict[str, Any] = {"s3": {"disable_bulk_delete": True}}  # not every server that is compatible with S3 has it


@dataclass(frozen=True)
class Timeouts:
    """Limits of a request, seconds: a store that hangs raises before the group removes its worker."""

    connect_s: float = 5.0
    silence_s: float = 15.0  # without a byte from the server, the upload of a part included
    request_s: float = 120.0  # in all, the download of a large object included
    retry_s: float = 15.0  # no retry later than this after the first attempt


class ObjectStore(Store):
    """`Store` in a bucket, below the prefix of its URL. Credentials come from the provider's environment variables."""

    def __init__(self, url: str, timeouts: Timeouts = Timeouts(), observe: Observe = ignore) -> None:
        """Connects to nothing yet. `url` is one that `store_url.checked` has returned."""
        self.location, self._observe, scheme = url, observe, store_url.scheme_of(url) or ""
        self._listed: tuple[str, set[str]] | None = None  # by a snapshot: a folder, and all names below it
        allow_http = os.environ.get(_ALLOW_HTTP[scheme], "").lower() in ("1", "true", "yes")
        with self._errors("open", ""):
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
            request.count = _uploads(len(data))
            obstore.put(self._bucket, name, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        if self._listed:
            self._listed[1].add(name)

    def create(self, name: str, data: bytes) -> bool:
        """Upload the object unless it exists. If the server is able to decide that in one request, it does."""
        created = None if len(data) > _PART_BYTES else self._put_if_missing(name, data)
        if created is None:
            created = self._write_if_missing(name, data)
        if self._listed:
            self._listed[1].add(name)
        return created

    def _put_if_missing(self, name: str, data: bytes) -> bool | None:
        """None if the server cannot."""
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

    def _write_if_missing(self, name: str, data: bytes) -> bool:
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
        start = f"{folder}/"
        if self._listed and start.startswith(f"{self._listed[0]}/"):
            below = {name.removeprefix(start).split("/")[0] for name in self._listed[1] if name.startswith(start)}
        else:
            with self._request("list", folder) as request:
                answer = obstore.list_with_delimiter(self._bucket, folder)
                names = {*answer["common_prefixes"], *(entry["path"] for entry in answer["objects"])}
                request.count = _pages(len(names))
            below = {name.removeprefix(start) for name in names if name.startswith(start)}
        return sorted(f"{start}{part}" for part in below if is_part(part))

    def snapshot(self, folder: str) -> "ObjectStore":
        """A copy that answers listings of the folder and all that is in it from a single one, made now."""
        same = copy.copy(self)
        with self._request("list", folder) as request:
            names = [entry["path"] for entry in obstore.list(self._bucket, folder).collect()]
            request.count = _pages(len(names))
        same._listed = folder, set(names)
        return same

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self._request("delete", name):
            obstore.delete(self._bucket, name)
        if self._listed:
            self._listed[1].discard(name)

    def check(self) -> None:
        probe, content = f"check-{secrets.token_hex(8)}", b"streampca"
        self.write(probe, content)
        try:
            read_back = self.read(probe)
        except FileNotFoundError:
            raise StoreBusyError(f"{self.location} does not show what was just written; {RETRY_MAY_HELP}") from None
        self.names(probe)
        self.delete(probe)
        if read_back != content:
            raise StoreError(f"cannot use {self.location}: an object read back differs from what was written")

    @contextmanager
    def _request(self, action: Action, name: str) -> Iterator["_Request"]:
        """Observe a request, and raise its errors as `StoreError`; but `FileNotFoundError` if an object is missing."""
        check_name(name)
        request, started, outcome = _Request(), time.perf_counter(), "error"
        try:
            with self._errors(action, name):
                yield request
            outcome = "ok"
        except FileNotFoundError:
            outcome = "missing"
            raise
        finally:
            self._observe(action, outcome, time.perf_counter() - started, request.count)

    @contextmanager
    def _errors(self, action: Action, name: str) -> Iterator[None]:
        """Turn the library's errors into `StoreError`, without what they quote: URLs and answers may hold secrets."""
        try:
            yield
        except (FileNotFoundError, BaseError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and action in ("read", "delete") and is_missing_object(error):
                raise FileNotFoundError(f"{self.location}/{name}") from None
            raise store_error(action, self.location, name, error) from None


@dataclass
class _Request:
    """The cost of one operation."""

    count: int = 1  # of HTTP requests, without those that the library has repeated


def _uploads(length: int) -> int:
    """Requests for an object of this many bytes: one, or one for each part and two around them."""
    return 1 if length <= _PART_BYTES else math.ceil(length / _PART_BYTES) + 2


def _pages(names: int) -> int:
    return max(1, math.ceil(names / _NAMES_A_PAGE))
