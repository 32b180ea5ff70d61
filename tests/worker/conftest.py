"""Environments; and the kernels, compiled first: compilation outlasts the timeouts of tests that wait for a worker."""

from collections.abc import Iterator

import pytest

from streampca.pca.compilation import compile_learning_functions
from tests.fold.streams import fold_config, vectors
from tests.worker.environment import Environment, N, make_filled_environment


@pytest.fixture(scope="session", autouse=True)
def _compile_learning_functions() -> None:
    compile_learning_functions(fold_config().learning)


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """An environment; a test may say how many messages its partitions have."""
    env = make_filled_environment(*getattr(request, "param", (0,)))
    yield env
    assert env.violations == []


@pytest.fixture
def filled(env: Environment) -> Environment:
    """An environment with one partition of N messages."""
    env.send(0, vectors(N))
    return env
