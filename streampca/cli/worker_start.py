"""The start of a worker."""

from contextlib import closing
from functools import partial

import structlog

from streampca.cli.member_start import MemberStart
from streampca.cli.worker_config import create_worker_config
from streampca.consumer_group.step import Step
from streampca.pca.compilation import compile_kernels
from streampca.process.machine import kernels
from streampca.settings.commands import WorkerSettings
from streampca.sources.base import DeadLetters
from streampca.sources.clients import create_dead_letters
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.worker.checkpointer import WorkerConfig, check_before_joining

log = structlog.get_logger()

_COMPILATION_S = 15  # typical, on one core of a small server


class WorkerStart(MemberStart):
    """The start of one worker."""

    settings: WorkerSettings
    policy: WorkerConfig
    dead_letters: DeadLetters

    def __init__(self, settings: WorkerSettings, store: Store) -> None:
        super().__init__(settings)
        self.checkpoints = Checkpoints(store, settings.topic)
        self._store = store

    def steps(self) -> list[Step]:
        return [
            Step("store", self._check_store, waits_for="the store"),
            Step("format", self._create_config),
            *self._steps_at_the_brokers(),
            # Not later: a group waits for members that do not poll.
            Step("matrix kernels", self._compile_kernels, after=["format"], check=kernels),
            Step("consumer group", self._find_committed, after=["topic"]),
            Step(
                "checkpoints",
                self._check_checkpoints,
                after=["store", "format", "consumer group"],
                waits_for="the store",
                check=partial(self._check_checkpoints, every=True),
            ),
        ]

    def _check_store(self) -> str:
        self._store.check()
        return f"{self._store.location} can be written and read; its id is {self.checkpoints.known_identity().id}"

    def _create_config(self) -> str:
        self.policy = create_worker_config(self.settings)
        return self._use(self.policy.codec)

    def _find_dead_letter_topic(self) -> str:
        finding = super()._find_dead_letter_topic()
        self.dead_letters = self.opened.enter_context(closing(create_dead_letters(self.settings)))
        return finding

    def _compile_kernels(self) -> str:
        on_compile = partial(log.info, "compiling kernels", expected_seconds=_COMPILATION_S)
        compile_kernels(self.policy.fold.learning, on_compile)
        return kernels()

    def _check_checkpoints(self, *, every: bool = False) -> str:
        folds = check_before_joining(self.checkpoints, self.policy.fold, self.topic_id, self.committed, every=every)
        self.positions = {partition: max(fold.position, 0) for partition, fold in folds.items()}
        if not folds:
            return f"none yet; partitions begin at {self.settings.start}"
        learned = sum(fold.stats.learned for fold in folds.values())
        return f"{len(folds)} partitions, {learned:,} messages learned; they match the settings"
