"""What the simulations share: machines with processes, a disk, a cluster, a producer of records, and a supervisor."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from streampca.consumer_group import events
from streampca.errors import RejectLimitError, StreampcaError
from streampca.stores.directory import DirectoryStore
from tests.simulation.cluster import Cluster, ClusterSource
from tests.simulation.disk import Mount, Volume
from tests.simulation.history import History, Jump
from tests.simulation.mounted_path import MountedPath
from tests.simulation.plan import AnyPlan, Burst, D
from tests.simulation.registry import make_poison, make_value, registry
from tests.simulation.scheduler import Process, Scheduler

_VECTORS = [row.tobytes() for row in np.random.default_rng(0).standard_normal((4099, D)) * [3, 2, 1] + [1, 0, 5]]
_WITH_GAPS = [np.where(np.arange(D) == i % 5, np.nan, np.frombuffer(v)).tobytes() for i, v in enumerate(_VECTORS)]
_QUIET = [row.tobytes() for row in np.random.default_rng(1).standard_normal((31, 3)) * 1e-4 + [1, 0, 5]]
_IMPLAUSIBLE = np.array([1e9, 0.0, -1e9])  # if the model has begun
_LATER = 1000  # numbers of bursts that are not the plan's
_SAME_TIME = 10  # records with the same timestamp
_WALL_S = 1.8e9
_RESTART_S, _CHECK_SESSIONS_S = 1.0, 0.5


def _make_correlated() -> list[bytes]:
    """A pair and a triple of entries, and one alone, with heavy tails; a fifth of the entries is missing."""
    random = np.random.default_rng(2)
    common = np.repeat(random.standard_t(3, (4099, 3)), [3, 2, 1], axis=1)
    V = common + 0.1 * random.standard_normal(common.shape)
    is_missing = random.random(V.shape) < 0.2
    is_missing[is_missing.all(axis=1)] = False
    return [row.tobytes() for row in np.where(is_missing, np.nan, V)]


_CORRELATED = _make_correlated()


def choose_vectors(plan: AnyPlan) -> list[bytes]:
    """The vectors of a plan's records."""
    if plan.correlated:
        return _CORRELATED
    return _WITH_GAPS if plan.gaps else _VECTORS


