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


def find_missing(model: PublishedModel | None, offsets: Mapping[int, int], topic_id: str) -> dict[int, str]:
    """Return the partitions and backfills that a model has learned further than the checkpoints, with a message each.

    If the model is of another topic than `topic_id`, its offsets mean other records, and only those of backfills are
    compared. Each partition must have a checkpoint all the same: otherwise a topic that was created again would begin
    beside the models of the old one.
    """
    if model is None:
        return {}
    is_other_topic = bool(model.topic_id and topic_id and model.topic_id != topic_id)
    missing: dict[int, str] = {}
    for partition, position in model.positions.items():
        name = partition_name(partition)  # "3" or "backfill-0"
        subject = name if is_backfill(partition) else f"partition {name}"
        contained = f"model {model.version} contains {subject}"
        if partition not in offsets:
            missing[partition] = (
                f"{contained}, but no checkpoint of it is left: restore its checkpoints from a backup, or do without "
                f"what was learned of it: `streampca reset --drop {name}`"
            )
            continue
        is_comparable = is_backfill(partition) or not is_other_topic
        if is_comparable and offsets[partition] < position:
            missing[partition] = f"{contained} up to offset {position}, but its newest checkpoint is older"
    return missing


def refuse_missing(checkpoints: Checkpoints, models: Models, committed: Mapping[int, Committed], topic_id: str) -> None:
    """Raise `PartitionsMissingError` if the newest model or a committed offset shows that a checkpoint is gone."""
    stored = checkpoints.snapshot()
    offsets = stored.newest_offsets()
    # A backfill has no committed offset, so the model must show it. A new partition may be in no model yet.
    in_model = find_missing(models.newest(), offsets, topic_id)
    gone = {partition: cause for partition, cause in in_model.items() if partition not in offsets}
    missing = compare_offsets(checkpoints.topic, offsets, committed).committed_ahead | gone
    if missing:
        raise PartitionsMissingError(missing)
