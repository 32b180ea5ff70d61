"""A sidecar that loses a thread for good ends with that thread's error, as a process."""

from pathlib import Path

import pytest

from tests.sidecar.process import SidecarProcess

# A failure in the thread that is named, while the sidecar serves.
FAILURE = """
import threading
from streampca.stores.model_cache import ModelCache

def fail(*_):
    raise RuntimeError("injected into " + threading.current_thread().name)

def start(cache, interval_s):
    if NAME == "model-poller":
        cache._poll_forever = fail
    else:
        threading.Thread(target=fail, name=NAME).start()
    really_start(cache, interval_s)

really_start, ModelCache.start = ModelCache.start, start
"""


@pytest.mark.slow  # whole processes
@pytest.mark.parametrize("name", ["model-poller", "another"])
def test_the_death_of_a_thread_ends_the_sidecar(tmp_path: Path, name: str) -> None:
    with SidecarProcess(tmp_path, first=f"NAME = {name!r}\n{FAILURE}") as sidecar:
        code, log = sidecar.ended(within_s=60)
    assert code == 1, log
    assert f"RuntimeError: injected into {name}" in log.strip().splitlines()[-1]
