"""A lake."""

from pathlib import Path

import pytest

from tests.backfill.rows import make_rows, write_files


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("backfill") / "lake", make_rows(4000))
