"""Opens the store of a setting: a folder or the URL of an object store."""

from pathlib import Path

from streampca.errors import SettingsError, naming_the_extra
from streampca.settings import store_url
from streampca.stores.base import Observe, Store, ignore
from streampca.stores.directory import DirectoryStore


def open_store(location: Path | str, observe: Observe = ignore) -> Store:
    """The store at a location; connects to nothing yet. `observe` is called after each request to an object store.

    Raises `SettingsError` if the URL is not valid or a package is missing.
    """
    try:
        checked = store_url.checked(str(location))
    except ValueError as error:
        raise SettingsError(f"store: {error}") from None
    if store_url.scheme_of(checked) is None:
        return DirectoryStore(checked)
    with naming_the_extra("a store at a URL", "object-store"):
        from streampca.stores.object_store import ObjectStore
    return ObjectStore(checked, observe=observe)


def store_and_name(url: str) -> tuple[Store, str]:
    """The store and the name of one object. Raises `SettingsError` if the URL is not valid."""
    location, _, name = url.rstrip("/").rpartition("/")
    return open_store(location), name
