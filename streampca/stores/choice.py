"""Opens the store that a setting names: a folder, or the URL of a bucket."""

from pathlib import Path

from streampca.errors import SettingsError, naming_the_extra
from streampca.settings import store_url
from streampca.stores.base import Observe, Store, ignore
from streampca.stores.directory import DirectoryStore


def open_store(location: Path | str, observe: Observe = ignore) -> Store:
    """Open the store at a location, without connecting to it. A bucket calls `observe` after each operation.

    Raises `SettingsError` if the URL is not valid or a package is missing.
    """
    try:
        checked = store_url.checked(str(location))
    except ValueError as error:
        raise SettingsError(f"store: {error}") from None
    is_folder = store_url.scheme_of(checked) is None
    if is_folder:
        return DirectoryStore(checked)
    with naming_the_extra("a store at a URL", "object-store"):
        from streampca.stores.object_store import ObjectStore
    return ObjectStore(checked, observe=observe)


def store_and_name(url: str) -> tuple[Store, str]:
    """Split the URL of one object into its store and its name. Raises `SettingsError` if the URL is not valid."""
    location, _, name = url.rstrip("/").rpartition("/")
    return open_store(location), name
