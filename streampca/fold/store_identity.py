"""Identity of the store that a worker saves to, as committed to the consumer group in the metadata of offsets."""

import json
from typing import NamedTuple

import orjson

_DECODER = json.JSONDecoder()
_LONGEST = 500  # characters; brokers accept metadata of 4096 bytes by default


class StoreIdentity(NamedTuple):
    """A store's id, which a copy shares, and its location for the worker on `host`."""

    id: str
    location: str
    host: str

    def __str__(self) -> str:
        return f"{self.location} on host {self.host}"

    def as_metadata(self) -> str:
        """Text for the metadata of a committed offset."""
        location = self.location[:_LONGEST].encode(errors="replace").decode()  # a path may hold bytes that are no UTF-8
        return orjson.dumps({"store": self.id, "place": location, "host": self.host}).decode()


def identity_in(metadata: str) -> StoreIdentity | None:
    """The identity in an offset's metadata; None if somebody else has written it."""
    try:
        fields, _ = _DECODER.raw_decode(metadata)  # librdkafka may read beyond the end
        return StoreIdentity(*(str(fields[name]) for name in ("store", "place", "host")))
    except (ValueError, TypeError, KeyError):
        return None
