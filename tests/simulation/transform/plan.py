"""What a seed stands for in the simulation of transform."""

from dataclasses import dataclass
from random import Random

from streampca.fold.judge import Judge
from streampca.formats.schemas import Schemas
from tests.simulation.plan import QUIET_AFTER_S, AnyPlan, Burst, bad_runs, faults_of
from tests.simulation.registry import FramedCodec

OUTPUT, DEAD = "projected", "dead"
FIRST_VERSION, D, K = 7, 3, 1

CALLS = (
    *("send", "sent", "add offsets", "commit", "committed") * 3,  # while a transaction is open
    "poll", "seek", "offsets", "partitions", "recover", "abort", "topic_id", "list", "read", "close", "schema",
)  # fmt: skip

# How often each kind of fault is drawn, relative to the others.
KINDS = {
    "kill": 8, "pause": 5, "lapse": 10, "double": 6, "stop": 2, "evict": 4, "lose": 8, "expire": 4, "outage": 2,
    "registry": 3, "fail_reads": 2, "slow": 4, "stale": 1, "trim": 3, "truncate": 1, "cut_log": 4, "grow": 1,
    "publish": 5, "damage": 2, "reshape": 2, "hang": 2,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TransformPlan(AnyPlan):
    """Everything that the seed of a run of transform decides."""

    transaction_records: int
    has_identity: bool  # members have a group_instance_id: a successor ends what a dead one has left open
    version: int | None  # of the model; None: the newest
    model_at: float  # when the first model is published
    bad_records: str

    def codec(self, schemas: Schemas) -> FramedCodec:
        """Of every member."""
        return FramedCodec("float64", Judge(D, 1e150), schemas=schemas)


def transform_plan_of(seed: int) -> TransformPlan:
    """The plan of a seed."""
    random = Random(f"transform plan {seed}")
    partitions = random.randint(1, 4)
    bursts = [_burst(random, partitions) for _ in range(random.randint(10, 30))]
    return TransformPlan(
        seed=seed,
        partitions=partitions,
        machines=random.choice([1, 2, 2, 3, 3]),
        batch=random.choice([5, 20, 80, 300]),
        prefetch=random.choice([20, 100, 1000]),
        transaction_records=random.choice([10, 100, 10_000]),
        has_identity=random.random() < 0.5,
        version=FIRST_VERSION if random.random() < 0.2 else None,
        model_at=random.choice([0.0, 0.0, random.uniform(0, QUIET_AFTER_S / 2)]),
        bad_records=random.choice([*["dead_letter"] * 6, "skip", "stop"]),
        offset_gap=random.choice(["fail", "earliest", "latest"]),
        bursts=(*bursts, *(bad_runs(seed, partitions) if seed % 3 == 0 else ())),
        faults=faults_of(random, KINDS, CALLS),
    )


def _burst(random: Random, partitions: int) -> Burst:
    """Few records: there is much to do all the time."""
    at, records = random.uniform(0, QUIET_AFTER_S), random.choice([1, 3, 10, 30])
    return Burst(at, random.randrange(partitions), records, random.choice([0, 5, 20]), random.choice([0, 0, 0, 2]))
