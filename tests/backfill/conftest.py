"""A lake."""

from pathlib import Path

import pytest

from tests.backfill.rows import rows, write


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("backfill") / "lake", rows(4000))
