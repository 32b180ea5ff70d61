"""Finds what is missing in a store: partitions and backfills of the newest model that checkpoints do not hold any more.

Models do not shrink: the next model contains at least what the newest one contains. So the newest model says what must
still be there.
"""

from collections.abc import Mapping

from streampca.errors import PartitionsMissingError
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import is_backfill, partition_name
from streampca.sources.base import Committed
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.worker.group_store import compare_offsets


def find_partitions_behind_model(
    model: PublishedModel | None, offsets: Mapping[int, int], topic_id: str
) -> dict[int, str]:
    """Return the partitions and backfills that a model has learned beyond their newest checkpoint, with a message each.

    `offsets` are those of the newest checkpoints, by partition. `topic_id` is the id of the topic that is read.
    """
    if model is None:
        return {}
    # A topic that was deleted and created again has another id. An empty id is not known.
    is_other_topic = bool(model.topic_id and topic_id and model.topic_id != topic_id)
    why_behind: dict[int, str] = {}
    for partition, position in model.positions.items():
        name = partition_name(partition)  # "3" or "backfill-0"
        subject = name if is_backfill(partition) else f"partition {name}"
        contained = f"model {model.version} contains {subject}"
        if partition not in offsets:
            # Also if the model is of another topic: otherwise, this store would get models of two topics.
            why_behind[partition] = (
                f"{contained}, but no checkpoint of it is left: restore its checkpoints from a backup, or do without "
                f"what was learned of it: `streampca reset --drop {name}`"
            )
            continue
        # Offsets of another topic mean other records. Those of a backfill do not depend on the topic.
        is_comparable = is_backfill(partition) or not is_other_topic
        if is_comparable and offsets[partition] < position:
            why_behind[partition] = f"{contained} up to offset {position}, but its newest checkpoint is older"
    return why_behind


def refuse_missing(checkpoints: Checkpoints, models: Models, committed: Mapping[int, Committed], topic_id: str) -> None:
    """Raise `PartitionsMissingError` if checkpoints are missing. There are two signs of this:

    1. The newest model contains a partition or a backfill that has no checkpoint.
    2. The group has committed an offset of a partition that no checkpoint of the partition has reached.
    """
    stored = checkpoints.snapshot()
    offsets = stored.newest_offsets()
    # 1. If a checkpoint is only older than the model, it is not missing: a worker learns the later records again.
    why_behind_model = find_partitions_behind_model(models.newest(), offsets, topic_id)
    why_no_checkpoint = {p: why for p, why in why_behind_model.items() if p not in offsets}
    # 2. A new partition may be in no model yet. A committed offset shows that it had a checkpoint.
    why_group_is_ahead = compare_offsets(checkpoints.topic, offsets, committed).why_ahead_of_store
    why_missing = why_group_is_ahead | why_no_checkpoint
    if why_missing:
        raise PartitionsMissingError(why_missing)
