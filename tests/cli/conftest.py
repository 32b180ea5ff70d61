"""Shared by the tests of the commands."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Undoes what a test changes in the configuration of logging."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    for name in ("kafka", "numba", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.NOTSET)
