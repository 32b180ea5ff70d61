"""What a seed stands for: the settings of the members of either role, the records of the topic, and the faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

from streampca.fold.fold import FoldConfig
from streampca.formats.judge import Judge
from streampca.formats.schemas import Schemas
from streampca.pca.learning import LearningConfig
from streampca.worker.checkpointer import WorkerConfig
from tests.simulation.registry import FramedCodec, registry

TOPIC = "readings"
QUIET_AFTER_S = 10.0  # no fault begins later
_HELD_BACK_S = 60.0

CALLS = (
    "poll", "task begins", "task ends", "seek", "topic_id", "flush", "flushed",
    "open", "write", "fsync", "rename", "renamed", "fsync folder",
    "commit", "committed", "offsets", "list", "read", "unlink", "mkdir", "close", "schema",
)  # fmt: skip


OUTPUT, DEAD = "projected", "dead"
FIRST_VERSION, D, K = 7, 3, 1
D_CORRELATED = 6  # dimensions of correlated vectors

TRANSFORM_CALLS = (
    *("send", "sent", "add offsets", "commit", "committed") * 3,  # while a transaction is open
    "poll", "task begins", "task ends", "seek", "offsets", "partitions", "recover",
    "abort", "topic_id", "list", "read", "close", "schema",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One fault, at a time. The others are used by some kinds: which machine, how long, and at which call."""

    at: float
    kind: str
    target: int
    seconds: float
    call: str

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self.kind:<11} {self.target}  {self.seconds:5.2f} s  {self.call}"


@dataclass(frozen=True)
class Burst:
    """Records that are appended to a partition at a time; every tenth or so is poison."""

    at: float
    partition: int
    records: int
    poison: int  # every so many-th is poison; 0: none, 1: all
    gap: int  # offsets without records after them, as of a transaction's marker


@dataclass(frozen=True, kw_only=True)
class AnyPlan:
    """What plans of both roles decide, except the moments of the calls."""

    seed: int
    partitions: int
    machines: int
    batch: int
    in_flight_bytes: int
    on_offset_gap: str
    bursts: tuple[Burst, ...]
    faults: tuple[Fault, ...]
    gaps: bool = False  # whether vectors lack entries
    quiet: int = 0  # vectors at the beginning of each partition that are nearly constant
    correlated: bool = False  # whether entries are correlated in a pair and a triple that the components leave out

    def without_faults(self) -> Self:
        """The calm run."""
        return replace(self, faults=())

    @property
    def kind(self) -> str:
        """The format: in a sixth of the plans, the first records of a partition wait until they can be compared."""
        return "float64" if self.seed % 6 == 2 else "<f8"

    @property
    def held_back_s(self) -> float:
        """How long a member may hold back the first records of a partition, to compare them."""
        return _HELD_BACK_S if self.kind == "float64" else 0.0

    @property
    def reaches_reject_limit(self) -> bool:
        """Whether members may end because of too many rejects."""
        return any(burst.poison == 1 for burst in self.bursts)


@dataclass(frozen=True, kw_only=True)
class Plan(AnyPlan):
    """Everything that the seed of a run of workers decides."""

    interval_s: float
    keep: int
    half_life: str
    standardize: bool
    start: str | int = "earliest"
    until: str = ""  # of the backfill, if the start is one

    def fold_config(self) -> FoldConfig:
        options: dict[str, Any] = {"seconds": {"half_life_seconds": 3.0}, "messages": {"half_life_messages": 50.0}}
        d = D_CORRELATED if self.correlated else D
        learning = LearningConfig(d, K, oversampling=1, warm_up=20, impute=self.gaps, standardize=self.standardize)
        return FoldConfig(learning, format="float64", **options.get(self.half_life, {}))

    def make_worker_config(self) -> WorkerConfig:
        fold = self.fold_config()
        judge = Judge(fold.learning.dimensions, fold.learning.largest_value, min_observed=1 if self.gaps else None)
        codec = FramedCodec(self.kind, judge, schemas=registry())
        return WorkerConfig(
            TOPIC,
            fold=fold,
            codec=codec,
            on_bad_record="dead_letter",
            on_offset_gap=self.on_offset_gap,
            checkpoint_interval_s=self.interval_s,
            start=self.start,
        )


