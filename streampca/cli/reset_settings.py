"""`streampca reset --adopt-settings`: what was learned continues with other settings of the model."""

from contextlib import closing

from streampca.cli.console import Confirm, ask, console
from streampca.cli.reset import read_newest_checkpoints, require_no_members, warn_of_running_processes
from streampca.cli.worker_config import create_worker_config
from streampca.fold.fold import FoldConfig
from streampca.fold.partitions import partition_name
from streampca.settings.commands import WorkerSettings
from streampca.sources.kafka_python.connection import KafkaPythonAdmin
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store


def run(settings: WorkerSettings, confirm: Confirm) -> None:
    """Rewrite each checkpoint that has other settings, so that it has these settings."""
    config = create_worker_config(settings).fold
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    with closing(KafkaPythonAdmin(settings, settings.topic)) as admin, admin.translate_errors():
        topic_id = admin.require_topic().id
        require_no_members(admin, settings.group_id)
    partitions_to_rewrite = _find_partitions_to_rewrite(checkpoints, topic_id, config)
    if not partitions_to_rewrite:
        console().print(f"nothing to adopt: no checkpoint of {settings.topic} in {settings.store} has other settings")
        return
    warn_of_running_processes(settings)
    ask(confirm, "Keep what was learned, and continue with the settings of now?")
    for partition in partitions_to_rewrite:
        before = checkpoints.newest(partition)
        if before is not None:  # None: deleted while the user was asked
            checkpoints.replace(before, before.adopt_settings(config))
    console().print(
        f"{len(partitions_to_rewrite)} partitions continue; the next model that is published has these settings"
    )


def _find_partitions_to_rewrite(checkpoints: Checkpoints, topic_id: str, config: FoldConfig) -> list[int]:
    """Return the partitions whose newest checkpoint was made with other settings, and print what has changed.

    Raises `SettingsError` if learning cannot continue with the settings of `config`.
    """
    partitions = []
    for checkpoint in read_newest_checkpoints(checkpoints):
        checkpoint.refuse_other_topic(topic_id)
        changes = checkpoint.find_changes(config)
        # If nothing was learned, a worker accepts any settings.
        if changes and checkpoint.fold.stats.learned:
            # The result is not used. An error is raised here, before the first checkpoint is rewritten.
            checkpoint.adopt_settings(config)
            partitions.append(checkpoint.partition)
            console().print(f"partition {partition_name(checkpoint.partition)}: {', '.join(map(str, changes))}")
    return partitions
