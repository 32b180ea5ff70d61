"""The start of a worker."""

from contextlib import closing

import structlog

from streampca.cli.member_start import MemberStart
from streampca.cli.worker_config import create_worker_config
from streampca.consumer_group.step import Step
from streampca.pca.compilation import compile_learning_functions
from streampca.process.machine import describe_openblas_kernels
from streampca.settings.commands import WorkerSettings
from streampca.sources.base import DeadLetters
from streampca.sources.clients import create_dead_letters
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.worker.checkpointer import WorkerConfig, check_before_joining
from streampca.worker.missing import refuse_missing

log = structlog.get_logger()

_COMPILATION_S = 15  # typical, on one core of a small server


class WorkerStart(MemberStart):
    """The start of one worker."""

    settings: WorkerSettings
    config: WorkerConfig
    dead_letters: DeadLetters

    def __init__(self, settings: WorkerSettings, store: Store) -> None:
        super().__init__(settings)
        self.checkpoints = Checkpoints(store, settings.topic)
        self._store = store

    def steps(self) -> list[Step]:
        """Return the steps in their order.

        `after` names the steps whose results a step uses. `waits_for` is what the log names while a step is tried
        again. If a step has a `check`, `streampca doctor` runs the check instead of the step.
        """
        return [
            Step("store", self._check_store, waits_for="the store"),
            Step("format", self._create_config),
            *self._list_steps_at_brokers(),  # "broker", "topic" and "dead-letter topic"
            # Compile before the group is joined, since a group removes a member that does not poll. Compiling takes
            # long, so doctor only reports the kernels, as the step does, too.
            Step("matrix kernels", self._compile_learning_functions, after=["format"], check=describe_openblas_kernels),
            Step("consumer group", self._read_committed_offsets, after=["topic"]),
            Step(
                "checkpoints",
                self._check_checkpoints,
                after=["store", "format", "consumer group"],
                waits_for="the store",
                check=self._check_all_checkpoints,
            ),
        ]

    def _check_store(self) -> str:
        """Check that the store can be written and read. Returns what was found: where it is, and its id."""
        self._store.check()
        return f"{self._store.location} can be written and read; its id is {self.checkpoints.find_identity().id}"

    def _create_config(self) -> str:
        """Create the configuration of the worker's loop. Returns whether its format can be decoded."""
        self.config = create_worker_config(self.settings)
        return self._use_codec(self.config.codec)

    def _find_dead_letter_topic(self) -> str:
        finding = super()._find_dead_letter_topic()
        self.dead_letters = self.opened.enter_context(closing(create_dead_letters(self.settings)))
        return finding

    def _compile_learning_functions(self) -> str:
        """Compile the learning functions, unless they are cached.

        Returns a sentence on which kernels of OpenBLAS NumPy uses, which is the same without compiling.
        """

        def log_compilation() -> None:
            log.info("compiling kernels", expected_seconds=_COMPILATION_S)

        compile_learning_functions(self.config.fold.learning, on_compile=log_compilation)
        return describe_openblas_kernels()

    def _check_all_checkpoints(self) -> str:
        """Check the checkpoints of all partitions, and that none is missing. Returns how many were checked."""
        finding = self._check_checkpoints(all_partitions=True)
        refuse_missing(self.checkpoints, Models(self._store, self.settings.topic), self.committed, self.topic_id)
        return finding

    def _check_checkpoints(self, *, all_partitions: bool = False) -> str:
        """Check that checkpoints match the settings, the topic and the group. Returns a sentence on what was found.

        Without `all_partitions`, only one partition and one backfill are checked, and counted in the sentence, so that
        the start is fast: the worker checks each partition when it is assigned. Sets `positions` of what was checked.
        """
        checked_folds = check_before_joining(
            self.checkpoints, self.config.fold, self.topic_id, self.committed, check_all=all_partitions
        )
        # A fold that has read nothing has the position -1.
        self.positions = {partition: max(fold.position, 0) for partition, fold in checked_folds.items()}
        if not checked_folds:
            return f"none yet; partitions begin at {self.settings.start}"
        learned = sum(fold.stats.learned for fold in checked_folds.values())
        return f"{len(checked_folds)} partitions, {learned:,} messages learned; they match the settings"
