"""The simulated world: machines with workers, one with the reader of models, a disk, a cluster, and a supervisor."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import numpy as np

from streampca.errors import StreampcaError
from streampca.member.listener import BatchLearned, Listener, MemberEvent, OffsetsSkipped, PartitionsAssigned
from streampca.sources.prefetch import Prefetch
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stream.record import Event, Records, Undecoded
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.loop import Worker
from streampca.worker.publisher import Publisher
from tests.simulation.cluster import Cluster, ClusterDeadLetters, ClusterSource
from tests.simulation.disk import Mount, Volume
from tests.simulation.history import History, Jump
from tests.simulation.mounted_path import MountedPath
from tests.simulation.plan import TOPIC, Burst, Plan
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.threads import executor_of, threads_of

POISON = b"poison"
_VECTORS = [row.tobytes() for row in np.random.default_rng(0).standard_normal((4099, 3)) * [3, 2, 1] + [1, 0, 5]]
_WITH_GAPS = [np.where(np.arange(3) == i % 5, np.nan, np.frombuffer(v)).tobytes() for i, v in enumerate(_VECTORS)]
_IMPLAUSIBLE = np.array([1e9, 0.0, -1e9]).tobytes()  # if the model has begun
_LATER = 1000  # numbers of bursts that are not the plan's
_SAME_TIME = 10  # records with the same timestamp
_WALL_S = 1.8e9
_RESTART_S, _CHECK_SESSIONS_S, _READ_MODELS_S = 1.0, 0.5, 1.0


class Machine:
    """A computer that runs one worker, restarted when it ends, or the reader of models."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.process: Process | None = None
        self.source: ClusterSource | None = None
        self.worker: Worker | None = None

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive


