"""A worker's disk that hangs in the middle of a write when a test wants it."""

from pathlib import Path

from tests.forked import COMMAND_LINE

_PROGRAM = """
import threading
from pathlib import Path
from streampca.stores import directory

write_durably, folder = directory._write_durably, Path({folder!r})

def write(path, data):
    if "checkpoints" not in path.parts or not (folder / "wanted").exists():
        return write_durably(path, data)
    path.write_bytes(data[: len(data) // 2])
    (folder / "hangs").touch()
    threading.Event().wait()

directory._write_durably = write
"""


class HangingDisk:
    """The disk of workers that are started with `program`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._wanted, self._hangs = folder / "wanted", folder / "hangs"
        self.program = _PROGRAM.format(folder=str(folder)) + COMMAND_LINE

    def hang(self) -> None:
        """The next write of a checkpoint stops after half of its bytes, and so do all that follow."""
        self._wanted.touch()

    def hangs(self) -> bool:
        """Whether a write has stopped."""
        return self._hangs.exists()

    def recover(self) -> None:
        """Later writes succeed; those that have stopped wait forever."""
        for file in (self._wanted, self._hangs):
            file.unlink(missing_ok=True)
