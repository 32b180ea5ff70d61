"""Class archives are written once, whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import class_archive


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is found as `java`."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def writer(*, completes: bool) -> Callable[[str], bool]:
    """A server that writes an archive when it ends, or is killed while it writes."""

    def run(option: str) -> bool:
        name, _, path = option.partition("=")
        assert name == "-XX:ArchiveClassesAtExit"
        Path(path).write_text("classes")
        return completes

    return run


def never(option: str) -> bool:
    pytest.fail(f"started with {option}")


def test_the_first_server_writes_the_archive_that_others_use(tmp_path: Path) -> None:
    assert class_archive.options(tmp_path) == []
    class_archive.ensure(tmp_path, writer(completes=True))
    class_archive.ensure(tmp_path, never)
    (option,) = class_archive.options(tmp_path)
    assert Path(option.removeprefix("-XX:SharedArchiveFile=")).read_text() == "classes"


def test_an_unfinished_archive_is_not_used_and_the_next_server_writes_one(tmp_path: Path) -> None:
    class_archive.ensure(tmp_path, writer(completes=False))
    assert class_archive.options(tmp_path) == []
    class_archive.ensure(tmp_path, writer(completes=True))
    assert class_archive.options(tmp_path)


def test_a_server_that_writes_nothing_is_no_error(tmp_path: Path) -> None:
    class_archive.ensure(tmp_path, lambda option: True)
    assert class_archive.options(tmp_path) == []


def test_an_upgraded_java_gets_its_own(tmp_path: Path, java: Path) -> None:
    class_archive.ensure(tmp_path, writer(completes=True))
    os.utime(java, ns=(1, 1))
    assert class_archive.options(tmp_path) == []


def test_nothing_is_started_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    class_archive.ensure(tmp_path, never)
