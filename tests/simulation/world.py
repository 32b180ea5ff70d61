"""The simulated world of workers: their machines, and one with the reader of models."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NoReturn

from streampca.errors import RejectLimitError, StoreBusyError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.fold.partitions import FIRST_BACKFILL, parse_offsets
from streampca.formats.record import Record
from streampca.sources.events import decode_records
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.worker.checkpointer import check_before_joining
from streampca.worker.loop import Worker
from streampca.worker.publisher import Publisher
from streampca.worker.writer import CheckpointWriter
from tests.simulation.cluster import Cluster, ClusterDeadLetters, ClusterSource
from tests.simulation.disk import File
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.registry import ProcessSchemas, make_value
from tests.simulation.scheduler import Process
from tests.simulation.site import EventChecks, Machine, Site, choose_vectors
from tests.simulation.threads import ProcessExecutor, make_in_flight

_READ_MODELS_S = 1.0


class World(Site):
    """Machines with workers, and one with the reader of models."""

    def __init__(self, plan: Plan) -> None:
        self.config = plan.make_worker_config()
        self.model_loaded: Callable[[ModelCache], object] = lambda cache: None
        super().__init__(plan, lambda scheduler: Cluster(scheduler, plan.partitions, TOPIC))
        self.reader = self._create_machine()
        self.newer_files: set[str] = set()  # checkpoints of a newer release
        self.deleted: dict[str, File] = {}  # by a rule
        self.backfills = list[Checkpoint]()

    @property
    def all_machines(self) -> list[Machine]:
        return [*self.machines, self.reader]

    def accept_all(self) -> None:
        """If bad records have ended workers, start them from now on so that they skip these, as an operator may do."""
        if any(isinstance(error, RejectLimitError) for error in self.refusals):
            self.config = replace(self.config, on_bad_record="skip")

    def _start(self) -> None:
        if self.plan.start == "backfill":
            self._save_backfill()
        super()._start()
        self.start_worker(self.reader)

    def _save_backfill(self) -> None:
        """What `streampca backfill` has saved before the workers start, and where they begin then."""
        records = [
            Record(place, make_value(vector, place)) for place, vector in enumerate(choose_vectors(self.plan)[:50])
        ]
        batch = self.config.codec.decode_batch(records, len(records))
        fold, _ = Fold.empty(self.config.fold.learning).take(batch, self.config.fold)
        backfill = Checkpoint(TOPIC, "", FIRST_BACKFILL, fold, self.config.fold.as_dict(), self.plan.until)
        Checkpoints(self._open_store(self.reader), TOPIC).save(backfill)
        self.backfills.append(backfill)
        self.cluster.starts = {p: {offset} for p, offset in (parse_offsets(self.plan.until) or {}).items()}

    def _work(self, machine: Machine, process: Process) -> None:
        if machine is self.reader:
            self._read_models(process)
        machine.worker = None
        store = self._open_store(machine)
        store.check()
        checkpoints = Checkpoints(store, TOPIC, self.plan.keep, ProcessExecutor(process))
        publisher = Publisher(Models(store, TOPIC, keep=3), self.config.fold, self._unix_time)
        source = machine.source = ClusterSource(self.cluster, process, self.plan.batch)
        dead_letters = ClusterDeadLetters(source)
        codec = replace(self.config.codec, schemas=ProcessSchemas(self.registry, process))
        in_flight = make_in_flight(process, partial(decode_records, codec), self.plan.in_flight_bytes)
        writer = CheckpointWriter(checkpoints, publisher, ProcessExecutor(process), lambda: self.scheduler.now)
        checks = EventChecks(self, machine.mount)
        worker = Worker(self.config, source, in_flight, dead_letters, writer, checks.notify)
        with suppress(TimeoutError, StoreBusyError):  # as a start does, which waits for them
            topic_id, committed = source.topic_id(), source.committed()
            check_before_joining(checkpoints, self.config.fold, topic_id, committed)
        self._run(machine, worker, lambda: any(fold.stats.learned for fold in worker._folds.values()))

    def _read_models(self, process: Process) -> NoReturn:
        """As the sidecar does."""
        cache = ModelCache(Models(self._open_store(self.reader), TOPIC), self._unix_time)
        while True:
            cache.poll()
            self.model_loaded(cache)
            process.call("read models")
            self.scheduler.sleep(_READ_MODELS_S)
