"""Opens the store that a setting names: a folder, the URL of a bucket, or a URL with the scheme of a plug-in."""

from pathlib import Path
from typing import cast

from streampca.errors import SettingsError, explain_missing_extra
from streampca.settings import store_url
from streampca.settings.plug_ins import load_plug_in
from streampca.stores.base import Observe, Store, observe_nothing
from streampca.stores.directory import DirectoryStore
from streampca.stores.observed import ObservedStore


def open_store(location: Path | str, observe: Observe = observe_nothing) -> Store:
    """Open the store at a location, without connecting to it.

    `observe` is called after each operation on a bucket or a plug-in's store; operations on a folder are not reported.
    Raises `SettingsError` if the URL is not valid or a package is missing.
    """
    try:
        valid_location = store_url.validate_location(str(location))
        scheme = store_url.find_scheme(valid_location)
        if scheme is None:
            return DirectoryStore(valid_location)
        if not store_url.is_bucket(valid_location):
            create_store = load_plug_in("store", scheme)
            return ObservedStore(cast(Store, create_store(valid_location)), observe)
    except ValueError as error:
        raise SettingsError(f"store: {error}") from None
    with explain_missing_extra("object-store", needed_by="a store at a URL"):
        from streampca.stores.object_store import ObjectStore
    return ObjectStore(valid_location, observe=observe)


def open_parent_store(url: str) -> tuple[Store, str]:
    """Open the store that holds the object with this URL. Return the store, and the object's name in it.

    Raises what `open_store` raises.
    """
    location, _, name = url.rstrip("/").rpartition("/")
    return open_store(location), name
