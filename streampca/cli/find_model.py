"""The model in a file or in a store, for commands."""

from streampca.cli import paths_or_urls
from streampca.errors import DamagedFileError, SettingsError, StoreError
from streampca.fold import model_file
from streampca.fold.model_file import PublishedModel
from streampca.stores.choice import open_store
from streampca.stores.models import Models

_ZIP, _NAME_AT, _FIRST_MEMBER = b"PK\x03\x04", 30, b"header.npy"  # how every file that streampca writes begins


def model_at(location: str, topic: str | None = None) -> PublishedModel:
    """The model in a file; or the newest of a topic in a store. Raises `StreampcaError`."""
    if not paths_or_urls.is_store(location):
        return _decoded(location, paths_or_urls.read(location))
    store = open_store(location)
    topics = sorted(name.rsplit("/", 1)[-1] for name in store.names("models"))
    if topic is None and len(topics) != 1:
        raise SettingsError(f"{location} holds {len(topics)} topics ({', '.join(topics)}): name one by --topic")
    models = Models(store, topic or topics[0])
    if (model := models.newest()) is None:
        raise StoreError(f"{models.location} holds no model")
    return model


def is_ours(data: bytes) -> bool:
    """Return whether a file begins as those that streampca writes."""
    return data.startswith(_ZIP) and data[_NAME_AT : _NAME_AT + len(_FIRST_MEMBER)] == _FIRST_MEMBER


def _decoded(location: str, data: bytes) -> PublishedModel:
    if not is_ours(data):
        kind = "it is an .npy array" if data.startswith(b"\x93NUMPY") else f"it begins with {data[:16]!r}"
        raise StoreError(f"{location} is not a model of streampca; {kind}. `streampca fit` makes a model of vectors")
    try:
        return model_file.decode(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"{location}: {error}") from None
