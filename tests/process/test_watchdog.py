"""A loop that hangs ends its process. A thread that waits does not, and a process that was stopped goes on."""

import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from streampca.process import watchdog

HANG_S = 7.0
BEGIN = f"""
    import ctypes, threading, time
    from concurrent.futures import Future, ThreadPoolExecutor
    from streampca.process import watchdog
    watchdog.HANG_S = {HANG_S}
    watchdog._TICK_EVERY_S = 0.1

    def tick_for(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            watchdog.tick()
            time.sleep(0.1)
"""


def start(body: str) -> "subprocess.Popen[str]":
    """Start a process that runs this code, with `tick_for`."""
    code = textwrap.dedent(BEGIN) + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for the end of a process, and return its exit code, output and log."""
    output, log = process.communicate(timeout=60)
    return process.returncode, output, log


def run(body: str) -> tuple[int, str, str]:
    return read_end(start(body))


@pytest.mark.parametrize(("library", "exit_code"), [("PyDLL", 14), ("CDLL", 1)])
def test_hanging_code_ends_the_process_although_another_thread_goes_on(library: str, exit_code: int) -> None:
    """With PyDLL, C code hangs with the GIL held: no signal is heard, and no other thread runs."""
    code, _, log = run(f"""
        def hang():
            ctypes.{library}(None).sleep(100)

        with watchdog.watch_threads():
            threading.Thread(target=tick_for, args=(100,), daemon=True).start()
            tick_for(0.5)
            hang()
    """)
    assert code == exit_code
    assert "in hang" in log
    assert "in tick_for" in log


THAT_DO_NOT_HANG = (
    "watchdog.tick(); time.sleep(8)",  # nothing is watched yet
    """
    with watchdog.watch_threads():
        threading.Thread(target=tick_for, args=(0.3,)).start()
        tick_for(8)
    time.sleep(8)
    """,
    """
    with watchdog.watch_threads():
        watchdog.tick()
        watchdog.wait_for_result(ThreadPoolExecutor(1).submit(time.sleep, 8))
    """,
    """
    with watchdog.watch_threads():
        watchdog.tick(60)
        time.sleep(8)
        watchdog.tick()
    """,
)


def test_a_thread_that_ticks_waits_or_has_ended_does_not_hang() -> None:
    with ThreadPoolExecutor(len(THAT_DO_NOT_HANG)) as threads:
        assert [*threads.map(run, THAT_DO_NOT_HANG)] == [(0, "", "")] * len(THAT_DO_NOT_HANG)


STOPPED = (
    "threading.Thread(target=tick_for, args=(100,), daemon=True).start(); tick_for(13)",
    "watchdog.tick()\n    for _ in range(25): time.sleep(0.1)",  # a step that takes less than the limit, but for stops
)


def test_time_in_which_a_process_was_stopped_does_not_count() -> None:
    """As in a frozen container: when it runs again, the time since its last tick is longer than the limit."""
    processes = [
        start(f"with watchdog.watch_threads():\n    print('ready', flush=True)\n    {work}\n    watchdog.tick()")
        for work in STOPPED
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)  # the alarm is renewed meanwhile
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(HANG_S + 1)  # the length of the stop is what is tested
    for process in processes:
        process.send_signal(signal.SIGCONT)
    assert [read_end(process) for process in processes] == [(0, "", "")] * len(processes)


def test_results_and_errors_are_those_of_the_thread() -> None:
    def fail() -> None:
        raise TimeoutError("its own")

    with ThreadPoolExecutor(1) as threads:
        assert watchdog.wait_for_result(threads.submit(int, "5")) == 5
        with pytest.raises(TimeoutError, match="its own"):
            watchdog.wait_for_result(threads.submit(fail))