class World:
    """Everything that outlives a worker, and the workers."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.config = plan, plan.worker_config()
        self.scheduler = Scheduler(Random(f"moments {plan.seed}"))
        self.cluster = Cluster(self.scheduler, plan.partitions, TOPIC)
        self.volume, self.stray = Volume(), Volume()  # the workers' own, and another in its place
        self.mounted = self.volume
        self.wall_offset_s = 0.0
        self.is_registry_away = self.is_supervised = False
        self.violations: list[str] = []
        self.refusals: list[StreampcaError] = []  # errors with which workers ended
        self.changed: list[Callable[[str], object]] = []
        self.assigned: Callable[[Mount, Mapping[int, int]], object] = lambda mount, positions: None
        self.model_loaded: Callable[[ModelCache], object] = lambda cache: None
        self.history = History(self.cluster)
        self.machines = [self._machine() for _ in range(plan.machines)]
        self.reader = self._machine()

    def report(self, violation: str) -> None:
        """Note that a guarantee was broken."""
        self.violations.append(f"{self.scheduler.now:.2f} s: {violation}")

    def begin(self) -> None:
        """Start everything, and let the producer write by the plan."""
        self.is_supervised = True
        for machine in self.machines:
            self.start_worker(machine)
        self.start_reader()
        for number, burst in enumerate(self.plan.bursts):
            self.scheduler.at(burst.at, lambda n=number, b=burst: self.append(n, b))  # type: ignore[misc]
        self._check_sessions()

    def append(self, number: int, burst: Burst) -> None:
        """Append the records of a burst."""
        for start in range(0, burst.records, _SAME_TIME):
            places = range(start, min(start + _SAME_TIME, burst.records))
            first = number * 401 + self.plan.seed
            vectors = _WITH_GAPS if self.plan.gaps else _VECTORS
            values = [_value(burst, place, vectors[(first + place) % len(vectors)]) for place in places]
            stamp = 10**12 + int(1000 * burst.at) + 50 * start if start % 3 else -1
            self.cluster.append(burst.partition, *values, timestamp=stamp)
        self.cluster.skip(burst.partition, burst.gap)

    def accept_rejects(self) -> None:
        """Start workers without a limit of rejects from now on, as an operator may do."""
        self.config = replace(self.config, max_rejected_share=1.0)

    def cut(self, partition: int, records: int) -> None:
        """Let a broker become leader that has not got the last records; as many others take their places."""
        if gone := self.history.cut(partition, records):
            self.append(_LATER + partition, Burst(self.scheduler.now, partition, gone + 2, 0, 0))

    def replace_topic(self, records: int) -> None:
        """Delete the topic and create it again, with so many other records in each partition."""
        self.history.replace()
        self.append_to_all(records)

    def append_to_all(self, records: int) -> None:
        """Append so many good records to each partition."""
        for partition in range(len(self.cluster.logs)):
            self.append(_LATER + partition, Burst(self.scheduler.now, partition, records, 0, 0))

    def start_worker(self, machine: Machine) -> None:
        """Start a worker, as the supervisor does."""
        if not machine.is_up and self.is_supervised:
            process = machine.process = machine.mount.process = Process(
                self.scheduler, lambda process: self._ended(machine, process)
            )
            process.main(lambda: self._work(machine, process))

    def start_reader(self) -> None:
        """Start the sidecar's reader of models."""
        machine = self.reader
        if not machine.is_up and self.is_supervised:
            process = machine.process = machine.mount.process = Process(
                self.scheduler, lambda process: self._reader_ended(process)
            )
            process.main(lambda: self._read_models(process))

    def stop(self) -> None:
        """Stop all workers as by SIGTERM, and do not restart them."""
        self.is_supervised = False
        for machine in self.machines:
            if machine.worker and machine.is_up:
                machine.worker.stop("SIGTERM")
            elif machine.process:
                machine.process.kill()

    def end(self) -> None:
        """Kill what is left."""
        self.is_supervised = False
        for machine in [*self.machines, self.reader]:
            if machine.process:
                machine.process.kill()
        self.scheduler.run(self.scheduler.now)

    def _machine(self) -> Machine:
        return Machine(Mount(lambda: self.mounted, self._on_change, self.report))

    def _on_change(self, path: str) -> None:
        for notify in self.changed:
            notify(path)

    def _work(self, machine: Machine, process: Process) -> None:
        machine.worker = None
        store = DirectoryStore(MountedPath(machine.mount, "/store"))  # type: ignore[arg-type]
        store.check()
        checkpoints = Checkpoints(store, TOPIC, self.plan.keep)
        publisher = Publisher(checkpoints, Models(store, TOPIC, keep=3), self.config.fold, self._wall)
        source = machine.source = ClusterSource(self.cluster, process, self.plan.batch)
        dead_letters = ClusterDeadLetters(source)
        read = Prefetch(source, self.plan.prefetch, 10**6, self._decode, threads_of(process))
        writer = CheckpointWriter(checkpoints, publisher, executor_of(process))
        machine.worker = Worker(self.config, read, dead_letters, writer, _WorkerListener(self, machine.mount))
        machine.worker.run(lambda: self.scheduler.now)

    def _wall(self) -> float:
        return _WALL_S + self.scheduler.now + self.wall_offset_s

    def _decode(self, event: Records) -> Event:
        if self.is_registry_away and event.records:
            first = event.records[0].offset
            return Undecoded(event.partition, first, event.count, event.end, "the registry is away")
        return self.config.codec.vectors_of(event)

    def _ended(self, machine: Machine, process: Process) -> None:
        for error in process.errors:
            if isinstance(error, StreampcaError):
                self.refusals.append(error)
            else:
                self.report(f"a worker's thread ended with {error!r}")
        if self.is_supervised:
            self.scheduler.at(self.scheduler.now + _RESTART_S, lambda: self.start_worker(machine))

    def _read_models(self, process: Process) -> None:
        store = DirectoryStore(MountedPath(self.reader.mount, "/store"))  # type: ignore[arg-type]
        cache = ModelCache(Models(store, TOPIC), self._wall, monotonic=lambda: self.scheduler.now)
        while True:
            cache.poll()
            self.model_loaded(cache)
            process.call("read models")
            self.scheduler.sleep(_READ_MODELS_S)

    def _reader_ended(self, process: Process) -> None:
        for error in process.errors:
            self.report(f"the reader of models ended with {error!r}")
        self.scheduler.at(self.scheduler.now + _RESTART_S, self.start_reader)

    def _check_sessions(self) -> None:
        self.cluster.expire_sessions()
        self.scheduler.at(self.scheduler.now + _CHECK_SESSIONS_S, self._check_sessions)


def _value(burst: Burst, place: int, vector: bytes) -> bytes:
    if burst.poison and place % burst.poison == burst.poison - 1:
        return POISON
    return _IMPLAUSIBLE if burst.poison and place % 37 == 36 else vector


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
