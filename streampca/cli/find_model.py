"""The model that a command is given: a file, or a store."""

from streampca.cli import paths_or_urls
from streampca.errors import SettingsError, StoreError
from streampca.fold import model_file
from streampca.fold.model_file import PublishedModel
from streampca.stores.choice import store_of
from streampca.stores.models import Models


def model_at(location: str, topic: str | None = None) -> PublishedModel:
    """The model in a file; or the newest of a topic in a store. Raises `StreampcaError`."""
    if not paths_or_urls.is_store(location):
        return model_file.decode(paths_or_urls.read(location))
    store = store_of(location)
    topics = sorted(name.rsplit("/", 1)[-1] for name in store.names("models"))
    if topic is None and len(topics) != 1:
        raise SettingsError(f"{location} holds {len(topics)} topics ({', '.join(topics)}): name one by --topic")
    models = Models(store, topic or topics[0])
    if (found := models.newest()) is None:
        raise StoreError(f"{models.place} holds no model")
    return found
