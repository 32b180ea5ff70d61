"""Schedules of faults drawn from seeds: the checks of `checks.py` hold in every run, and find what is broken."""

import os
import subprocess
import sys

import pytest

from streampca.pca.compilation import compile_kernels
from tests.simulation.mutants import MUTANTS, finds
from tests.simulation.plan import KINDS, RARE_KINDS, Fault, Plan, plan_of
from tests.simulation.run import report_of, shrink, simulate

SEEDS = 300
SHRUNK = 6  # a seed with many faults


@pytest.fixture(scope="module", autouse=True)
def _prepare() -> None:
    compile_kernels(plan_of(1).fold_config().learning)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_schedule_of_faults_gives_the_bytes_of_an_undisturbed_run() -> None:
    reports = [report for seed in range(1, 1 + SEEDS) if (report := report_of(seed))]
    assert not reports, "\n\n".join(reports[:3])


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_calm_run_is_right_too(seed: int) -> None:
    assert simulate(plan_of(seed).without_faults()).violations == ()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_mechanism_is_found(name: str) -> None:
    seed = MUTANTS[name][1]
    assert finds(name, seed)
    assert simulate(plan_of(seed)).violations == ()


@pytest.mark.slow
def test_a_seed_decides_everything() -> None:
    seeds = range(5, 10)
    here = [simulate(plan_of(seed)).digest for seed in seeds]
    assert here == [simulate(plan_of(seed)).digest for seed in seeds]
    code = (
        "from tests.simulation.run import plan_of, simulate\n"
        f"print(*[simulate(plan_of(seed)).digest for seed in {seeds!r}])"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.split() == here


def test_all_kinds_of_faults_are_drawn() -> None:
    assert {fault.kind for seed in range(200) for fault in plan_of(seed).faults} == KINDS.keys() | RARE_KINDS.keys()


def test_shrinking_leaves_the_faults_that_are_needed() -> None:
    needed = set(plan_of(SHRUNK).faults[1:6:4])

    def fails(plan: Plan) -> bool:
        return needed <= set(plan.faults)

    assert len(plan_of(SHRUNK).faults) > 6
    assert set(shrink(plan_of(SHRUNK), fails).faults) == needed
    faults: tuple[Fault, ...] = shrink(plan_of(SHRUNK), lambda plan: True).faults
    assert faults == ()
