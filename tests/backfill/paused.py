"""A backfill in a process of its own, which pauses at a step of its life until it is allowed to continue.

python -m tests.backfill.paused STORE LAKE [OPERATION PATTERN]: pauses before that operation on a name of the store that
matches the pattern, the first time.
"""

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from streampca.backfill import engines
from streampca.backfill.execute import execute
from streampca.errors import StreampcaError
from streampca.files.chunks import chunks_of
from streampca.stores.directory import DirectoryStore
from tests.backfill.rows import backfill_of

D = 5


class Paused(DirectoryStore):
    """Says `paused` before one operation, and continues after a line of the input."""

    pause = ("", "")

    def _perhaps(self, operation: str, name: str) -> None:
        if operation == self.pause[0] and fnmatchcase(name, self.pause[1]):
            self.pause = ("", "")
            sys.stdout.write("paused\n")
            sys.stdout.flush()
            sys.stdin.readline()

    def read(self, name: str) -> bytes:
        self._perhaps("read", name)
        return super().read(name)

    def write(self, name: str, data: bytes) -> None:
        self._perhaps("write", name)
        super().write(name, data)

    def delete(self, name: str) -> None:
        self._perhaps("delete", name)
        super().delete(name)


class Process:
    """A running backfill of a lake."""

    def __init__(self, store: Path, lake: Path, *pause: str) -> None:
        command = [sys.executable, "-m", "tests.backfill.paused", str(store), str(lake), *pause]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        if pause:
            assert self._process.stdout
            assert self._process.stdout.readline() == "paused\n", self.end()

    def end(self) -> tuple[int, str]:
        """Let it continue; its exit code, and its last words."""
        output, errors = self._process.communicate("\n", timeout=120)
        return self._process.returncode, (output + errors).strip().rpartition("\n")[2]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)


def main(place: str, lake: str, *pause: str) -> None:
    store = Paused(place)
    if pause:
        store.pause = (pause[0], pause[1])

    def here(chunks: Any, backfill: Any) -> Any:
        for name, chunk in chunks.items():
            yield name, engines.fold_chunk(chunk, backfill)

    try:
        checkpoint, _ = execute(store, backfill_of(D), chunks_of([lake]), here, lambda done: None)
    except StreampcaError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(2)
    sys.stdout.write(f"{checkpoint.fold.stats.learned}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
