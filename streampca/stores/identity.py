"""The identity of a store: a file that is created once and never changed, `store.json`.

Workers commit it to the consumer group with their offsets, so that one with another store is noticed. A copy of a store
has the same identity, and may take its place.
"""

import socket
import uuid
import zlib
from typing import Annotated

from pydantic import BaseModel, Field

from streampca.errors import RETRY_MAY_HELP, DamagedFileError, StaleListingError
from streampca.fold.compatibility import StoreIdentity
from streampca.stores.base import Store

NAME = "store.json"


class _Content(BaseModel):
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    crc32: int  # of the id: a flipped bit can make another valid one


def find(store: Store) -> StoreIdentity | None:
    """The store's identity; None if it has none yet. Raises `StoreError`, and `DamagedFileError` for a damaged file."""
    try:
        content = _Content.model_validate_json(store.read(NAME), strict=True)
        if content != _content_of(content.id):
            raise ValueError("wrong checksum")
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedFileError(
            f"{NAME} in the store {store.location} is damaged: restore it from a backup, or stop the workers, "
            "delete it and run `streampca reset`"
        ) from None
    return _at(store, content.id)


def ensure(store: Store) -> StoreIdentity:
    """The store's identity, created if there is none. Raises as `find`."""
    if existing := find(store):
        return existing
    store.create(NAME, _content_of(new_id()).model_dump_json().encode())
    if created := find(store):  # perhaps another process's
        return created
    raise StaleListingError(f"{NAME} was created in the store {store.location}, but is not there; {RETRY_MAY_HELP}")


def absent(store: Store) -> StoreIdentity:
    """For a store that has no identity yet: differs from every other."""
    return _at(store, "none yet")


def _content_of(identity: str) -> _Content:
    return _Content(id=identity, crc32=zlib.crc32(identity.encode()))


def _at(store: Store, identity: str) -> StoreIdentity:
    return StoreIdentity(identity, store.location, socket.gethostname())


def new_id() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex
