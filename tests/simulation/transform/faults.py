"""The faults of transform's transactions, log and models, each a method of `TransformFaults`."""

from dataclasses import replace

from tests.simulation.cluster import SESSION_S
from tests.simulation.plan import TOPIC, Fault, K
from tests.simulation.process_faults import ProcessFaults
from tests.simulation.transform.world import Machine, TransformWorld

_OPERATOR_S = 2.5  # until an operator sets transform_start


class TransformFaults(ProcessFaults):
    """Applies faults to a world of transform."""

    def __init__(self, world: TransformWorld) -> None:
        super().__init__(world)
        self._world = world

    def evict(self, fault: Fault) -> None:
        """A member is evicted at a call, and continues."""
        self._trap(fault, self._evict)

    def double(self, fault: Fault) -> None:
        """A member is paused at a call, and another process takes its place: it continues as a zombie."""
        self._trap(fault, lambda machine: self._double(machine, fault.seconds))

    def lose(self, fault: Fault) -> None:
        """One machine gets no answers from some call on, such as that of a commit that happens all the same."""
        at_commit = replace(fault, call="committed")
        self._trap(at_commit if fault.target % 2 else fault, lambda machine: machine.cut(fault.seconds))

    def expire(self, fault: Fault) -> None:
        """A member's transaction has been open for too long: it is aborted, and the producer refused."""
        self._trap(fault, self._expire)

    def hang(self, fault: Fault) -> None:
        """A call that commits never returns, while the other threads of the process go on."""
        call = ("add offsets", "commit", "committed")[fault.target % 3]
        self._trap(replace(fault, call=call), self._hang)

    def trim(self, fault: Fault) -> None:
        """Retention removes records, whether they were read or not."""
        partition = fault.target % len(self._world.cluster.logs)
        if partition in self._world.history.cuts:
            return
        log = self._world.cluster.logs[partition]
        start = log.start + (log.end - log.start) * fault.target // 11
        self._world.trim(partition, start)

    def grow(self, fault: Fault) -> None:
        """The topic gets another partition, and the output topic, too: before, or some time later."""
        cluster = self._world.cluster
        self._later(fault.seconds if fault.target % 2 else 0.0, lambda: setattr(cluster, "output_partitions", 4))
        super().grow(fault)

    def forget(self, fault: Fault) -> None:
        """All members are stopped for longer than brokers keep the offsets of a group without members.

        Not where a log was cut, models have two shapes, or the topic was replaced, which a member may notice only after
        it has written outputs of the new one: only the offsets tell these, not the outputs.
        """
        history = self._world.history
        has_one_shape = len(set(self._world.components.values())) == 1
        if has_one_shape and not history.cuts and not history.is_replaced:
            self._world.stop_all()
            self._later(SESSION_S + fault.seconds, self._forget)

    def cut_log(self, fault: Fault) -> None:
        if not self._world.has_forgotten:
            super().cut_log(fault)

    def publish(self, fault: Fault) -> None:
        if self._world.components:
            self._world.publish()

    def reshape(self, fault: Fault) -> None:
        """A model of another shape is published. Only if offsets say what the outputs have."""
        if self._world.cluster.committed and not self._world.has_forgotten:
            self._world.publish(K + 1)

    def damage(self, fault: Fault) -> None:
        """Flip the bits of one byte of the newest model."""
        files = self._world.volume.files(f"/store/models/{TOPIC}/")
        if len(files) > 1:
            self._world.volume.entries[files[-1]].flip()

    def _forget(self) -> None:
        if self._world.cluster.away or self._world.cluster.coordinator._unfinished:
            self._later(0.5, self._forget)
        else:
            self._world.forget()
            self._later(_OPERATOR_S, self._world.continue_behind_outputs)

    def _double(self, machine: Machine, seconds: float) -> None:
        machine.pause(seconds)
        self._world.start_double(machine)

    def _hang(self, machine: Machine) -> None:
        if machine.process:
            machine.process.hang()

    def _expire(self, machine: Machine) -> None:
        if machine in self._world.ids:
            self._world.cluster.coordinator.fence(self._world.ids[machine])
