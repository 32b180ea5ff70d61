"""Compiles the kernels first: some of these tests wait for a worker, and compilation outlasts their timeouts."""

import pytest

from streampca.pca.compilation import compile_kernels
from tests.fold.streams import fold_config


@pytest.fixture(scope="session", autouse=True)
def _compile_kernels() -> None:
    compile_kernels(fold_config().learning)
