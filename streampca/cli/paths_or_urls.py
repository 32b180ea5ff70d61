"""One file that a command reads or writes: a path, or the URL of an object.

Every function raises `StoreError` with one line that names the file and the cause, and `SettingsError` for a wrong URL.
"""

import os
import secrets
from pathlib import Path

from streampca.errors import StoreError
from streampca.settings import store_url
from streampca.stores.base import check_name
from streampca.stores.choice import store_and_name


def is_store(path_or_url: str) -> bool:
    """Return whether it names a store instead of a file."""
    is_url = store_url.scheme_of(path_or_url) is not None
    return not path_or_url.endswith(".npz") if is_url else Path(path_or_url).is_dir()


def read(path_or_url: str) -> bytes:
    """The file's content."""
    try:
        if store_url.scheme_of(path_or_url) is None:
            return Path(path_or_url).read_bytes()
        store, name = store_and_name(path_or_url)
        return store.read(name)
    except FileNotFoundError:
        raise StoreError(f"cannot read {path_or_url}: there is no such file") from None
    except OSError as error:
        raise StoreError(f"cannot read {path_or_url}: {error.strerror}") from None


def check_writable(path_or_url: str) -> None:
    """Raise unless the file can be written: before an hour of learning rather than after it."""
    if store_url.scheme_of(path_or_url) is not None:
        store, name = store_and_name(path_or_url)
        check_name(name)
        store.check()
        return
    folder = Path(path_or_url).absolute().parent
    if Path(path_or_url).is_dir():
        raise StoreError(f"cannot write {path_or_url}: it is a folder")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise StoreError(f"cannot write {path_or_url}: {folder} is not a writable folder")


def write(path_or_url: str, data: bytes) -> None:
    """Write the file in one atomic step."""
    if store_url.scheme_of(path_or_url) is not None:
        store, name = store_and_name(path_or_url)
        store.write(name, data)
        return
    temporary = Path(path_or_url).with_name(f"~{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path_or_url)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path_or_url}: {error.strerror}") from None
