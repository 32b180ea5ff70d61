"""The identity of a store: a file that is created once and never changed, `store.json`.

Workers commit it to the consumer group with their offsets, which reveals a worker with another store. A copy of a store
has the same identity, and may replace it.
"""

import socket
import uuid
from typing import Annotated, NamedTuple

from pydantic import Field

from streampca.errors import RETRY_MAY_HELP, DamagedFileError, StaleListingError
from streampca.stores.base import Store
from streampca.stores.sealed import seal, value_in

NAME = "store.json"
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StoreIdentity(NamedTuple):
    """A store's id, which a copy shares, and its location for the worker on `host`."""

    id: str
    location: str
    host: str

    def __str__(self) -> str:
        return f"{self.location} on host {self.host}"


def find(store: Store) -> StoreIdentity | None:
    """The store's identity; None if it has none yet. Raises `StoreError`, and `DamagedFileError` for a damaged file."""
    try:
        return _at(store, value_in(store.read(NAME), "id", _Id))
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedFileError(
            f"{NAME} in the store {store.location} is damaged: restore it from a backup, or stop the workers, "
            "delete it and run `streampca reset`"
        ) from None


def ensure(store: Store) -> StoreIdentity:
    """The store's identity, created if there is none. Raises as `find`."""
    if existing := find(store):
        return existing
    store.create(NAME, seal("id", new_id()))
    if created := find(store):  # perhaps another process's
        return created
    raise StaleListingError(f"{NAME} was created in the store {store.location}, but is not there; {RETRY_MAY_HELP}")


def absent(store: Store) -> StoreIdentity:
    """An identity that equals no other, for a store without one."""
    return _at(store, "none yet")


def _at(store: Store, identity: str) -> StoreIdentity:
    return StoreIdentity(identity, store.location, socket.gethostname())


def new_id() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex
