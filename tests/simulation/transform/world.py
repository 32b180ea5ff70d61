"""The simulated world of transform: machines with members of its group, and a publisher of models."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from streampca.errors import RejectLimitError
from streampca.formats import writer_of
from streampca.sources.events import decode_records
from streampca.sources.topic_reader import TopicReader
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.transform.loop import TransformConfig, Transformer
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields
from streampca.transform.outputs import Outputs
from streampca.transform.record_packer import RecordPacker
from streampca.transform.starts import OUTPUTS, StartFinder
from tests.example_models import numbered
from tests.in_memory.output_topic import open_outputs
from tests.simulation.history import Jump
from tests.simulation.plan import DEAD, FIRST_VERSION, OUTPUT, TOPIC, D, K, TransformPlan
from tests.simulation.registry import ProcessSchemas
from tests.simulation.scheduler import Process
from tests.simulation.site import EventChecks, Machine, Site
from tests.simulation.threads import make_in_flight
from tests.simulation.transform.coordinator import TransformCluster
from tests.simulation.transform.member import ClusterTransactions, TransformSource

Place = tuple[int, str]  # a partition, and the id of the topic

FIELDS = ("coordinates", "residual")
PACKER = RecordPacker(writer_of("npy"), always_lists=False)
_RELOAD_S, _WAIT_S = 1.0, 0.2


class TransformWorld(Site):
    """Machines with members of transform."""

    def __init__(self, plan: TransformPlan) -> None:
        super().__init__(plan, lambda scheduler: TransformCluster(scheduler, plan.partitions, TOPIC))
        self.config = TransformConfig(TOPIC, plan.on_bad_record, plan.on_offset_gap)
        self.publisher = self._create_machine()
        self.components: dict[int, int] = {}  # of each version published
        self.skipped: dict[Place, list[tuple[int, int]]] = {}  # offsets that members count as lost
        self.ids: dict[Machine, str] = {}  # of the members' transactions
        self._numbers = itertools.count()
        self.former: list[Process] = []  # that another process has replaced while they lived
        self.transform_start: str | None = None
        self.has_forgotten = False  # the group has lost its offsets, or will
        self.forgotten: Callable[[], object] = lambda: None
        self._accepts_all = False  # whether an operator has let members accept everything

    def accept_all(self) -> None:
        """Start members that neither bad records nor gaps stop, and end those that were replaced.

        A member that stopped at each bad record may only now find that all the first ones are bad: then an operator
        lets it skip them.
        """
        self._accepts_all = True
        on_bad_record = self.config.on_bad_record if self.config.on_bad_record != "stop" else "dead_letter"
        if any(isinstance(error, RejectLimitError) for error in self.refusals):
            on_bad_record = "skip"
        on_offset_gap = self.config.on_offset_gap if self.config.on_offset_gap != "fail" else "earliest"
        self.config = replace(self.config, on_bad_record=on_bad_record, on_offset_gap=on_offset_gap)
        for process in self.former:
            process.kill()

    def publish(self, components: int = K) -> None:
        version = max(self.components, default=FIRST_VERSION - 1) + 1
        self.components[version] = components
        Models(self._open_store(self.publisher), TOPIC).save(numbered(version, 0.0, d=D, k=components))

    def trim(self, partition: int, start: int) -> None:
        """Remove the records before an offset. Where nothing is committed, members begin behind them."""
        if partition not in self.cluster.committed:
            self.note_skipped(partition, 0, start)
        self.history.trim(partition, start)

    def skip(self, partition: int, jump: Jump, truncated: bool) -> None:
        if truncated:
            super().skip(partition, jump, truncated)
        else:
            self.note_skipped(partition, jump.lost_from, jump.to)

    def start_double(self, machine: Machine) -> None:
        """Start another process in place of one that lives, as when its machine is believed to be dead."""
        if machine.process and machine.is_up:
            self.former.append(machine.process)
            machine.mount, machine.process = self._create_machine().mount, None
            self.start_worker(machine)

    def stop_all(self) -> None:
        """Stop all members, and start none until the group's offsets are gone."""
        self.is_supervised, self.has_forgotten = False, True
        for process in [*self.former, *(machine.process for machine in self.machines if machine.process)]:
            process.kill()

    def forget(self) -> None:
        """Delete the group's offsets, and start the members."""
        self.forgotten()
        self.cluster.committed.clear()
        self.cluster.metadata.clear()
        self.is_supervised = True
        for machine in self.machines:
            self.start_worker(machine)

    def continue_behind_outputs(self) -> None:
        """Let an operator set transform_start, as the members' error says."""
        self.transform_start = OUTPUTS

    def end(self) -> None:
        for process in self.former:
            process.kill()
        super().end()

    def _start(self) -> None:
        self._open_store(self.publisher).check()
        self.scheduler.at(self.plan.model_at, self.publish)
        super()._start()

    def _on_end(self, machine: Machine, process: Process) -> None:
        super()._on_end(machine, process)
        if self._accepts_all:
            self.accept_all()

    def _list_results(self) -> list[object]:
        logs = self.cluster.coordinator.logs
        return [(place, found.state, record) for place in sorted(logs) for found, record in logs[place]]

    def _work(self, machine: Machine, process: Process) -> None:
        machine.worker = machine.source = None
        models = Models(self._open_store(machine), TOPIC)
        cache = ModelCache(models, self._unix_time)
        model = CurrentModel(cache, self.plan.version, OUTPUT, needs_past_scores=False)
        cache.poll()
        process.start(lambda: self._poll_models(cache))
        while model.refresh():
            self.scheduler.sleep(_WAIT_S)
        if machine.process is not process:  # replaced meanwhile
            return
        source = machine.source = TransformSource(self.cluster, process, self.plan.batch)
        transactions = ClusterTransactions(self.cluster, source, self._new_id(machine))
        codec = self.plan.codec(ProcessSchemas(self.registry, process))
        outputs = Outputs(OUTPUT, codec, model, OutputFields(FIELDS), PACKER, TOPIC, DEAD)
        in_flight = make_in_flight(process, partial(decode_records, codec), self.plan.in_flight_bytes)
        checks = EventChecks(self, machine.mount)
        finder = StartFinder(
            source, TOPIC, OUTPUT, partial(self._open_outputs, source), model.check_metadata, self.transform_start
        )
        member = Transformer(self.config, source, in_flight, transactions, outputs, finder, checks.notify)
        self._run(machine, member, lambda: checks.has_continued and not self.has_forgotten)

    def _open_outputs(self, source: TransformSource) -> TopicReader:
        source._request("outputs")
        return open_outputs(self.cluster, OUTPUT, self.cluster.output_partitions)

    def note_skipped(self, partition: int, start: int, end: int) -> None:
        self.skipped.setdefault((partition, self.cluster.id), []).append((start, end))

    def _poll_models(self, cache: ModelCache) -> None:
        while True:
            self.scheduler.sleep(_RELOAD_S)
            cache.poll()

    def _new_id(self, machine: Machine) -> str:
        number = self.machines.index(machine) if self.plan.has_identity else next(self._numbers)
        self.ids[machine] = f"group-{number}"
        return self.ids[machine]
