"""Schedules of faults drawn from seeds: what each role guarantees holds in every run, and what is broken is found."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from streampca.pca.compilation import compile_learning_functions
from tests.simulation.mutants import ALL_MUTANTS, find_violations
from tests.simulation.plan import (
    FORGET,
    GONE_KINDS,
    KINDS,
    QUIET_AFTER_S,
    RARE_KINDS,
    RARE_TRANSFORM_KINDS,
    TRANSFORM_KINDS,
    Burst,
    Fault,
    make_plan,
    make_transform_plan,
)
from tests.simulation.run import PLANS, run_and_report, simulate

SEEDS = {"worker": 300, "gone": 100, "transform": 60}
ALL_KINDS = {
    "worker": KINDS | RARE_KINDS,
    "gone": KINDS | RARE_KINDS | GONE_KINDS,
    "transform": TRANSFORM_KINDS | RARE_TRANSFORM_KINDS | FORGET,
}


@pytest.fixture(scope="module", autouse=True)
def _prepare() -> Iterator[None]:
    compile_learning_functions(make_plan(1).fold_config().learning)
    gc.freeze()  # keeps the collector from scanning all that is imported
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", PLANS)
def test_any_schedule_of_faults_breaks_no_guarantee(role: str) -> None:
    """Workers write the bytes of an undisturbed run; of transform, every record has one output."""
    reports = [report for seed in range(1, 1 + SEEDS[role]) if (report := run_and_report(seed, role))]
    assert not reports, "\n\n".join(reports[:3])


@pytest.mark.parametrize("role", PLANS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_calm_run_is_right_too(role: str, seed: int) -> None:
    assert simulate(PLANS[role](seed).without_faults()).violations == ()


@pytest.mark.parametrize("at", [0.0, QUIET_AFTER_S - 0.1])
@pytest.mark.parametrize(
    ("role", "seed", "options"),
    [
        ("worker", 1, {}),
        ("transform", 4, {"on_bad_record": "stop"}),
        ("transform", 4, {"on_bad_record": "dead_letter"}),
        ("transform", 4, {"on_bad_record": "skip"}),
    ],
)
def test_members_may_reach_the_limit_of_rejects_at_any_time(
    role: str, seed: int, options: dict[str, str], at: float
) -> None:
    only_poison = Burst(at=at, partition=0, records=300, poison=1, gap=0)
    plan = replace(PLANS[role](seed), partitions=1, bursts=(only_poison,), faults=(), **options)
    assert simulate(plan).violations == ()


@pytest.mark.parametrize("hanging", range(3))
def test_first_records_are_compared_again_after_a_hang_and_a_failed_transaction(hanging: int) -> None:
    """A member hangs for a minute, which begins the comparison again, and then the transaction of another fails."""
    few, enough = (Burst(at=0.0, partition=p, records=n, poison=0, gap=0) for p, n in ((0, 10), (1, 120)))
    hang = Fault(at=0.05, kind="hang", target=hanging, seconds=0.0, call="")
    fences = [Fault(at=9.9, kind="expire", target=machine, seconds=0.0, call="") for machine in range(3)]
    for seed in (2, 8):
        plan = replace(make_transform_plan(seed), partitions=2, machines=3, bursts=(few, enough))
        assert plan.kind == "float64"
        outcome = simulate(replace(plan, faults=(hang, *fences), version=None, model_at=0.0))
        assert outcome.violations == ()


@pytest.mark.parametrize("on_offset_gap", ["earliest", "latest"])
def test_a_topic_may_be_replaced_after_records_were_lost(on_offset_gap: str) -> None:
    """Retention removes records that no member has read, and a member commits while the topic is replaced."""
    for seed in range(1, 11):
        plan = make_transform_plan(seed)
        one_partition = replace(plan, partitions=1, bursts=tuple(replace(burst, partition=0) for burst in plan.bursts))
        trim = Fault(at=4.0, kind="trim", target=10, seconds=0.0, call="")
        replacement = Fault(at=6.0 + seed / 10, kind="replace", target=3, seconds=0.0, call="")
        faults = (trim, replacement)
        stopping = replace(one_partition, faults=faults, on_offset_gap=on_offset_gap, on_bad_record="stop")
        assert simulate(stopping).violations == ()


@pytest.mark.parametrize("seed", [901012, 901160, 901442, 901724, 901949, 1000554])
def test_where_a_partition_has_begun_is_told_by_an_offset_a_checkpoint_or_a_model(seed: int) -> None:
    """If offsets expire and checkpoints are deleted before a model contains the partition, nothing tells it."""
    assert PLANS["gone"](seed).start == "latest"
    assert simulate(PLANS["gone"](seed)).violations == ()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1000438, id="the newest model is damaged after the checkpoints of a partition were deleted"),
        pytest.param(1001772, id="the log was cut and the checkpoint with its records deleted"),
        pytest.param(1002956, id="the identity is deleted while a worker examines the store"),
    ],
)
def test_two_faults_of_one_thing_break_no_guarantee(seed: int) -> None:
    assert simulate(PLANS["gone"](seed)).violations == ()


def test_members_begin_a_group_though_its_lowest_partition_has_no_records() -> None:
    for seed in range(1, 11):
        plan = make_transform_plan(seed)
        bursts = tuple(replace(burst, partition=1) for burst in plan.bursts)
        calm = replace(plan, partitions=2, machines=2, bursts=bursts).without_faults()
        assert simulate(calm).violations == ()


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, mutants in ALL_MUTANTS.items() for name in mutants])
def test_a_broken_mechanism_is_found(role: str, name: str) -> None:
    seed = ALL_MUTANTS[role][name][0]
    assert find_violations(role, name, seed)
    assert simulate(PLANS[role](seed)).violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("role", PLANS)
def test_a_seed_decides_everything(role: str) -> None:
    seeds = range(5, 9)
    here = [simulate(PLANS[role](seed)).digest for seed in seeds]
    assert here == [simulate(PLANS[role](seed)).digest for seed in seeds]
    code = (
        "from tests.simulation.run import PLANS, simulate\n"
        f"print(*[simulate(PLANS[{role!r}](seed)).digest for seed in {seeds!r}])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    elsewhere = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert elsewhere.split() == here


@pytest.mark.parametrize("role", PLANS)
def test_all_kinds_of_faults_are_drawn(role: str) -> None:
    assert {fault.kind for seed in range(200) for fault in PLANS[role](seed).faults} == ALL_KINDS[role].keys()
