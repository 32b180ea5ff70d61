"""Checks whether a worker may resume from a checkpoint, or with a consumer group's store."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import orjson

from streampca.errors import ForeignStoreError, SettingsError, TopicReplacedError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.partitions import FIRST_BACKFILL, partition_name

_LONGEST = 500  # characters of a location; brokers accept metadata of 4096 bytes by default


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
        fields, _ = json.JSONDecoder().raw_decode(metadata)  # librdkafka may read beyond the end
        return StoreIdentity(*(str(fields[name]) for name in ("store", "place", "host")))
    except (ValueError, TypeError, KeyError):
        return None


def refuse_other_settings(checkpoint: Checkpoint, fold_config: FoldConfig) -> None:
    """Raise `SettingsError` that lists all settings in which the checkpoint differs from the worker."""
    then, now = checkpoint.settings, fold_config.as_dict()
    if differing := [n for n in sorted(now.keys() | then.keys()) if now.get(n) != then.get(n)]:
        listed = ", ".join(f"{n}={then.get(n)} (now {now.get(n)})" for n in differing)
        otherwise = "start over with another store folder and another group_id"
        if checkpoint.partition >= FIRST_BACKFILL:
            otherwise = f"delete it: `streampca backfill --remove {checkpoint.partition - FIRST_BACKFILL}`"
        raise SettingsError(
            f"the checkpoint of partition {partition_name(checkpoint.partition)} of {checkpoint.topic} was made with "
            f"{listed}; restore these settings, or {otherwise}"
        )


def with_settings(checkpoint: Checkpoint, fold_config: FoldConfig) -> Checkpoint:
    """The checkpoint, if it has these settings, else `SettingsError`; one that has learned nothing is given them."""
    now, fold = fold_config.as_dict(), checkpoint.fold
    if fold.stats.learned or checkpoint.settings == now:
        refuse_other_settings(checkpoint, fold_config)
        return checkpoint
    empty = Fold.empty(fold_config.learning)
    stats = replace(empty.stats, rejected=fold.stats.rejected, gap=fold.stats.gap)
    fold = replace(empty, position=fold.position, stats=stats, last=fold.last)
    return replace(checkpoint, fold=fold, settings=now)


def refuse_other_topic(checkpoint: Checkpoint, topic_id: str) -> None:
    """Raise `TopicReplacedError` if the checkpoint was made from another topic of the same name."""
    if topic_id and checkpoint.topic_id and topic_id != checkpoint.topic_id:
        raise TopicReplacedError(
            f"topic {checkpoint.topic} was deleted and created again (its id is {topic_id}, the checkpoint of "
            f"partition {checkpoint.partition} says {checkpoint.topic_id}); "
            "to learn the new one, use another store folder"
        )


def refuse_foreign_store(topic: str, partition: int, committed: int, newest: int | None) -> None:
    """Raise `ForeignStoreError` if the group has committed an offset that no checkpoint of the store has reached.

    Offsets are committed after their checkpoint is on disk, so with our own store this cannot be.
    """
    if committed > max(newest or 0, 0):
        held = "no checkpoint" if newest is None else f"no checkpoint beyond offset {newest}"
        raise ForeignStoreError(
            f"the consumer group has committed offset {committed} of partition {partition} of {topic}, but the store "
            f"holds {held} of it: is the volume mounted, is it this group's store, or was it restored from an older "
            "backup? To continue from this store all the same, run `streampca reset`"
        )


def refuse_other_store(topic: str, metadata: Mapping[int, str], ours: StoreIdentity) -> None:
    """Raise `ForeignStoreError` if the metadata of an offset, by partition, is of a worker with another store."""
    for partition, text in metadata.items():
        theirs = identity_in(text)
        if theirs and theirs.id != ours.id:
            raise ForeignStoreError(
                f"the consumer group's worker of partition {partition} of {topic} saved to the store {theirs} (id "
                f"{theirs.id}), but this worker's is another one, {ours} (id {ours.id}): mount the volume or set store "
                "to the group's, or use another group_id; to continue from this worker's store, stop all workers of "
                "the group and run `streampca reset`"
            )


def refuse_replaced(topic: str, before: str, now: str) -> None:
    """Raise `TopicReplacedError` if the topic was replaced while this worker read it.

    An empty id says nothing: brokers that are being upgraded from 2.7 begin to report ids, one after the other.
    """
    if before and now and now != before:
        raise TopicReplacedError(
            f"topic {topic} was deleted and created again while it was being read (its id was {before}, now it is "
            f"{now}); what was learned since the last checkpoint is dropped; "
            "to learn the new one, use another store folder"
        )
