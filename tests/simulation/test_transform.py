"""Schedules of faults drawn from seeds: every record has one output, and what is broken is found."""

import gc
from collections.abc import Iterator

import pytest

from tests.simulation.mutants import finds
from tests.simulation.run import report_of, simulate
from tests.simulation.transform.mutants import TRANSFORM_MUTANTS
from tests.simulation.transform.plan import KINDS, transform_plan_of

SEEDS = 60


@pytest.fixture(scope="module", autouse=True)
def _prepare() -> Iterator[None]:
    gc.freeze()  # keeps the collector from scanning all that is imported
    yield
    gc.unfreeze()


@pytest.mark.slow
def test_any_schedule_of_faults_gives_each_record_one_output() -> None:
    reports = [report for seed in range(1, 1 + SEEDS) if (report := report_of(seed, "transform"))]
    assert not reports, "\n\n".join(reports[:3])


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_calm_run_is_right_too(seed: int) -> None:
    assert simulate(transform_plan_of(seed).without_faults()).violations == ()


@pytest.mark.parametrize("name", TRANSFORM_MUTANTS)
def test_a_broken_mechanism_is_found(name: str) -> None:
    seed = TRANSFORM_MUTANTS[name][1]
    assert finds(name, seed)
    assert simulate(transform_plan_of(seed)).violations == ()


def test_a_seed_decides_everything() -> None:
    seeds = range(5, 8)
    here, again = ([simulate(transform_plan_of(seed)).digest for seed in seeds] for _ in range(2))
    assert here == again


def test_all_kinds_of_faults_are_drawn() -> None:
    assert {fault.kind for seed in range(200) for fault in transform_plan_of(seed).faults} == set(KINDS)
