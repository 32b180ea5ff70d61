"""`streampca export`: a model as a file of another tool."""

from streampca.commands import paths_or_urls
from streampca.commands.console import console
from streampca.errors import SettingsError, StoreError
from streampca.export.formats import FORMATS
from streampca.stores.choice import store_of
from streampca.stores.models import Models
from streampca.stream import model_file
from streampca.stream.model_file import PublishedModel


def run(location: str, kind: str, output: str, topic: str | None, version: int | None) -> None:
    """Write the model of a file or of a store. Raises `StreampcaError`."""
    if kind not in FORMATS:
        raise SettingsError(f"--to {kind}: must be one of {', '.join(FORMATS)}")
    published = model_at(location, topic, version)
    paths_or_urls.check_writable(output)
    try:
        data = FORMATS[kind](published)
    except ModuleNotFoundError as error:
        raise SettingsError(f"--to {kind} needs {error.name}: pip install 'streampca[export]'") from None
    paths_or_urls.write(output, data)
    console().print(f"version {published.version} of {published.topic}, written to {output}")


def model_at(location: str, topic: str | None, version: int | None) -> PublishedModel:
    """The model in a file; or the newest, or another version, of a topic in a store."""
    if not paths_or_urls.is_store(location):
        return model_file.decode(paths_or_urls.read(location))
    store = store_of(location)
    topics = sorted(name.rsplit("/", 1)[-1] for name in store.names("models"))
    if topic is None and len(topics) != 1:
        raise SettingsError(f"{location} holds {len(topics)} topics ({', '.join(topics)}): name one by --topic")
    models = Models(store, topic or topics[0])
    try:
        found = models.newest() if version is None else models.load(version)
    except FileNotFoundError:
        found = None
    if found is None:
        raise StoreError(f"{models.place} holds no model{'' if version is None else f' of version {version}'}")
    return found
