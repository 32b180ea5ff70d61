"""Hanging code ends a process, whatever it is; waiting does not."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from streampca.process import watchdog

BEGIN = """
    import ctypes, threading, time
    from concurrent.futures import Future, ThreadPoolExecutor
    from streampca.process import watchdog
    watchdog.HANG_S = 7.0
    watchdog._EXACT_S = 0.1

    def tick_for(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            watchdog.tick()
            time.sleep(0.1)
"""


def run(body: str) -> tuple[int, str, str]:
    """The exit code of a process, what it prints, and its log."""
    code = textwrap.dedent(BEGIN) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("library", ["PyDLL", "CDLL"])
def test_hanging_code_ends_the_process_although_another_thread_goes_on(library: str) -> None:
    """With PyDLL, C code hangs with the GIL held: no signal is heard, and no other thread runs."""
    code, _, log = run(f"""
        def hang():
            ctypes.{library}(None).sleep(100)

        with watchdog.watching():
            threading.Thread(target=tick_for, args=(100,), daemon=True).start()
            tick_for(0.5)
            hang()
    """)
    assert code == 1
    assert "Timeout" in log
    assert "in hang" in log
    assert "in tick_for" in log


ALIVE = (
    "watchdog.tick(); time.sleep(8)",  # nothing is watched yet
    "with watchdog.watching():\n threading.Thread(target=tick_for, args=(0.3,)).start(); tick_for(8)\ntime.sleep(8)",
    "with watchdog.watching():\n watchdog.tick(); watchdog.result_of(ThreadPoolExecutor(1).submit(time.sleep, 8))",
    "with watchdog.watching():\n watchdog.tick(60); time.sleep(8); watchdog.tick()",
)


def test_what_ticks_waits_or_has_ended_does_not_hang() -> None:
    with ThreadPoolExecutor(len(ALIVE)) as threads:
        assert [*threads.map(run, ALIVE)] == [(0, "", "")] * len(ALIVE)


def test_results_and_errors_are_those_of_the_thread() -> None:
    def fail() -> None:
        raise TimeoutError("its own")

    with ThreadPoolExecutor(1) as threads:
        assert watchdog.result_of(threads.submit(int, "5")) == 5
        with pytest.raises(TimeoutError, match="its own"):
            watchdog.result_of(threads.submit(fail))
