"""Files and stores that commands name by a path or a URL, and the models in them.

Functions raise `StoreError` with one line that names the file and the cause, and `SettingsError` for a wrong URL.
"""

import os
import secrets
from pathlib import Path

from streampca.errors import DamagedFileError, SettingsError, StoreError
from streampca.fold import model_file
from streampca.settings import store_url
from streampca.stores.base import check_name, other_topics, topics_in
from streampca.stores.choice import open_store, store_and_name
from streampca.stores.models import Models

# Every file that streampca writes begins with this signature. The name follows after the fixed fields of the zip
# format.
_ZIP_SIGNATURE = b"PK\x03\x04"
_FIRST_NAME_AT = 30  # bytes before the name
_FIRST_NAME = b"header.npy"


def is_store(path_or_url: str) -> bool:
    """Return whether a path or URL names a store instead of a file."""
    if store_url.scheme_of(path_or_url) is not None:
        return not path_or_url.endswith(".npz")
    return Path(path_or_url).is_dir()


def read(path_or_url: str) -> bytes:
    """Read a file."""
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
    """If the file cannot be written, raise. Commands call this before they learn, which may take an hour."""
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


def is_streampca_file(data: bytes) -> bool:
    """Return whether the beginning of these bytes is that of a file which streampca wrote."""
    return data.startswith(_ZIP_SIGNATURE) and data.startswith(_FIRST_NAME, _FIRST_NAME_AT)


def read_model(location: str, topic: str | None = None) -> model_file.PublishedModel:
    """Read the model of a file, or the newest model of a topic in a store. Raises `StreampcaError`."""
    if not is_store(location):
        data = read(location)
        if not is_streampca_file(data):
            kind = "it is an .npy array" if data.startswith(b"\x93NUMPY") else f"it begins with {data[:16]!r}"
            text = f"{location} is not a model of streampca; {kind}"
            raise StoreError(f"{text}. `streampca fit` makes a model of vectors")
        try:
            return model_file.decode(data)
        except DamagedFileError as error:
            raise DamagedFileError(f"{location}: {error}") from None
    store = open_store(location)
    topics = topics_in(store, "models")
    if not topics and topics_in(store, "checkpoints"):
        raise StoreError(f"{location} holds no model yet: a worker of the topic publishes it")
    if not topics:
        raise StoreError(
            f"{location} holds no models: give the file of one (`streampca fit`), or the store that workers write to"
        )
    if topic is None and len(topics) != 1:
        raise SettingsError(f"{location} holds {len(topics)} topics ({', '.join(topics)}): name one by --topic")
    models = Models(store, topic or topics[0])
    model = models.newest()
    if model is None:
        raise StoreError(f"{models.location} holds no model{other_topics(store, models.topic)}")
    return model
