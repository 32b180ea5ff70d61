"""The identity of a store: a random id in the file `store.json`, which is created once and never changed.

Workers commit it to the consumer group with their offsets. So a worker with another store is noticed. A copy of a store
has the same identity, and may replace it.
"""

import socket
import uuid
from typing import Annotated, NamedTuple

from pydantic import Field

from streampca.errors import RETRY_MAY_HELP, DamagedFileError, StaleListingError
from streampca.stores import checksummed
from streampca.stores.base import Store

NAME = "store.json"
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StoreIdentity(NamedTuple):
    """A store's id, and where this process sees the store."""

    id: str
    location: str  # on `host`: another one may have the same store at another location
    host: str

    def __str__(self) -> str:
        return f"{self.location} on host {self.host}"


def find(store: Store) -> StoreIdentity | None:
    """Read the store's identity; None if it has none yet. Raises `StoreError`, and `DamagedFileError` if damaged."""
    try:
        return _seen_from_here(store, checksummed.decode(store.read(NAME), "id", _Id))
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedFileError(
            f"{NAME} in the store {store.location} is damaged: restore it from a backup, or stop the workers, "
            "delete it and run `streampca reset`"
        ) from None


def ensure(store: Store) -> StoreIdentity:
    """Read the store's identity; if it has none, create it. Raises what `find` raises."""
    if existing := find(store):
        return existing
    store.create(NAME, checksummed.encode("id", new_id()))
    if created := find(store):  # by this process, or by another one at the same time
        return created
    raise StaleListingError(f"{NAME} was created in the store {store.location}, but is not there; {RETRY_MAY_HELP}")


def absent(store: Store) -> StoreIdentity:
    """Return a stand-in for a store that has no identity yet. Its id differs from the ids of all stores."""
    return _seen_from_here(store, "none yet")


def _seen_from_here(store: Store, store_id: str) -> StoreIdentity:
    return StoreIdentity(id=store_id, location=store.location, host=socket.gethostname())


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex
