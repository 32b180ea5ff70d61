"""The place of one file that a command reads or writes: a path, or the URL of an object."""

import os
import secrets
from pathlib import Path
from typing import Protocol

from streampca import store_url
from streampca.errors import StoreError
from streampca.stores.base import check_name
from streampca.stores.choice import store_and_name


class Place(Protocol):
    """Every method raises `StoreError` with one line that names the place and the cause."""

    def is_store(self) -> bool:
        """Whether it is the place of a store instead of a file."""

    def read(self) -> bytes:
        """The file's content."""

    def check_writable(self) -> None:
        """Raise unless the file can be written: before an hour of learning rather than after it."""

    def write(self, data: bytes) -> None:
        """Write the file in one atomic step."""


def place_of(path_or_url: str) -> Place:
    """The place; its methods raise `SettingsError` if a URL is not valid."""
    return _Object(path_or_url) if store_url.scheme_of(path_or_url) else _File(path_or_url)


class _Object:
    def __init__(self, url: str) -> None:
        self._url = url

    def is_store(self) -> bool:
        return not self._url.endswith(".npz")

    def read(self) -> bytes:
        store, name = store_and_name(self._url)
        try:
            return store.read(name)
        except FileNotFoundError:
            raise StoreError(f"cannot read {self._url}: no such object") from None

    def check_writable(self) -> None:
        store, name = store_and_name(self._url)
        check_name(name)
        store.check()

    def write(self, data: bytes) -> None:
        store, name = store_and_name(self._url)
        store.write(name, data)


class _File:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def is_store(self) -> bool:
        return self._path.is_dir()

    def read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from None

    def check_writable(self) -> None:
        folder = self._path.absolute().parent
        if self._path.is_dir():
            raise StoreError(f"cannot write {self._path}: it is a folder")
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise StoreError(f"cannot write {self._path}: {folder} is not a writable folder")

    def write(self, data: bytes) -> None:
        temporary = self._path.with_name(f"~{secrets.token_hex(8)}")
        try:
            temporary.write_bytes(data)
            temporary.replace(self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from None
