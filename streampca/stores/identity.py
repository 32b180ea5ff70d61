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
_NO_ID = "none yet"  # of a placeholder
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StoreIdentity(NamedTuple):
    """A store's id, and where this process sees the store."""

    id: str
    location: str  # on `host`; on another host, the same store may have another location
    host: str

    @property
    def is_placeholder(self) -> bool:
        """Whether `create_placeholder` has made this identity, since the store has none."""
        return self.id == _NO_ID

    def __str__(self) -> str:
        return f"{self.location} on host {self.host}"


def find(store: Store) -> StoreIdentity | None:
    """Read the store's identity; None if it has none yet. Raises `StoreError`, and `DamagedFileError` if damaged."""
    try:
        store_id = checksummed.decode(store.read(NAME), name="id", value_type=_Id)
        return _to_identity(store_id, store)
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedFileError(
            f"{NAME} in the store {store.location} is damaged: restore it from a backup, or delete it and start "
            "a worker: its error shows the text to write back; or stop the workers and run `streampca reset`"
        ) from None


def ensure(store: Store) -> StoreIdentity:
    """Read the store's identity; if it has none, create it.

    Raises what `find` raises, and `StaleListingError` if the store does not show the new identity yet.
    """
    existing = find(store)
    if existing:
        return existing
    store.create(NAME, format_file(new_id()).encode())
    created = find(store)  # another process may have created it
    if created is None:
        raise StaleListingError(f"{NAME} was created in the store {store.location}, but is not there; {RETRY_MAY_HELP}")
    return created


def create_placeholder(store: Store) -> StoreIdentity:
    """Return a placeholder for the identity of a store that has none yet. No other store has its id."""
    return _to_identity(_NO_ID, store)


def _to_identity(store_id: str, store: Store) -> StoreIdentity:
    return StoreIdentity(id=store_id, location=store.location, host=socket.gethostname())


def format_file(store_id: str) -> str:
    """Return the text of `store.json` of a store with this id."""
    return checksummed.encode("id", store_id).decode()


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex
