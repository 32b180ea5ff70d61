"""Runs plans, shrinks those that fail, and prints how to run them again: `python -m tests.simulation.run --help`."""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pool
from typing import Any
from unittest import mock

import structlog.testing

from streampca.consumer_group import in_flight
from streampca.formats import schemas
from streampca.pca.compilation import compile_learning_functions
from streampca.process import watchdog
from streampca.stores import identity
from streampca.transform import loop as transform_loop
from streampca.worker import loop as worker_loop
from tests.simulation import mounted_path
from tests.simulation.checks import Checks
from tests.simulation.faults import Faults
from tests.simulation.plan import (
    QUIET_AFTER_S,
    AnyPlan,
    Fault,
    Plan,
    TransformPlan,
    make_gone_plan,
    make_plan,
    make_transform_plan,
)
from tests.simulation.process_faults import ProcessFaults
from tests.simulation.site import Site
from tests.simulation.threads import SimulatedLock
from tests.simulation.transform.checks import TransformChecks
from tests.simulation.transform.faults import TransformFaults
from tests.simulation.transform.world import TransformWorld
from tests.simulation.world import World

_PARTS: dict[type, tuple[Any, Any, Any]] = {
    Plan: (World, Checks, Faults),
    TransformPlan: (TransformWorld, TransformChecks, TransformFaults),
}
PLANS: dict[str, Callable[[int], AnyPlan]] = {
    "worker": make_plan,
    "gone": make_gone_plan,
    "transform": make_transform_plan,
}
PROGRESS_S = 90.0  # within this time after the last fault, everything must be learned; a store may be late by a minute
_STOP_S = 30.0


@dataclass(frozen=True)
class Outcome:
    """What a run has found, and a digest of all that it did."""

    violations: tuple[str, ...]
    digest: str
    seconds: float  # of virtual time
    log: tuple[str, ...]


def simulate(plan: AnyPlan) -> Outcome:
    new_world, new_checks, new_faults = _PARTS[type(plan)]
    with _environment() as logged:
        world = new_world(plan)
        with (
            mock.patch.multiple(watchdog, tick=world.scheduler.tick, forget=world.scheduler.forget),
            mock.patch.object(schemas, "Lock", lambda: SimulatedLock(world.scheduler)),  # noqa: PT008 - one for each
        ):
            try:
                _run(world, new_checks(world), new_faults(world))
            finally:
                world.end()
    log = tuple(str(entry) for entry in logged)
    return Outcome(tuple(world.violations), world.digest(), world.scheduler.now, log)


def _run(world: Site, checks: Any, faults: ProcessFaults) -> None:
    faults.schedule(world.plan.faults)
    world.begin()
    world.scheduler.run(max(QUIET_AFTER_S, faults.last_end))
    faults.heal()
    world.accept_all()
    world.append_to_all(2)
    checks.expect_all()
    deadline = world.scheduler.now + PROGRESS_S + world.plan.held_back_s
    while world.scheduler.now < deadline and not checks.is_complete():
        world.scheduler.run(world.scheduler.now + 1.0)
        world.accept_all()  # members may reach the limit of rejects only now
    if not checks.is_complete():
        world.report(f"something waits for ever: {checks.missing()}")
    world.stop()
    hangs = any(machine.hangs for machine in world.machines)
    deadline = world.scheduler.now + _STOP_S + watchdog.HANG_S * hangs
    while world.scheduler.now < deadline and any(machine.is_up for machine in world.machines):
        world.scheduler.run(world.scheduler.now + 1.0)
    if any(machine.is_up for machine in world.machines):
        world.report("a worker does not stop")
    checks.at_the_end()
    for refusal in world.refusals:
        if not checks.is_expected(refusal):
            world.report(f"a worker ended with {refusal!r}")


@contextmanager
def _environment() -> Iterator[list[structlog.typing.EventDict]]:
    """The disk in place of the real one; log lines in a list; fewer idle polls; stores' ids numbered."""
    with ExitStack() as stack:
        stack.enter_context(mounted_path.installed())
        stack.enter_context(mock.patch.object(in_flight, "_BUSY_POLL_S", 0.1))
        stack.enter_context(mock.patch.object(worker_loop, "_POLL_S", 1.0))
        stack.enter_context(mock.patch.object(transform_loop, "_POLL_S", 0.5))
        ids = (f"{number:032x}" for number in itertools.count())
        stack.enter_context(mock.patch.object(identity, "new_id", side_effect=ids))
        yield stack.enter_context(structlog.testing.capture_logs())


def shrink(plan: AnyPlan, fails: Callable[[AnyPlan], bool] = lambda plan: bool(simulate(plan).violations)) -> AnyPlan:
    """The plan with as few of its faults as still fail: halves are left out, then quarters, then single ones."""
    size = max(len(plan.faults) // 2, 1)
    while plan.faults:
        for start in range(0, len(plan.faults), size):
            fewer = replace(plan, faults=plan.faults[:start] + plan.faults[start + size :])
            if fails(fewer):
                plan = fewer
                break
        else:
            if size == 1:
                break
            size //= 2
        size = min(size, max(len(plan.faults), 1))
    return plan


def run_and_report(seed: int, role: str = "worker") -> str | None:
    """What is wrong with the run of a seed, the shortest schedule that shows it, and how to run it again."""
    plan = PLANS[role](seed)
    if not simulate(plan).violations:
        return None
    plan = shrink(plan)
    outcome = simulate(plan)
    faults: list[Fault] | list[str] = list(plan.faults) or ["none"]
    lines = ["violations:", *outcome.violations, "shortest schedule of faults:", *map(str, faults)]
    again = f"make simulate SEEDS=1 FROM={seed}" + (f" ROLE={role}" if role != "worker" else "")
    return "\n  ".join([f"seed {seed} fails; to run it again: {again}", *lines])


def main() -> None:
    """Run seeds on all cores; the exit code is 1 if any fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--role", choices=PLANS, default="worker")
    options = parser.parse_args()
    compile_learning_functions(make_plan(1).fold_config().learning)
    failed = 0
    with Pool() as pool:
        seeds = range(options.first, options.first + options.seeds)
        for report in pool.imap(partial(run_and_report, role=options.role), seeds, chunksize=50):
            if report:
                failed += 1
                sys.stdout.write(report + "\n")
                sys.stdout.flush()
    sys.stdout.write(f"{options.seeds} seeds from {options.first}: {failed} failed\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
