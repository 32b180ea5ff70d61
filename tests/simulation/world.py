"""The simulated world of workers: their machines, and one with the reader of models."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NoReturn

from streampca.consumer_group.events import BatchLearned, Listener, MemberEvent, OffsetsSkipped, PartitionsAssigned
from streampca.errors import RejectLimitError
from streampca.sources.decode import decode_records
from streampca.sources.prefetch import Prefetch
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.loop import Worker
from streampca.worker.publisher import Publisher
from tests.simulation.cluster import Cluster, ClusterDeadLetters, ClusterSource
from tests.simulation.disk import Mount
from tests.simulation.history import Jump
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.registry import ProcessSchemas
from tests.simulation.scheduler import Process
from tests.simulation.site import Machine, Site
from tests.simulation.threads import ProcessExecutor, threads_of

_READ_MODELS_S = 1.0


class World(Site):
    """Machines with workers, and one with the reader of models."""

    def __init__(self, plan: Plan) -> None:
        self.config = plan.worker_config()
        self.assigned: Callable[[Mount, Mapping[int, int]], object] = lambda mount, positions: None
        self.model_loaded: Callable[[ModelCache], object] = lambda cache: None
        super().__init__(plan, lambda scheduler: Cluster(scheduler, plan.partitions, TOPIC))
        self.reader = self._machine()
        self.newer_files: set[str] = set()  # checkpoints of a newer release

    @property
    def all_machines(self) -> list[Machine]:
        return [*self.machines, self.reader]

    def accept_all(self) -> None:
        """If bad records have ended workers, start them from now on so that they skip these, as an operator may do."""
        if any(isinstance(error, RejectLimitError) for error in self.refusals):
            self.config = replace(self.config, on_bad_record="skip")

    def replace_topic(self, records: int) -> None:
        """Delete the topic and create it again, with so many other records in each partition."""
        self.history.replace()
        self.append_to_all(records)

    def _start(self) -> None:
        super()._start()
        self.start_worker(self.reader)

    def _work(self, machine: Machine, process: Process) -> None:
        if machine is self.reader:
            self._read_models(process)
        machine.worker = None
        store = self._store(machine)
        store.check()
        checkpoints = Checkpoints(store, TOPIC, self.plan.keep)
        publisher = Publisher(Models(store, TOPIC, keep=3), self.config.fold, self._wall)
        source = machine.source = ClusterSource(self.cluster, process, self.plan.batch)
        dead_letters = ClusterDeadLetters(source)
        codec = replace(self.config.codec, schemas=ProcessSchemas(self.registry, process))
        read = Prefetch(source, self.plan.prefetch, 10**6, partial(decode_records, codec), threads_of(process))
        writer = CheckpointWriter(checkpoints, publisher, ProcessExecutor(process), lambda: self.scheduler.now)
        machine.worker = Worker(self.config, read, dead_letters, writer, _WorkerListener(self, machine.mount))
        try:
            machine.worker.run(lambda: self.scheduler.now)
        except RejectLimitError as error:
            if any(fold.stats.learned for fold in machine.worker._folds.values()):
                self.report(f"bad records ended a worker that had learned: {error}")
            raise

    def _read_models(self, process: Process) -> NoReturn:
        """As the sidecar does."""
        cache = ModelCache(Models(self._store(self.reader), TOPIC), self._wall)
        while True:
            cache.poll()
            self.model_loaded(cache)
            process.call("read models")
            self.scheduler.sleep(_READ_MODELS_S)


class _WorkerListener(Listener):
    """Notes from where partitions are read, and what a worker skips."""

    def __init__(self, world: World, mount: Mount) -> None:
        self._world, self._mount, self._positions = world, mount, dict[int, int]()

    def notify(self, event: MemberEvent) -> None:
        match event:
            case PartitionsAssigned(positions):
                self._positions |= positions
                self._world.assigned(self._mount, positions)
            case BatchLearned(partition, fold):
                self._positions[partition] = fold.position
            case OffsetsSkipped(partition, lost_from, to):
                jump = Jump(self._positions[partition], lost_from, to)
                if not self._world.history.jump(partition, jump):
                    self._world.report(f"partition {partition}: {jump}, but nothing was cut there")