@dataclass(frozen=True, kw_only=True)
class TransformPlan(AnyPlan):
    """Everything that the seed of a run of transform decides."""

    transaction_records: int
    has_identity: bool  # members have a group_instance_id: a successor ends what a dead one has left open
    version: int | None  # of the model; None: the newest
    model_at: float  # when the first model is published
    on_bad_record: str

    @property
    def held_back_s(self) -> float:
        """How long a member may hold back first records, and again if the transaction with them fails.

        The other members of a new group begin only then, and hold back their own first records.
        """
        return 4 * super().held_back_s

    def codec(self, schemas: Schemas) -> FramedCodec:
        return FramedCodec(self.kind, Judge(D, 1e150), schemas=schemas)


# How often each kind of fault is drawn, relative to the others.
KINDS = {
    "kill": 8, "pause": 6, "stop": 2, "evict": 3, "cut": 3, "outage": 2, "registry": 2, "fail_reads": 3,
    "fail_writes": 3, "slow": 1, "stale": 5, "damage": 2, "misplace": 2, "power": 2, "swap": 1, "clock": 1, "trim": 1,
    "truncate": 1, "grow": 1, "lapse": 2, "expire": 2, "unmount": 2, "cut_log": 2, "replace": 1, "mislead": 2,
}  # fmt: skip
RARE_KINDS = {"relist": 1, "upgrade": 1}  # drawn for themselves, one in half of the plans
GONE_KINDS = {"vanish": 1}  # something in the store is gone
RARE_TRANSFORM_KINDS = {"power": 1, "replace": 1}  # likewise
FORGET = {"forget": 1}  # in a fifth of the plans
TRANSFORM_KINDS = {
    "kill": 8, "pause": 5, "lapse": 10, "double": 6, "stop": 2, "evict": 4, "lose": 8, "expire": 4, "outage": 2,
    "registry": 3, "fail_reads": 2, "slow": 4, "stale": 1, "trim": 3, "truncate": 1, "cut_log": 4, "grow": 1,
    "publish": 5, "damage": 2, "reshape": 2, "hang": 2,
}  # fmt: skip


_TIME_MS = 10**12 + 3000  # between the records' times
STARTS: list[tuple[str | int, str]] = [
    *[("earliest", "")] * 6, ("latest", ""), (_TIME_MS, ""), ("backfill", "0:30"), ("backfill", str(_TIME_MS)),
]  # fmt: skip


