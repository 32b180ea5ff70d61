"""The faults of processes, machines and brokers, each a method of `ProcessFaults`."""

from collections.abc import Callable

from tests.simulation.plan import Fault
from tests.simulation.site import Machine, Site


class ProcessFaults:
    """Applies faults to the processes of a site, and ends them all."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.last_end = 0.0

    def schedule(self, faults: tuple[Fault, ...]) -> None:
        for fault in faults:
            self._site.scheduler.at(fault.at, lambda f=fault: getattr(self, f.kind)(f))  # type: ignore[misc]
            self.last_end = max(self.last_end, fault.at + self._seconds(fault))

    def heal(self) -> None:
        """End what has no end of its own."""
        for machine in self._site.all_machines:
            if machine.process:
                machine.process.traps.clear()

    def kill(self, fault: Fault) -> None:
        self._trap(fault, Machine.kill)

    def pause(self, fault: Fault) -> None:
        self._trap(fault, lambda machine: machine.pause(fault.seconds))

    def lapse(self, fault: Fault) -> None:
        """A worker is paused at a call, and evicted meanwhile: it continues as a zombie."""
        self._trap(fault, lambda machine: self._lapse(machine, fault.seconds))

    def stop(self, fault: Fault) -> None:
        machine = self._find_machine(fault)
        if machine.worker and machine.is_up:
            machine.worker.stop("SIGTERM")

    def evict(self, fault: Fault) -> None:
        self._evict(self._find_machine(fault))

    def cut(self, fault: Fault) -> None:
        self._find_machine(fault).cut(fault.seconds)

    def outage(self, fault: Fault) -> None:
        self._during(fault.seconds, self._set_away)

    def power(self, fault: Fault) -> None:
        """All machines and the disk lose power."""
        for machine in self._site.all_machines:
            machine.kill()
        for volume in (self._site.volume, self._site.stray):
            volume.lose_power(self._site.scheduler.random)

    def replace(self, fault: Fault) -> None:
        """The topic is deleted and created again. Not while the store is away: nothing else knows of the old one."""
        if self._site.mounted is self._site.volume:
            self._site.replace_topic(40 * fault.target)

    def registry(self, fault: Fault) -> None:
        self._during(fault.seconds, lambda on: setattr(self._site.registry, "away", on))

    def fail_reads(self, fault: Fault) -> None:
        self._fail(fault, "read")

    def fail_writes(self, fault: Fault) -> None:
        self._fail(fault, "write")

    def slow(self, fault: Fault) -> None:
        process = self._any_machine(fault).process
        if process:
            process.slow_until = self._site.scheduler.now + fault.seconds

    def stale(self, fault: Fault) -> None:
        mount = self._any_machine(fault).mount
        mount.stale_until = self._site.scheduler.now + 2 * fault.seconds

    def truncate(self, fault: Fault) -> None:
        """A broker that is behind becomes leader: the records that nobody has read yet are gone."""
        partition = fault.target % len(self._site.cluster.logs)
        self._site.history.truncate(partition, 1 + fault.target)

    def cut_log(self, fault: Fault) -> None:
        """A broker that is far behind becomes leader: records that were read are gone, and others take their places."""
        self._site.cut(fault.target % len(self._site.cluster.logs), 1 + round(40 * fault.seconds))

    def grow(self, fault: Fault) -> None:
        """Add a partition. Not while another volume is mounted: an old backup is told by the offsets of the group.

        A new partition has none, so it would begin in the backup, and wait for ever for its checkpoint there.
        """
        cluster = self._site.cluster
        if len(cluster.logs) < 4 and self._site.mounted is self._site.volume:
            cluster.add_partitions(len(cluster.logs) + 1)

    def _seconds(self, fault: Fault) -> float:
        """How long a fault lasts at most."""
        return fault.seconds

    def _find_machine(self, fault: Fault) -> Machine:
        return self._site.machines[fault.target % len(self._site.machines)]

    def _any_machine(self, fault: Fault) -> Machine:
        """That of a member of the group, or another."""
        machines = self._site.all_machines
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
        if machine.source in self._site.cluster._members:
            self._site.cluster.evict(machine.source)

    def _fail(self, fault: Fault, kind: str) -> None:
        mount = self._any_machine(fault).mount
        mount.failing.add(kind)
        self._later(fault.seconds, lambda: mount.failing.discard(kind))

    def _set_away(self, on: bool) -> None:
        self._site.cluster.away = on
        self._site.cluster.wake()

    def _during(self, seconds: float, switch: Callable[[bool], object]) -> None:
        switch(True)
        self._later(seconds, lambda: switch(False))

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self._site.scheduler.at(self._site.scheduler.now + seconds, act)
