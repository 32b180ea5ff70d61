"""`streampca reset --adopt-topic`: what was learned continues in a topic with another id, on another cluster."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from streampca.cli.console import Confirm, ask, console, format_by_partition
from streampca.cli.reset import (
    delete_committed_offsets,
    find_committed_offsets,
    find_positions,
    make_empty_checkpoint,
    raise_first_error,
    read_newest_checkpoints,
    require_no_members,
    warn_of_running_processes,
)
from streampca.consumer_group.committed import format_output_metadata, read_shape, read_topic_id
from streampca.errors import SettingsError
from streampca.fold.partitions import is_backfill
from streampca.settings.commands import ResetSettings
from streampca.sources.kafka_python.connection import KafkaPythonAdmin
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store

_NO_LEADER_EPOCH = -1  # of a committed offset: these brokers count leader epochs anew


class AdoptedTopic(NamedTuple):
    """The topic of these brokers in which worker and transform are to continue.

    The topic that they have read until now has the same name, but another id.
    """

    name: str
    id: str
    positions: Mapping[int, int]  # offset of every partition at which they continue


def run(settings: ResetSettings, confirm: Confirm, to: str | None, role: str | None) -> None:
    """Let worker and transform continue in a topic that was moved to other brokers, where it has another id.

    They continue at the offsets that `to`, the option --to, names. To adopt the topic, its new id and these offsets are
    written into the workers' checkpoints, and into the committed offsets of transform's group. The workers' committed
    offsets are deleted, since they are offsets of the old topic. A killed command can be repeated: a repeated command
    skips each partition that has the new id.
    """
    if not to:
        raise SettingsError("--adopt-topic needs --to: an offset of the old topic is another record in this topic")
    groups = _choose_groups(settings, role)
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    with closing(KafkaPythonAdmin(settings, settings.topic)) as admin, admin.translate_errors():
        adopted = AdoptedTopic(settings.topic, admin.require_topic().id, find_positions(admin, to))
        for group_id in groups.values():
            require_no_members(admin, group_id)
        partitions = _find_partitions_to_adopt(checkpoints, adopted) if "worker" in groups else []
        transform_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        if "transform" in groups:
            committed = find_committed_offsets(admin, settings.transform_group_id)
            transform_offsets = _make_transform_offsets(committed, adopted)
        if not partitions and not transform_offsets:
            console().print(f"nothing to adopt: all is of the topic with the id {adopted.id} already")
            return
        warn_of_running_processes(settings)
        positions = format_by_partition(adopted.positions)
        ask(confirm, f"Continue in {settings.topic} with the id {adopted.id} at the offsets {positions}?")
        if partitions:
            # Delete the committed offsets first: once all checkpoints have the new id, a repeated command finds no
            # partition to adopt, so it would not delete these offsets any more.
            delete_committed_offsets(admin, settings.group_id)
            for partition in partitions:
                _adopt_checkpoint(checkpoints, adopted, partition)
        if transform_offsets:
            raise_first_error(admin.client.alter_group_offsets(settings.transform_group_id, transform_offsets))
        console().print(f"{', '.join(groups)}: to continue at {positions}")


def _choose_groups(settings: ResetSettings, role: str | None) -> dict[str, str]:
    """Return the consumer groups, by role, that are to continue in the topic on other brokers, which has a new id.

    The roles are worker and transform. With `role`, only the group of this role is returned. Otherwise, it is the
    workers' group, and if there is an output topic, also the group of transform.
    """
    groups = {"worker": settings.group_id, "transform": settings.transform_group_id}
    if role is None:
        return groups if settings.output_topic else {"worker": settings.group_id}
    if role not in groups:
        raise SettingsError(f"--role {role}: must be worker or transform")
    return {role: groups[role]}


def _find_partitions_to_adopt(checkpoints: Checkpoints, adopted: AdoptedTopic) -> list[int]:
    """Return the partitions whose newest checkpoint is not of the adopted topic yet: it lacks the topic's new id.

    Prints the former id of each partition. A partition without a checkpoint is returned, too. Raises `SettingsError` if
    no partition has a checkpoint, or if the adopted topic lacks a partition that has a checkpoint.
    """
    id_by_partition = {  # the topic's id in the newest checkpoint
        checkpoint.partition: checkpoint.topic_id
        for checkpoint in read_newest_checkpoints(checkpoints)
        if not is_backfill(checkpoint.partition)
    }
    if not id_by_partition:
        raise SettingsError(f"the store holds no checkpoint of a partition of {adopted.name}: correct store or topic")
    adopted_partitions = adopted.positions.keys()  # 0, 1, … without gaps: all are there if the highest one is
    highest_learned = max(id_by_partition)  # the highest partition with a checkpoint
    if highest_learned not in adopted_partitions:
        raise SettingsError(
            f"{adopted.name} has {len(adopted_partitions)} partitions here, but the store holds a checkpoint of "
            f"partition {highest_learned}: correct store or topic, or add partitions to the topic"
        )
    partitions_to_adopt = []
    for partition in sorted(adopted_partitions):
        id_before = id_by_partition.get(partition)
        if id_before != adopted.id:
            console().print(f"worker, partition {partition}: the topic's id was {id_before or 'none'}")
            partitions_to_adopt.append(partition)
    return partitions_to_adopt


def _make_transform_offsets(
    committed: Mapping[TopicPartition, OffsetAndMetadata], adopted: AdoptedTopic
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets with which transform's group continues in `adopted`, the topic of these brokers.

    Prints the former id of the topic for each partition. The metadata of a committed offset hold the topic's id, the
    last record, and the shape of the outputs. If a partition's metadata have the id of `adopted` already, the partition
    is left out.
    """
    offsets = {}
    for partition, position in adopted.positions.items():
        tp = TopicPartition(adopted.name, partition)
        metadata_before = committed[tp].metadata if tp in committed else ""
        id_before = read_topic_id(metadata_before)
        if id_before == adopted.id:
            continue
        console().print(f"transform, partition {partition}: the topic's id was {id_before or 'none'}")
        # The metadata no longer name a last record, because this record has another offset in the adopted topic.
        metadata = format_output_metadata(read_shape(metadata_before), adopted.id, last=None)
        # confluent-kafka reads metadata up to a zero byte, and without one beyond their end.
        terminated = f"{metadata}\0"
        offsets[tp] = OffsetAndMetadata(offset=position, metadata=terminated, leader_epoch=_NO_LEADER_EPOCH)
    return offsets


def _adopt_checkpoint(checkpoints: Checkpoints, adopted: AdoptedTopic, partition: int) -> None:
    """Give the newest checkpoint of a partition the id of the adopted topic, and the position at which to continue.

    A partition without a checkpoint gets an empty one.
    """
    position = adopted.positions[partition]
    before = checkpoints.newest(partition)
    if before is None:
        checkpoints.save(make_empty_checkpoint(adopted.name, adopted.id, partition, position))
        return
    # Not `fold.skip`, which would count the offsets between the old and the new position as lost records.
    fold = replace(
        before.fold,
        position=position,
        last=None,  # the last record has a leader epoch of the old cluster
    )
    after = replace(before, topic_id=adopted.id, fold=fold)
    checkpoints.replace(before, after)
