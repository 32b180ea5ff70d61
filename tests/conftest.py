"""Shared by all tests: markers by folder, and the real Kafka broker, one for the whole session."""

import gc
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import scipy.linalg  # noqa: F401 - loads its BLAS, so that the limit holds for it, too
import structlog
from hypothesis import is_hypothesis_test, settings
from threadpoolctl import threadpool_limits

from tests.in_memory.store import FaultyStore
from tests.java_server import available
from tests.kafka_broker import Broker
from tests.object_server import S3Proxy
from tests.s3_process import S3Process
from tests.waiting import Clock

# As in streampca/process/logs.py; otherwise a failing test prints hundreds of log lines about an unreachable broker.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

# No deadline, because examples are slow on a busy machine. In CI every run has the same examples.
settings.register_profile("person", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=15)  # of `make test-fast`: of every test, see below
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "person")

# For small matrices BLAS threads take several times the processor time. Not for processes that we start.
threadpool_limits(1)

# Folders that start processes, servers or browsers; tests elsewhere are marked one by one.
SLOW = (
    "benchmarks", "cli", "demo", "deploy", "docs", "experiments", "guarantees", "monitoring", "tracing",
    "test_wheel.py",
)  # fmt: skip

TESTS = Path(__file__).parent

# Files that take longest come first, so that no process is busy with one of them when the others have finished.
LONGEST = (
    "guarantees/test_several_brokers.py",
    "simulation/test_simulation.py", "sources/test_on_broker.py", "guarantees/test_exactly_once.py",
    "guarantees/test_outages.py", "test_readme.py", "benchmarks/test_benchmarks.py", "sources/test_contract.py",
    "guarantees/test_object_store.py", "foreign_clients/test_clients.py", "page/test_access.py",
    "experiments/test_experiments.py", "backfill/test_engines.py", "guarantees/test_token_logins.py",
    "guarantees/test_formats.py", "sidecar/test_memory.py", "guarantees/test_transform.py", "demo/test_demo.py",
    "worker/test_publisher.py", "guarantees/test_poison.py", "guarantees/test_transform_outages.py",
    "cli/test_dead_letters_on_broker.py", "sources/test_static_membership.py", "monitoring/test_live.py",
    "cli/test_worker.py", "pca/test_learning.py", "deploy/test_locks.py", "monitoring/test_procedures.py",
)  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the slow folders when slow tests are deselected."""
    slow = collection_path.parent == TESTS and collection_path.name in SLOW
    return True if slow and "not slow" in config.option.markexpr else None


def pytest_configure(config: pytest.Config) -> None:
    """Before the test processes start, compile the kernels once: otherwise each would, all at the same time."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        subprocess.run([sys.executable, "-m", "streampca.pca.compilation"], cwd=TESTS.parent, check=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from scanning all that is imported, at the import and ever after."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and sort them."""
    for item in items:
        place = item.path.relative_to(TESTS).parts[0]
        if place in SLOW:
            item.add_marker("slow")
        if place == "page":
            item.add_marker("browser")
        if not {"broker", "registry"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("broker")
        if is_hypothesis_test(item.obj) and settings.get_current_profile_name() == "fast":
            limit_examples(item.function)
    longest = {(TESTS / name).resolve(strict=True): place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: longest.get(item.path, len(longest)))


def limit_examples(test: Any) -> None:
    """Make a test, which may ask for more examples than the profile does, run no more than that."""
    own = test._hypothesis_internal_use_settings  # hypothesis offers no public way to change it
    fewer = min(own.max_examples, settings.default.max_examples)
    test._hypothesis_internal_use_settings = settings(own, max_examples=fewer)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, shared by all tests. If it cannot run here, the test is skipped, or fails in CI.

    A test that stops it uses `stoppable`.
    """
    with available(lambda: Broker(tmp_path_factory.mktemp("broker")), "broker") as shared:
        yield shared


@pytest.fixture
def stoppable(broker: Broker) -> Iterator[Broker]:
    """The shared broker, which runs again after the test: starting one costs six seconds of processor time."""
    yield broker
    if not broker.running:
        broker.start()


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    """A running S3 server. If it cannot run here, the test is skipped, or fails in CI."""
    with available(lambda: S3Process(tmp_path_factory.mktemp("s3")), "S3 server") as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Process, monkeypatch: pytest.MonkeyPatch) -> S3Process:
    """The S3 server; this process and those that it starts have the environment to use it."""
    for name, value in s3_process.environment().items():
        monkeypatch.setenv(name, value)
    return s3_process


@pytest.fixture
def proxy(s3: S3Process, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """A proxy in front of the S3 server, which clients use."""
    with S3Proxy(s3.port) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.root)
        yield running


@pytest.fixture
def topic() -> str:
    """A unique name for a topic or group."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(broker: Broker, topic: str) -> str:
    """A topic of one partition on the shared broker."""
    return broker.create_topic(topic)


@pytest.fixture
def store() -> FaultyStore:
    """A store in memory, for modules that have none of their own."""
    return FaultyStore()


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    """What streampca logs."""
    with structlog.testing.capture_logs() as logs:
        yield logs


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Undoes what a test changes in the configuration of logging."""
    gc.collect()  # sockets that an earlier test has left would warn into the log of this one
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    for name in ("kafka", "numba", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.NOTSET)
