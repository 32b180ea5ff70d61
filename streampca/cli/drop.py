"""Deletes what was learned of a partition or backfill: its files, and the models that contain it.

A model without the partition has learned fewer vectors, so its version is lower. Since the highest version is used, it
would never be used while models with the partition are kept.
"""

from collections.abc import Callable, Collection

from streampca.cli.console import Confirm, ask, console
from streampca.errors import SettingsError
from streampca.fold.partitions import is_backfill, partition_name
from streampca.settings.process import StoreSettings
from streampca.stores.base import Store
from streampca.stores.checkpoints import name_folder
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.stores.pins import Pins


def drop(
    settings: StoreSettings,
    partition: int,
    confirm: Confirm,
    delete_committed_offset: Callable[[], object] = lambda: None,
) -> None:
    """Delete what was learned of a partition or backfill, and the models that contain it.

    `delete_committed_offset` deletes the partition's offset of the group. It is called first: if it raises, no
    file is deleted.
    """
    store = open_store(settings.store)
    kind = "" if is_backfill(partition) else "partition "
    subject = f"{kind}{partition_name(partition)} of {settings.topic}"
    checkpoints, other_files = _list_files(store, name_folder(settings.topic, partition))
    models = Models(store, settings.topic)
    versions = models.find_containing(partition)
    if not checkpoints and not other_files and not versions:
        raise SettingsError(f"{settings.store} has no {subject}, and no model contains it")
    pinned = _describe_pins(Pins(store, settings.topic), versions)
    ask(confirm, f"Delete {subject}, and the {len(versions)} models that contain it{pinned}? Stop the workers first")
    delete_committed_offset()
    for path in checkpoints:
        store.delete(path)
    versions = models.find_containing(partition)  # workers may have published meanwhile
    models.delete(versions)
    # The other files of the folder are deleted last: if the command is killed before, they remain, and a repeated
    # command finds the folder by them.
    for path in other_files:
        store.delete(path)
    console().print(f"deleted {subject}, and {len(versions)} models that contained it")


def _list_files(store: Store, folder: str) -> tuple[list[str], list[str]]:
    """Return the checkpoints in the folder of a partition or backfill, and all other files in it, to be deleted."""
    parts_folder = f"{folder}/parts"  # here a backfill keeps what it has learned of its chunks
    paths = store.names(folder)  # may include `parts_folder`, which is not a file
    checkpoints = [path for path in paths if path.endswith(".npz")]
    other_files = [path for path in paths if path not in checkpoints and path != parts_folder]
    other_files += store.names(parts_folder)
    return checkpoints, other_files


def _describe_pins(pins: Pins, versions: Collection[int]) -> str:
    """Return, for the end of a question, which of these versions are pinned, and by which names; "" if none is."""
    names = [f"{name} ({version})" for name, version in pins.all().items() if version in versions]
    return f", among them what is pinned as {' and '.join(names)}" if names else ""
