"""Which store a worker saves to, as it is committed to the consumer group in the metadata of offsets."""

import json
from typing import NamedTuple

import orjson

_DECODER = json.JSONDecoder()
_LONGEST_PLACE = 500  # characters; brokers accept metadata of 4096 bytes by default


class StoreIdentity(NamedTuple):
    """A store's id, which a copy shares, and where the worker on `host` finds it."""

    id: str
    place: str
    host: str

    def __str__(self) -> str:
        return f"{self.place} on host {self.host}"

    def as_metadata(self) -> str:
        """Text for the metadata of a committed offset."""
        place = self.place[:_LONGEST_PLACE].encode(errors="replace").decode()  # a path may hold bytes that are no UTF-8
        return orjson.dumps({"store": self.id, "place": place, "host": self.host}).decode()


def identity_in(metadata: str) -> StoreIdentity | None:
    """The identity in an offset's metadata; None if somebody else has written it."""
    try:
        found, _ = _DECODER.raw_decode(metadata)  # librdkafka may read beyond the end
        return StoreIdentity(str(found["store"]), str(found["place"]), str(found["host"]))
    except (ValueError, TypeError, KeyError):
        return None
