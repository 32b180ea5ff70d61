"""A store in a bucket: of S3 and servers compatible with it, of Google Cloud Storage or of Azure Blob Storage.

An object appears whole or not at all, and survives once its upload is acknowledged. So there are no temporary files and
no flushes. There are no folders, only names with slashes: `a/b` and `a/b/c` may both be objects.
"""

import copy
import math
import os
import secrets
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
from streampca.stores.base import Observe, Store, check_name, is_part, observe_nothing
from streampca.stores.object_errors import Action, explain_error, is_missing_object, is_not_implemented
from streampca.stores.observed import RequestCounter, report

_PART_BYTES = 16 * 2**20  # larger objects are uploaded in parts of this size, so that a timeout covers one part
_PARTS_AT_ONCE = 2
_NAMES_PER_REQUEST = 1000  # of a listing
_open: Callable[..., Any] = from_url  # its types depend on the URL's scheme, which mypy does not know
_ALLOW_HTTP_VARIABLES = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
# Not every server that is compatible with S3 can delete many objects in one request.
_CLIENT_CONFIG: dict[str, Any] = {"s3": {"disable_bulk_delete": True}}


@dataclass(frozen=True)
class Timeouts:
    """Limits of a request, seconds. If a store hangs, they raise before the group removes the worker."""

    connect_s: float = 5.0
    silence_s: float = 15.0  # without a byte from the server, also while a part is uploaded
    request_s: float = 120.0  # of the whole request, also for the download of a large object
    retry_s: float = 15.0  # no retry begins later than this after the first attempt


class _Listing:
    """The objects below a folder, as a snapshot has listed them, with their bytes. Threads may share it.

    The names are grouped by folder, so that listing one folder does not search the names of all objects.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._children: dict[str, dict[str, int]] = {}  # by folder: names directly in it → bytes; 0 for a folder

    def add(self, name: str, nbytes: int) -> None:
        """Add an object, and the folders between it and the listed folder. Ignore an object elsewhere."""
        if name == self.folder or not self.covers(name):
            return
        folder = name.rpartition("/")[0]
        self._children.setdefault(folder, {})[name] = nbytes
        while folder != self.folder:
            parent = folder.rpartition("/")[0]
            self._children.setdefault(parent, {}).setdefault(folder, 0)
            folder = parent

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._children.get(name.rpartition("/")[0], {}).pop(name, None)

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects and folders directly in a folder."""
        return list(self._children.get(folder, ()))

    def size(self, name: str) -> int:
        """Return the bytes of an object; 0 if it was not listed."""
        return self._children.get(name.rpartition("/")[0], {}).get(name, 0)

    def covers(self, name: str) -> bool:
        """Return whether a name is the folder, or lies below it."""
        return f"{name}/".startswith(f"{self.folder}/")


class ObjectStore(Store):
    """`Store` in a bucket, below the prefix of its URL. Credentials come from the provider's environment variables."""

    def __init__(self, url: str, timeouts: Timeouts = Timeouts(), observe: Observe = observe_nothing) -> None:
        """Does not connect yet. `url` was returned by `store_url.validate_location`."""
        self.location = url
        self._observe = observe
        # What the bucket held when a snapshot was taken; None if this object is not a snapshot.
        self._listing: _Listing | None = None
        scheme = store_url.find_scheme(url) or ""  # never "": a bucket's URL has a scheme
        # The client itself reads the other variables of the environment, such as those with credentials.
        allow_http = os.environ.get(_ALLOW_HTTP_VARIABLES[scheme], "").lower() in ("1", "true", "yes")
        with self._convert_errors(action="open", name=""):
            self._bucket = _open(
                url,
                config=_CLIENT_CONFIG.get(scheme, {}),
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
        """Upload an object, a large one in several parts."""
        with self._request("write", name) as requests:
            requests.count = _count_uploads(len(data))
            obstore.put(self._bucket, name, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        if self._listing is not None:  # a snapshot answers from its listing, which must also show the snapshot's writes
            self._listing.add(name, len(data))

    def create(self, name: str, data: bytes) -> bool:
        """Upload the object unless it exists. Return whether it was uploaded.

        If this takes several requests, it is not atomic: two processes may both get True.
        """
        fits_in_one_request = len(data) <= _PART_BYTES
        was_created = self._create_in_one_request(name, data) if fits_in_one_request else None
        if was_created is None:  # the object is too large, or the server does not support such a request
            was_created = self._write_unless_found(name, data)
        if self._listing is not None:  # also if another process has uploaded the object
            self._listing.add(name, len(data))
        return was_created

    def _create_in_one_request(self, name: str, data: bytes) -> bool | None:
        """Upload the object unless it exists, and return whether it was uploaded.

        Return None if the server does not support requests that upload an object only if it does not exist.
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
        """Upload the object unless it exists, in two requests. Return whether it was uploaded.

        If another process uploads the object between the two requests, its object is replaced.
        """
        try:
            self.read(name)  # only to see whether the object exists
        except FileNotFoundError:
            self.write(name, data)
            return True
        return False

    def read(self, name: str) -> bytes:
        with self._request("read", name):
            return bytes(obstore.get(self._bucket, name).bytes())

    def names(self, folder: str) -> list[str]:
        """List the objects and folders directly in a folder; [] if there are none."""
        check_name(folder)
        prefix = f"{folder}/"
        if self._listing is not None and self._listing.covers(folder):
            paths = self._listing.names(folder)
        else:
            paths = self._request_paths(folder)
        parts = {path.removeprefix(prefix).split("/")[0] for path in paths}
        # Other programs may have written objects with names that are not valid here.
        return sorted(f"{prefix}{part}" for part in parts if is_part(part))

    def _request_paths(self, folder: str) -> list[str]:
        """Ask the server for the paths of the objects and folders directly in a folder."""
        with self._request("list", folder) as requests:
            answer = obstore.list_with_delimiter(self._bucket, folder)
            paths = [*answer["common_prefixes"], *(entry["path"] for entry in answer["objects"])]
            requests.count = _count_list_requests(len(paths))
        return paths

    def size(self, name: str) -> int:
        """Return the bytes of an object; 0 if it does not exist. A snapshot looks them up in its listing."""
        if self._listing is not None and self._listing.covers(name):  # only a snapshot has a listing
            return self._listing.size(name)
        check_name(name)
        with suppress(FileNotFoundError), self._request("read", name):
            return int(obstore.head(self._bucket, name)["size"])
        return 0

    def snapshot(self, folder: str) -> "ObjectStore":
        """List everything below the folder, and return a view of the store that answers `names` from this list."""
        view = copy.copy(self)
        view._listing = _Listing(folder)
        with self._request("list", folder) as requests:
            entries = obstore.list(self._bucket, folder).collect()
            requests.count = _count_list_requests(len(entries))
        for entry in entries:
            view._listing.add(entry["path"], entry["size"])
        return view

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self._request("delete", name):
            obstore.delete(self._bucket, name)
        if self._listing is not None:
            self._listing.remove(name)

    def check(self) -> None:
        """Write, read back, list and delete an object."""
        probe = f"check-{secrets.token_hex(8)}"
        content = b"streampca"
        self.write(probe, content)
        try:
            read_back = self.read(probe)
        except FileNotFoundError:
            raise StoreBusyError(f"{self.location} does not show what was just written; {RETRY_MAY_HELP}") from None
        self.names(probe)  # raises `StoreError` if the permission to list is missing
        self.delete(probe)
        if read_back != content:
            raise StoreError(f"cannot use {self.location}: an object read back differs from what was written")

    @contextmanager
    def _request(self, action: Action, name: str) -> Iterator[RequestCounter]:
        """Make the requests in the block: report them to `self._observe`, and convert their errors to `StoreError`.

        If an object to read or delete is missing, `FileNotFoundError` is raised. The block may set the number of
        requests, which is 1 otherwise.
        """
        check_name(name)
        with report(self._observe, action) as requests, self._convert_errors(action, name):
            yield requests

    @contextmanager
    def _convert_errors(self, action: Action, name: str) -> Iterator[None]:
        """Convert the library's errors to `StoreError`, without their URLs and answers, which may hold secrets.

        If an object to read or delete is missing, `FileNotFoundError` is raised.
        """
        try:
            yield
        except FileNotFoundError as error:
            if action in ("read", "delete") and is_missing_object(error):
                raise FileNotFoundError(f"{self.location}/{name}") from None
            # The library raises `FileNotFoundError` also if the bucket is missing or the access key is wrong.
            raise explain_error(action, self.location, name, error) from None
        except (BaseError, ValueError) as error:
            raise explain_error(action, self.location, name, error) from None


def _count_uploads(length: int) -> int:
    """Return how many HTTP requests upload an object of this many bytes."""
    if length <= _PART_BYTES:
        return 1
    return math.ceil(length / _PART_BYTES) + 2  # one for each part, one to begin and one to end


def _count_list_requests(name_count: int) -> int:
    """Return how many requests list this many names."""
    return max(1, math.ceil(name_count / _NAMES_PER_REQUEST))
