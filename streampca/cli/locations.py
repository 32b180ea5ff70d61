"""Files and stores that commands name by a path or a URL, and the models in them.

Functions raise `StoreError` with one line that names the file and the cause, and `SettingsError` for a wrong URL.
"""

import os
from pathlib import Path

from streampca.errors import SettingsError, StoreError
from streampca.fold import model_file
from streampca.fold.replacing import replace_file
from streampca.settings import store_url
from streampca.stores.base import check_name, describe_other_topics, list_topics
from streampca.stores.choice import open_parent_store, open_store
from streampca.stores.models import Models


def is_store(path_or_url: str) -> bool:
    """Return whether a path or URL names a store instead of a file."""
    if store_url.find_scheme(path_or_url):
        return not path_or_url.endswith(".npz")
    return Path(path_or_url).is_dir()


def read(path_or_url: str) -> bytes:
    """Return the content of a file."""
    try:
        if not store_url.find_scheme(path_or_url):
            return Path(path_or_url).read_bytes()
        store, name = open_parent_store(path_or_url)
        return store.read(name)
    except FileNotFoundError:
        raise StoreError(f"cannot read {path_or_url}: there is no such file") from None
    except OSError as error:
        raise StoreError(f"cannot read {path_or_url}: {error.strerror}") from None


def check_writable(path_or_url: str, suffix: str) -> None:
    """Raise an error if the file cannot be written, or if its name does not end with this suffix.

    Commands check this before they learn, which may take an hour.
    """
    if not path_or_url.endswith(suffix):
        raise SettingsError(f"cannot write {path_or_url}: the name of this file must end with {suffix}")
    if store_url.find_scheme(path_or_url):
        store, name = open_parent_store(path_or_url)
        check_name(name)
        store.check()
        return
    folder = Path(path_or_url).absolute().parent
    if Path(path_or_url).is_dir():
        raise StoreError(f"cannot write {path_or_url}: it is a folder")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise StoreError(f"cannot write {path_or_url}: {folder} is not a writable folder")


def write(path_or_url: str, data: bytes) -> None:
    """Write a file in one atomic step, so that it is never seen incomplete."""
    if store_url.find_scheme(path_or_url):
        store, name = open_parent_store(path_or_url)
        store.write(name, data)
        return
    try:
        replace_file(Path(path_or_url), data)
    except OSError as error:
        raise StoreError(f"cannot write {path_or_url}: {error.strerror}") from None


def model_at(location: str, topic: str | None = None) -> model_file.PublishedModel:
    """Return the model of a file, or the newest model of a topic in a store. Raises `StreampcaError`."""
    if is_store(location):
        return _read_newest_model(location, topic)
    return model_file.decode_file(read(location), location)


def _read_newest_model(location: str, topic: str | None) -> model_file.PublishedModel:
    """Read the newest model of a topic in a store. If the topic is None, the store must hold a single topic."""
    store = open_store(location)
    topics = list_topics(store, "models")
    if not topics:
        if list_topics(store, "checkpoints"):
            raise StoreError(f"{location} holds no model yet: a worker of the topic publishes it")
        raise StoreError(
            f"{location} holds no models: give the file of one (`streampca fit`), or the store that workers write to"
        )
    if topic is None and len(topics) != 1:
        raise SettingsError(f"{location} holds {len(topics)} topics ({', '.join(topics)}): name one by --topic")
    models = Models(store, topic or topics[0])
    model = models.newest()
    if model is None:
        raise StoreError(f"{models.location} holds no model{describe_other_topics(store, models.topic)}")
    return model