class Machine:
    """A computer that runs one member of the group, restarted when it ends, or another process."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.process: Process | None = None
        self.source: ClusterSource | None = None
        self.worker: Any = None  # a worker or a member of transform: may be stopped

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def hangs(self) -> bool:
        """Whether its member hears no signal."""
        return self.is_up and self.process is not None and self.process.hangs

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    def pause(self, seconds: float) -> None:
        """Let its process do nothing for this time."""
        if self.process:
            self.process.pause(seconds)

    def cut(self, seconds: float) -> None:
        """Cut its member off from the cluster for this time."""
        if self.source:
            self.source.cut_until = self.source.cluster.scheduler.now + seconds


class Site(ABC):
    """Everything that outlives a process, and the processes."""

    def __init__(self, plan: Any, new_cluster: Callable[[Scheduler], Cluster]) -> None:
        self.plan = plan
        self.scheduler = Scheduler(Random(f"moments {plan.seed}"))
        self.cluster = new_cluster(self.scheduler)
        self.volume, self.stray = Volume(), Volume()  # the site's own, and another in its place
        self.mounted = self.volume
        self.wall_offset_s = 0.0
        self.registry, self.is_supervised = registry(), False
        self.violations: list[str] = []
        self.refusals: list[StreampcaError] = []  # errors with which members ended
        self.changed: Callable[[str], object] = lambda path: None
        self.assigned: Callable[[Mount, Mapping[int, int]], object] = lambda mount, positions: None
        self.history = History(self.cluster)
        self.machines = [self._create_machine() for _ in range(plan.machines)]

    @property
    def all_machines(self) -> list[Machine]:
        """Those of the group's members, and others."""
        return self.machines

    @abstractmethod
    def accept_all(self) -> None:
        """Let an operator end what has stopped members until now, such as a limit of rejects."""

    @abstractmethod
    def _work(self, machine: Machine, process: Process) -> None:
        """Run a member of the group, or what else the machine runs, as the main thread of a process."""

    def digest(self) -> str:
        """A digest of all that was done."""
        names = self.volume.files("/store")
        contents = b"".join(self.volume.entries[name].data for name in names)
        steps = repr((names, self.scheduler.steps, self.scheduler.now, *self._list_results())).encode()
        return hashlib.sha256(steps + contents).hexdigest()

    def report(self, violation: str) -> None:
        self.violations.append(f"{self.scheduler.now:.2f} s: {violation}")

    def begin(self) -> None:
        """Start everything, and let the producer write by the plan."""
        self.is_supervised = True
        self._start()
        for number, burst in enumerate(self.plan.bursts):
            self.scheduler.at(burst.at, lambda n=number, b=burst: self.append(n, b))  # type: ignore[misc]
        self._check_sessions()

    def append(self, number: int, burst: Burst) -> None:
        for start in range(0, burst.records, _SAME_TIME):
            places = range(start, min(start + _SAME_TIME, burst.records))
            first = number * 401 + self.plan.seed
            is_quiet = self.cluster.logs[burst.partition].end < self.plan.quiet
            vectors = _QUIET if is_quiet else choose_vectors(self.plan)
            values = [_value(burst, number, place, vectors[(first + place) % len(vectors)]) for place in places]
            stamp = 10**12 + int(1000 * burst.at) + 50 * start if start % 3 else -1
            self.cluster.append(burst.partition, *values, timestamp=stamp)
        self.cluster.skip(burst.partition, burst.gap)

    def append_to_all(self, records: int) -> None:
        for partition in range(len(self.cluster.logs)):
            self.append_later(partition, records)

    def append_later(self, partition: int, records: int) -> None:
        """Append so many good records that are not the plan's."""
        self.append(_LATER + partition, Burst(self.scheduler.now, partition, records, 0, 0))

    def replace_topic(self, records: int) -> None:
        """Delete the topic and create it again, with so many other records in each partition."""
        self.history.replace()
        self.append_to_all(records)

    def cut(self, partition: int, records: int) -> None:
        """Let a broker become leader that has not got the last records; as many others take their places."""
        if gone := self.history.cut(partition, records):
            self.append_later(partition, gone + 2)

    def skip(self, partition: int, jump: Jump, truncated: bool) -> None:
        """Note that a member has skipped records, which it may only where the log was cut."""
        if not self.history.jump(partition, jump):
            self.report(f"partition {partition}: {jump}, but nothing was cut there")

    def start_worker(self, machine: Machine) -> None:
        """Start a member of the group, or what else the machine runs, as the supervisor does."""
        if not machine.is_up and self.is_supervised:
            process = machine.process = machine.mount.process = Process(
                self.scheduler, lambda process: self._on_end(machine, process)
            )
            process.main(lambda: self._work(machine, process))

    def stop(self) -> None:
        """Stop all members as by SIGTERM, and do not restart them."""
        self.is_supervised = False
        for machine in self.machines:
            if machine.worker and machine.is_up:
                machine.worker.stop("SIGTERM")
            else:
                machine.kill()

    def end(self) -> None:
        self.is_supervised = False
        for machine in self.all_machines:
            machine.kill()
        self.scheduler.run(self.scheduler.now)

    def _run(self, machine: Machine, member: Any, has_continued: Callable[[], bool]) -> None:
        """Run a member, which bad records may end only if it has continued nobody's work."""
        machine.worker = member
        try:
            member.run(lambda: self.scheduler.now)
        except RejectLimitError as error:
            if has_continued():
                self.report(f"bad records ended a member that had continued: {error}")
            raise

    def _list_results(self) -> Sequence[Any]:
        """What is not in the store."""
        return ()

    def _start(self) -> None:
        for machine in self.machines:
            self.start_worker(machine)

    def _create_machine(self) -> Machine:
        return Machine(Mount(lambda: self.mounted, lambda path: self.changed(path), self.report))

    def _open_store(self, machine: Machine) -> DirectoryStore:
        return DirectoryStore(MountedPath(machine.mount, "/store"))  # type: ignore[arg-type]

    def _unix_time(self) -> float:
        return _WALL_S + self.scheduler.now + self.wall_offset_s

    def _on_end(self, machine: Machine, process: Process) -> None:
        for error in process.errors:
            if isinstance(error, StreampcaError) and machine in self.machines:
                self.refusals.append(error)
            else:
                self.report(f"a thread ended with {error!r}")
        if self.is_supervised:
            self.scheduler.at(self.scheduler.now + _RESTART_S, lambda: self.start_worker(machine))

    def _end_what_hangs(self) -> None:
        """As the watchdog does."""
        for process in [machine.process for machine in self.machines if machine.process]:
            if process.is_overdue:
                if not process.hangs:
                    self.report("the watchdog ends a process that does not hang")
                process.kill()

    def _check_sessions(self) -> None:
        self.cluster.expire_sessions()
        self._end_what_hangs()
        self.scheduler.at(self.scheduler.now + _CHECK_SESSIONS_S, self._check_sessions)


class EventChecks:
    """Notes from where partitions are read, what a process skips, and the versions of the models that it uses."""

    def __init__(self, site: Site, mount: Mount) -> None:
        self._site, self._mount, self._positions = site, mount, dict[int, int]()
        self._versions: dict[int, int] = {}  # by partition: first records wait with the outputs of their model
        self._owned: set[int] = set()
        self.has_continued = False  # from a position that is saved

    def notify(self, event: events.MemberEvent) -> None:
        match event:
            case events.PartitionsReleased(partitions):
                self._owned -= set(partitions)
            case events.CheckpointSaved(partition) if partition not in self._owned:
                self._site.report(f"a save of partition {partition} ended after it was released")
            case events.PartitionsAssigned(positions):
                self._positions |= positions
                self._owned |= positions.keys()
                self.has_continued |= max(positions.values(), default=0) > 0
                self._site.assigned(self._mount, positions)
            case events.BatchLearned(partition, fold):
                self._positions[partition] = fold.position
            case events.BatchTransformed(partition, version=version, next=next_):
                self._positions[partition] = next_
                if version < (before := self._versions.get(partition, 0)):
                    self._site.report(f"a member went back from model version {before} to {version}")
                self._versions[partition] = version
            case events.OffsetsSkipped(partition, lost_from, to, truncated):
                self._site.skip(partition, Jump(self._positions[partition], lost_from, to), truncated)
                self._positions[partition] = to


def _value(burst: Burst, number: int, place: int, vector: bytes) -> bytes:
    if burst.poison and place % burst.poison == burst.poison - 1:
        return make_poison(number * 1000 + place)
    is_implausible = burst.poison and place % 37 == 36
    return make_value(np.resize(_IMPLAUSIBLE, len(vector) // 8).tobytes() if is_implausible else vector, number)
