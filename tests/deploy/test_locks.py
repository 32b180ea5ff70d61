"""The locks: up to date, complete, and installable on every supported system."""

from pathlib import Path

import pytest

from tests import locks
from tests.command_line import succeeded

PYTHONS = ("3.11", "3.12", "3.13")
SYSTEMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
LOCKS = {"all": locks.ALL, "demo": locks.DEMO, "image": locks.IMAGE, "sidecar": locks.SIDECAR, "build": locks.BUILD}
ALL_LOCKS = {**LOCKS, "quix": locks.QUIX}  # whose environment is its own
for_every_lock = pytest.mark.parametrize("lock", ALL_LOCKS.values(), ids=ALL_LOCKS)
for_locks_of_one_environment = pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)


@for_every_lock
def test_a_lock_is_what_resolving_gives(lock: Path) -> None:
    assert locks.locked(lock) == lock.read_text(encoding="utf-8"), "run: python -m tests.locks"


@for_every_lock
def test_a_lock_names_no_index(lock: Path) -> None:
    assert "://" not in lock.read_text(encoding="utf-8")


@for_locks_of_one_environment
def test_a_lock_agrees_with_the_others(lock: Path) -> None:
    assert locks.pins(lock).items() <= locks.pins(locks.ALL).items()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_supported_systems_have_a_wheel_of_everything(system: str, python: str, tmp_path: Path) -> None:
    """As `pip install '.[arrow,avro,protobuf,worker]'` on that system would choose, in the versions of the lock."""
    succeeded(
        locks.UV, "pip", "install", "--quiet", "--no-config", "--dry-run", "--target", tmp_path, "--only-binary=:all:",
        "--require-hashes", f"--python-platform={system}", f"--python-version={python}", "--requirements", locks.IMAGE,
    )  # fmt: skip
