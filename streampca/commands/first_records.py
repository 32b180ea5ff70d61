"""A worker's first records, while the kernels are compiled by another process.

The first blocks of a stream are learned by NumPy alone. So on a machine without cached kernels a new stream has a model
within seconds; compiling takes longer.
"""

import atexit
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace

import structlog

from streampca.pca.compilation import compile_kernels
from streampca.pca.learning import LearningConfig
from streampca.stream.events import Event, Records, Undecoded

log = structlog.get_logger()


class FirstRecords:
    """Decodes the records that need no kernels, one vector each; the others are to be read again later."""

    def __init__(self, config: LearningConfig, decode: Callable[[Records], Event]) -> None:
        """Start to compile, into numba's cache."""
        self._config, self._decode, self._started = config, decode, time.perf_counter()
        self._taken: Counter[int] = Counter()  # records by partition
        self._ready = False
        command = [sys.executable, "-m", "streampca.pca.compilation", json.dumps(asdict(config))]
        self._process = subprocess.Popen(command)  # noqa: S603 - our own program
        atexit.register(self._process.kill)

    def __call__(self, event: Records) -> Event:
        """The vectors of the first of these records that can be learned by now."""
        left = self._config.early - self._taken[event.partition]
        if event.count > left and not self._load():
            if left <= 0:
                first = event.records[0].offset
                return Undecoded(event.partition, first, event.count, event.end, "kernels are being compiled")
            event = replace(event, records=event.records[:left], next=event.records[left].offset)
        self._taken[event.partition] += event.count
        return self._decode(event)

    def _load(self) -> bool:
        """Load the kernels once they are compiled; returns whether they are loaded."""
        if not self._ready and self._process.poll() is not None:
            compile_kernels(self._config)  # only if they could not be cached, this compiles them
            self._ready = True
            log.info("kernels compiled", seconds=round(time.perf_counter() - self._started, 1))
        return self._ready