def make_plan(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    partitions = random.randint(1, 3)
    start, until = Random(f"start {seed}").choice(STARTS)
    first = [Burst(0.0, partition, 40, 5, 0) for partition in range(partitions) if start == "backfill"]
    return Plan(
        seed=seed,
        partitions=partitions,
        machines=random.randint(1, 3),
        interval_s=random.choice([0.7, 1.5, 3.0]),
        batch=random.choice([20, 80, 300]),
        in_flight_bytes=random.choice([1_000, 10_000, 10**6]),
        keep=random.choice([2, 3]),
        half_life=random.choice(["none", "none", "seconds", "messages"]),
        on_offset_gap=random.choice(["fail", "earliest", "latest"]),
        standardize=seed % 4 == 1,
        gaps=seed % 5 == 2 or seed % 7 == 4,
        correlated=seed % 7 == 4,
        quiet=60 if seed % 7 == 3 else 0,
        start=start,
        until=until,
        bursts=(
            *first,
            *(draw_burst(random, partitions) for _ in range(random.randint(4, 8))),
            *draw_bad_runs(seed, partitions),
        ),
        faults=(*draw_faults(random, KINDS, CALLS), *draw_rare_faults(seed, RARE_KINDS, CALLS)),
    )


def make_gone_plan(seed: int) -> Plan:
    """The plan of the seed, in which also some of what lies in the store is deleted."""
    plan, random = make_plan(seed), Random(f"gone {seed}")
    gone = [_fault(random, GONE_KINDS, CALLS) for _ in range(random.randint(1, 3))]
    return replace(plan, faults=(*plan.faults, *gone))


def draw_burst(random: Random, partitions: int) -> Burst:
    at = random.choice([0.0, random.uniform(0, QUIET_AFTER_S)])
    records = random.choice([1, 10, 60, 60, 300])
    return Burst(at, random.randrange(partitions), records, random.choice([0, 5, 20]), random.choice([0, 0, 0, 2]))


def draw_bad_runs(seed: int, partitions: int) -> list[Burst]:
    """In a fourth of the plans, a run of records that are all poison: enough to reach the limit, or not quite."""
    random = Random(f"bad runs {seed}")
    at, records = random.choice([0.0, random.uniform(0, QUIET_AFTER_S)]), random.choice([30, 110, 300, 600])
    return [Burst(at, random.randrange(partitions), records, 1, 0)] if random.random() < 0.25 else []


def draw_rare_faults(seed: int, kinds: Mapping[str, int], calls: Sequence[str]) -> list[Fault]:
    """One of the rare kinds, in half of the plans."""
    random = Random(f"rare faults {seed}")
    return [_fault(random, kinds, calls)] if random.random() < 0.5 else []


def draw_faults(random: Random, kinds: Mapping[str, int], calls: Sequence[str]) -> tuple[Fault, ...]:
    """Draw some faults of these kinds, each as often as its number says, in the order of their times."""
    faults = (_fault(random, kinds, calls) for _ in range(random.randint(1, 8)))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _fault(random: Random, kinds: Mapping[str, int], calls: Sequence[str]) -> Fault:
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    call = random.choice(calls) if random.random() < 0.8 else ""
    seconds = random.choice([random.uniform(0, 2), random.uniform(2, 6)])
    return Fault(random.uniform(0, QUIET_AFTER_S), kind, random.randrange(12), seconds, call)


def make_transform_plan(seed: int) -> TransformPlan:
    random = Random(f"transform plan {seed}")
    partitions = random.randint(1, 4)
    bursts = [_draw_small_burst(random, partitions) for _ in range(random.randint(10, 30))]
    return TransformPlan(
        seed=seed,
        partitions=partitions,
        machines=random.choice([1, 2, 2, 3, 3]),
        batch=random.choice([5, 20, 80, 300]),
        in_flight_bytes=random.choice([1_000, 10_000, 10**6]),
        transaction_records=random.choice([10, 100, 10_000]),
        has_identity=random.random() < 0.5,
        version=FIRST_VERSION if random.random() < 0.2 else None,
        model_at=random.choice([0.0, 0.0, random.uniform(0, QUIET_AFTER_S / 2)]),
        on_bad_record=random.choice([*["dead_letter"] * 6, "skip", "stop"]),
        on_offset_gap=random.choice(["fail", "earliest", "latest"]),
        bursts=(*bursts, *(draw_bad_runs(seed, partitions) if seed % 3 == 0 else ())),
        faults=(
            *draw_faults(random, TRANSFORM_KINDS, TRANSFORM_CALLS),
            *draw_rare_faults(seed, RARE_TRANSFORM_KINDS, TRANSFORM_CALLS),
            *([_fault(Random(f"forget {seed}"), FORGET, TRANSFORM_CALLS)] if seed % 10 in (5, 8) else []),
        ),
    )


def _draw_small_burst(random: Random, partitions: int) -> Burst:
    """Few records: there is much to do all the time."""
    at, records = random.uniform(0, QUIET_AFTER_S), random.choice([1, 3, 10, 30])
    return Burst(at, random.randrange(partitions), records, random.choice([0, 5, 20]), random.choice([0, 0, 0, 2]))
