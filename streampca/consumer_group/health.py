"""Whether a member is healthy, and ready, as its probes say."""

from typing import NamedTuple

from streampca.consumer_group.events import PartitionsMissing
from streampca.consumer_group.member_state import MemberState
from streampca.errors import NO_ANSWER

_LONGEST_TURN_S = 60.0  # between two ticks: longer than any turn of the loop takes, even with a slow disk
_LONGEST_START_S = 300.0  # to the first tick: a throttled container may take minutes to compile its kernels


class Failure(NamedTuple):
    """Why a probe fails."""

    kind: str  # one word, which anybody may see
    cause: str  # what somebody with a token sees


def why_unhealthy(state: MemberState, now: float) -> Failure | None:
    """Return why the process should be restarted, or None while it is healthy; `now` is in monotonic seconds."""
    silence_s = now - state.last_tick_at.monotonic_s
    is_starting = not state.has_run  # the loop has not begun
    longest_silence_s = _LONGEST_START_S if is_starting else _LONGEST_TURN_S
    if silence_s > longest_silence_s:
        return Failure("loop", f"the loop has not run for {silence_s:.0f} s")
    if state.saving.would_restart_help:  # brokers answer a new Kafka client, but not the client of this process
        seconds = state.saving.overdue_s
        return Failure("saving", f"nothing was saved for {seconds:.0f} s: brokers answer only a new client")
    return None


def describe_health(state: MemberState) -> str:
    """Return the text of a healthy process: "ok", and which partitions are missing. A restart would not help."""
    missing = state.problems.get(PartitionsMissing)
    return f"ok; partitions missing: {missing.cause}" if missing else "ok"


def why_not_ready(state: MemberState, now: float) -> Failure | None:
    """Return why the member is not ready, or None while it is."""
    if state.stop_cause:
        return Failure("stopping", f"stopping: {state.stop_cause}")
    if state.has_joined:
        return None
    no_place = "no place in the consumer group yet"
    connection = state.connection
    if connection is None:  # not known yet
        return Failure("group", no_place)
    is_still_joining = connection.connected and not connection.cause  # brokers answer, and there was no error
    if is_still_joining:
        return Failure("group", no_place)
    # The cause is why no broker answers or, if a broker answers, an error that keeps the member from joining the group.
    cause = connection.cause or NO_ANSWER
    kind = "certificate" if "certificate" in cause else "broker"
    return Failure(kind, f"{no_place}: {cause}")
