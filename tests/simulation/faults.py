"""The faults that a plan may name, each a method of `Faults`."""

import posixpath
from collections.abc import Callable

from streampca.stores import identity
from tests.simulation.disk import FOLDER, STALE_S, File, Volume
from tests.simulation.plan import TOPIC, Fault
from tests.simulation.world import Machine, World

_STORE = f"/store/checkpoints/{TOPIC}"


class Faults:
    """Applies faults to a world, and ends them all."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._spoiled: set[int] = set()  # partitions whose files were touched: once each, since one must be left
        self._is_trimmed = self._is_expired = False
        self._is_backup = False  # whether the other volume has the identity of the workers' store
        self.last_end = 0.0

    def schedule(self, faults: tuple[Fault, ...]) -> None:
        """Let these faults happen at their times."""
        for fault in faults:
            self._world.scheduler.at(fault.at, lambda f=fault: getattr(self, f.kind)(f))  # type: ignore[misc]
            self.last_end = max(self.last_end, fault.at + (STALE_S if fault.kind == "mislead" else fault.seconds))

    def heal(self) -> None:
        """End what has no end of its own."""
        for machine in [*self._world.machines, self._world.reader]:
            if machine.process:
                machine.process.traps.clear()

    def kill(self, fault: Fault) -> None:
        self._trap(fault, lambda machine: machine.process.kill() if machine.process else None)

    def pause(self, fault: Fault) -> None:
        self._trap(fault, lambda machine: machine.process.pause(fault.seconds) if machine.process else None)

    def lapse(self, fault: Fault) -> None:
        """A worker is paused at a call, and evicted meanwhile: it continues as a zombie."""
        self._trap(fault, lambda machine: self._lapse(machine, fault.seconds))

    def stop(self, fault: Fault) -> None:
        machine = self._machine(fault)
        if machine.worker and machine.is_up:
            machine.worker.stop("SIGTERM")

    def evict(self, fault: Fault) -> None:
        self._evict(self._machine(fault))

    def cut(self, fault: Fault) -> None:
        source = self._machine(fault).source
        if source:
            source.cut_until = self._world.scheduler.now + fault.seconds

    def outage(self, fault: Fault) -> None:
        self._during(fault.seconds, self._set_away)

    def registry(self, fault: Fault) -> None:
        self._during(fault.seconds, lambda on: setattr(self._world, "is_registry_away", on))

    def fail_reads(self, fault: Fault) -> None:
        self._fail(fault, "read")

    def fail_writes(self, fault: Fault) -> None:
        self._fail(fault, "write")

    def slow(self, fault: Fault) -> None:
        process = self._any_machine(fault).process
        if process:
            before, process.latency_s = process.latency_s, 0.5
            self._later(fault.seconds, lambda: setattr(process, "latency_s", before))

    def stale(self, fault: Fault) -> None:
        mount = self._any_machine(fault).mount
        mount.stale_until = self._world.scheduler.now + 2 * fault.seconds

    def damage(self, fault: Fault) -> None:
        """Flip the bits of one byte of the newest checkpoint of a partition, or of the newest model."""
        partition = fault.target % len(self._world.cluster.logs)
        of_model = fault.target >= 8
        files = self._world.volume.files(f"/store/models/{TOPIC}/" if of_model else f"{_STORE}/{partition}/")
        if len(files) > 1 and (of_model or partition not in self._spoiled):
            self._spoiled |= set() if of_model else {partition}
            _flip(self._world.volume.entries[files[-1]])

    def misplace(self, fault: Fault) -> None:
        """Copy the checkpoint of another partition, or of another offset, to where the next one may come."""
        files = self._world.volume.files(f"{_STORE}/")
        if not files:
            return
        source, target = files[fault.target % len(files)], files[-1]
        folder, offset = posixpath.split(target)
        if (partition := int(posixpath.basename(folder))) in self._spoiled:
            return
        self._spoiled.add(partition)
        file = self._world.volume.entries[source]
        copy = File(file.data, file.data, is_whole=True, is_damaged=True)
        path = f"{folder}/{int(offset[:20]) + 1 + fault.target % 3:020d}.npz"
        if path not in self._world.volume.entries:
            _put(self._world.volume, path, copy)

    def power(self, fault: Fault) -> None:
        """All machines and the disk lose power."""
        for machine in [*self._world.machines, self._world.reader]:
            if machine.process:
                machine.process.kill()
        for volume in (self._world.volume, self._world.stray):
            volume.lose_power(self._world.scheduler.random)

    def swap(self, fault: Fault) -> None:
        """The workers restart while another volume is mounted: another store's, or an old backup of theirs.

        Only when the group's offsets show it: they name the store, but only an offset shows that a backup is old.
        """
        if fault.target % 2 and self._has_saved_all():
            self._restore_old_backup()
        if not self._world.cluster.committed or (self._is_backup and not self._has_saved_all()):
            return
        for machine in self._world.machines:
            if machine.process:
                machine.process.kill()
        self._during(fault.seconds, self._set_stray)

    def unmount(self, fault: Fault) -> None:
        """The volume is not mounted for some time, and the workers continue."""
        if self._has_saved_all():
            self._during(fault.seconds, self._set_stray)

    def expire(self, fault: Fault) -> None:
        """The group's committed offsets expire. Not where only they say that the store or the log is incomplete."""
        if self._world.mounted is self._world.volume and not self._is_trimmed:
            self._world.cluster.committed.clear()
            self._is_expired = True

    def clock(self, fault: Fault) -> None:
        self._world.wall_offset_s += (fault.target - 6) * 3600 * fault.seconds

    def trim(self, fault: Fault) -> None:
        """Retention removes records that every checkpoint has passed."""
        partition = fault.target % len(self._world.cluster.logs)
        files = self._world.volume.files(f"{_STORE}/{partition}/")
        if len(files) > 1 and partition not in self._spoiled and not self._is_expired and self._is_whole(partition):
            self._is_trimmed = True
            self._spoiled.add(partition)  # a damaged checkpoint would need them again
            self._world.history.trim(partition, int(posixpath.basename(files[0])[:20]))

    def truncate(self, fault: Fault) -> None:
        """A broker that is behind becomes leader: the records that nobody has read yet are gone."""
        partition = fault.target % len(self._world.cluster.logs)
        self._world.history.truncate(partition, 1 + fault.target)

    def cut_log(self, fault: Fault) -> None:
        """A broker that is far behind becomes leader: records that were read are gone, and others take their places."""
        self._world.cut(fault.target % len(self._world.cluster.logs), 1 + round(40 * fault.seconds))

    def replace(self, fault: Fault) -> None:
        """The topic is deleted and created again. Not while the store is away: nothing else knows of the old one."""
        if self._world.mounted is self._world.volume:
            self._world.replace_topic(40 * fault.target)

    def mislead(self, fault: Fault) -> None:
        """One machine lists folders as they were, until all their files are others and the group has no offsets."""
        machine, plan = self._machine(fault), self._world.plan
        if (plan.keep + 2) * plan.interval_s > STALE_S:
            return  # the listings would be new again
        for partition in range(len(self._world.cluster.logs)):
            machine.mount.names(f"{_STORE}/{partition}")
        machine.mount.stale_until = self._world.scheduler.now + STALE_S
        for place in range(plan.keep + 1):
            self._later(place * plan.interval_s, lambda: self._world.append_to_all(3))
        evicted = [other for other in self._world.machines if (other is machine) == (fault.target >= 6)]
        self._later((plan.keep + 2) * plan.interval_s, lambda: self._expire_and_evict(fault, evicted))

    def grow(self, fault: Fault) -> None:
        cluster = self._world.cluster
        if len(cluster.logs) < 4:
            cluster.add_partitions(len(cluster.logs) + 1)

    def _has_saved_all(self) -> bool:
        """Whether the group has an offset of every partition."""
        return all(self._world.cluster.committed.get(partition) for partition in range(len(self._world.cluster.logs)))

    def _restore_old_backup(self) -> None:
        """Make the other volume a backup from before the first checkpoint: the same store, but empty."""
        stray, path = self._world.stray, f"/store/{identity.NAME}"
        stray.entries["/store"] = stray.durable["/store"] = FOLDER
        stray.entries[path] = stray.durable[path] = self._world.volume.entries[path]
        self._is_backup = True

    def _is_whole(self, partition: int) -> bool:
        """Whether no records of the partition were replaced."""
        return len(self._world.history.courses(partition)) == 1

    def _machine(self, fault: Fault) -> Machine:
        return self._world.machines[fault.target % len(self._world.machines)]

    def _any_machine(self, fault: Fault) -> Machine:
        """One of the workers', or the reader's."""
        machines = [*self._world.machines, self._world.reader]
        return machines[fault.target % len(machines)]

    def _trap(self, fault: Fault, act: Callable[[Machine], object]) -> None:
        machine = self._any_machine(fault)
        if machine.process and machine.is_up and fault.call:
            machine.process.traps.append((fault.call, lambda: act(machine)))
        else:
            act(machine)

    def _lapse(self, machine: Machine, seconds: float) -> None:
        if machine.process:
            machine.process.pause(seconds)
            self._evict(machine)

    def _evict(self, machine: Machine) -> None:
        if machine.source in self._world.cluster._members:
            self._world.cluster.evict(machine.source)

    def _expire_and_evict(self, fault: Fault, machines: list[Machine]) -> None:
        self.expire(fault)
        for machine in machines:
            self._evict(machine)

    def _fail(self, fault: Fault, kind: str) -> None:
        mount = self._any_machine(fault).mount
        mount.failing.add(kind)
        self._later(fault.seconds, lambda: mount.failing.discard(kind))

    def _set_away(self, on: bool) -> None:
        self._world.cluster.away = on
        self._world.cluster.wake()

    def _set_stray(self, on: bool) -> None:
        self._world.mounted = self._world.stray if on else self._world.volume

    def _during(self, seconds: float, switch: Callable[[bool], object]) -> None:
        switch(True)
        self._later(seconds, lambda: switch(False))

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self._world.scheduler.at(self._world.scheduler.now + seconds, act)


def _flip(file: File) -> None:
    data = bytearray(file.data)
    data[len(data) // 2] ^= 0xFF
    file.data = file.flushed = bytes(data)
    file.is_damaged = True


def _put(volume: Volume, path: str, file: File) -> None:
    volume.change(posixpath.dirname(path), {path: file})
    volume.flush_folder(posixpath.dirname(path))
