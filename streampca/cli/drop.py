"""Deletes what was learned of a partition or backfill: its files, and the models that contain it.

A model without the partition has learned fewer vectors, so its version is lower. Since the highest version is used, it
would never be used while models with the partition are kept.
"""

from collections.abc import Callable

from streampca.cli.console import Confirm, ask, console
from streampca.errors import SettingsError
from streampca.fold.partitions import is_backfill, partition_name
from streampca.settings.process import StoreSettings
from streampca.stores.checkpoints import name_folder
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.stores.pins import Pins


def drop(
    settings: StoreSettings,
    partition: int,
    confirm: Confirm,
    delete_offset: Callable[[], object] = lambda: None,
) -> None:
    """Delete what was learned of a partition or backfill, and the models that contain it.

    `delete_offset` is called before any file is deleted.
    """
    store = open_store(settings.store)
    name = partition_name(partition)
    kind = "" if is_backfill(partition) else "partition "
    what = f"{kind}{name} of {settings.topic}"
    folder = name_folder(settings.topic, partition)
    parts_folder = f"{folder}/parts"
    paths = store.names(folder)
    checkpoints = [path for path in paths if path.endswith(".npz")]
    other_files = [path for path in paths if path not in checkpoints and path != parts_folder]
    other_files += store.names(parts_folder)
    models = Models(store, settings.topic)
    versions = models.find_containing(partition)
    if not checkpoints and not other_files and not versions:
        raise SettingsError(f"{settings.store} has no {what}, and no model contains it")
    pins = [f"{pin} ({version})" for pin, version in Pins(store, settings.topic).all().items() if version in versions]
    pinned = f", among them what is pinned as {' and '.join(pins)}" if pins else ""
    question = f"Delete {what}, and the {len(versions)} models that contain it{pinned}? Stop the workers first"
    ask(confirm, question)
    delete_offset()
    for path in checkpoints:
        store.delete(path)
    versions = models.find_containing(partition)  # workers may have published meanwhile
    models.delete(versions)
    for path in other_files:  # last, so that a repeated command still finds a backfill
        store.delete(path)
    console().print(f"deleted {what}, and {len(versions)} models that contained it")
