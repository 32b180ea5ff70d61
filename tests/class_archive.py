"""Class archives for the servers that tests run in JVMs, which then start in about half the processor time.

The first JVM writes one when it ends; later ones, of any test process or run, map it into their memory. Java itself
checks that it belongs to these jars.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def options(folder: Path) -> list[str]:
    """Of a JVM, to use the archive in `folder`, if there is one."""
    archive = _archive(folder)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else []


def ensure(folder: Path, run: Callable[[str], bool]) -> None:
    """Write an archive into `folder` unless it has one for this Java; nothing is written where that is impossible.

    `run` starts the server with the given option and stops it; it returns whether the JVM ended by itself.
    """
    archive = _archive(folder)
    if archive.is_file() or not os.access(folder, os.W_OK):
        return
    with (folder / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if archive.is_file():  # another process was faster
            return
        unfinished = archive.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        if run(f"-XX:ArchiveClassesAtExit={unfinished}"):
            with suppress(FileNotFoundError):  # Java could not write it
                unfinished.replace(archive)


def _archive(folder: Path) -> Path:
    """Its name changes when Java is upgraded, because another version refuses it."""
    java = shutil.which("java")
    assert java is not None
    return folder / f"classes-{Path(java).resolve().stat().st_mtime_ns}.jsa"
