"""Writes and reads the metadata of committed offsets, by which a member informs the next owner of a partition.

A worker commits the identity of its store, in JSON, and whether the offset is the start of a new partition. A member of
transform commits a line such as `k=2 d=784 version=4000 topic=5fJx41ZNQ6u3sVYq2mTq0g last=41@3`: the shape of the
outputs, the version of the model if `model_version` fixes it, the id of the topic, and the offset and the leader epoch
of the last record. Other tools commit no such metadata.

A broker accepts 4096 bytes by default. librdkafka may read beyond the end of the metadata, so bytes that follow are
ignored.
"""

import json
import re
from typing import Any, NamedTuple

import orjson

from streampca.formats.record import LastRecord
from streampca.stores.identity import StoreIdentity

_LONGEST_LOCATION = 500  # characters
_IS_START = "begins"  # a field of the JSON that a worker commits
_SHAPE = re.compile(r"k=([0-9]+) d=([0-9]+)")
_VERSION = re.compile(r"\bversion=([0-9]+)")
_STORE_FIELDS = {"store", "location", "host"}
_TOPIC = re.compile(r"\btopic=([\w-]+)")
_LAST_RECORD = re.compile(r"\blast=([0-9]+)@([0-9]+)")


def format_store_metadata(identity: StoreIdentity, *, is_start: bool = False) -> str:
    """Return the metadata that a worker with this store commits with an offset.

    With `is_start`, they say that a new partition begins at the offset.
    """
    # A path may contain bytes that are not UTF-8.
    location = identity.location[:_LONGEST_LOCATION].encode(errors="replace").decode()
    fields: dict[str, str | bool] = {"store": identity.id, "location": location, "host": identity.host}
    if is_start:
        fields[_IS_START] = True
    return orjson.dumps(fields).decode()


def parse_store_metadata(metadata: str) -> StoreIdentity | None:
    """Return the identity of the store of the worker that has committed; None if another tool has committed."""
    fields = _parse_fields(metadata)
    if not fields:
        return None
    return StoreIdentity(str(fields["store"]), str(fields["location"]), str(fields["host"]))


def marks_start(metadata: str) -> bool:
    """Return whether a worker has committed that a new partition, of which nothing was learned, begins there."""
    return _IS_START in _parse_fields(metadata)


def _parse_fields(metadata: str) -> dict[str, Any]:
    """Return what a worker has committed as JSON; {} if another tool has committed."""
    try:
        fields, _ = json.JSONDecoder().raw_decode(metadata)  # ignores bytes after the JSON
    except ValueError:
        return {}
    is_from_worker = isinstance(fields, dict) and fields.keys() >= _STORE_FIELDS
    return fields if is_from_worker else {}


class OutputShape(NamedTuple):
    """The shape of the outputs in an output topic; outputs of two shapes must not be mixed."""

    components: int
    dimensions: int
    version: int | None = None  # of the model, if `model_version` fixes it

    @property
    def components_and_dimensions(self) -> str:
        return f"k={self.components} d={self.dimensions}"

    def __str__(self) -> str:
        version = "" if self.version is None else f" version={self.version}"
        return self.components_and_dimensions + version


def format_output_metadata(shape: OutputShape | None, topic_id: str, last: LastRecord | None) -> str:
    """Return the metadata that a member of transform commits with an offset, such as "k=3 d=10 topic=AbC last=41@2".

    `shape` is None if it was read from metadata that have none. The text then begins with a space, which does not
    matter. `last` is the record before the offset; None if it is not known.
    """
    text = "" if shape is None else str(shape)
    if topic_id:
        text += f" topic={topic_id}"
    if last is not None:
        text += f" last={last.offset}@{last.leader_epoch}"
    return text


def read_shape(metadata: str) -> OutputShape | None:
    """Return the shape of outputs in metadata such as "k=3 d=10 version=5 topic=AbC"; None if there is none."""
    shape = _SHAPE.search(metadata)
    if shape is None:  # another tool has committed
        return None
    version = _VERSION.search(metadata)
    return OutputShape(
        components=int(shape[1]),
        dimensions=int(shape[2]),
        version=int(version[1]) if version else None,
    )


def read_topic_id(metadata: str) -> str:
    """Return the id of the topic that the offset was committed for; empty if the metadata have none."""
    topic = _TOPIC.search(metadata)
    return topic[1] if topic else ""


def read_last_record(metadata: str) -> LastRecord | None:
    """Return the last record before the committed offset; None if the metadata have none."""
    last = _LAST_RECORD.search(metadata)
    return LastRecord(int(last[1]), int(last[2])) if last else None
