"""Whether a member is healthy, and ready, as its probes say."""

from typing import NamedTuple

from streampca.consumer_group.member_state import MemberState
from streampca.errors import NO_ANSWER

_STUCK_AFTER_S = 60.0  # without a tick: longer than any single step of the loop takes, even with a slow disk
_STARTED_AFTER_S = 300.0  # to the first tick: a throttled container may take minutes to compile its kernels


class Failure(NamedTuple):
    """Why a probe fails."""

    kind: str  # all that is said where others need a token, and there is none
    cause: str


def why_unhealthy(state: MemberState, now: float) -> Failure | None:
    """Why the process should be restarted at a time of the monotonic clock; None while it is healthy."""
    silence_s = now - state.ticked.ticks
    if silence_s > (_STUCK_AFTER_S if state.has_run else _STARTED_AFTER_S):
        return Failure("loop", f"the loop has not run for {silence_s:.0f} s")
    if state.saving.would_restart_help:
        seconds = state.saving.overdue_s
        return Failure("saving", f"nothing was saved for {seconds:.0f} s: {NO_ANSWER} a client, but a new one")
    return None


def why_not_ready(state: MemberState, now: float) -> Failure | None:
    """Why the member is not ready; None while it is."""
    if state.stop_cause:
        return Failure("stopping", f"stopping: {state.stop_cause}")
    if state.has_joined:
        return None
    connection, away = state.connection, ""
    if connection is not None and (connection.cause or not connection.connected):
        away = f": {connection.cause or NO_ANSWER}"
    kind = "certificate" if "certificate" in away else "broker" if away else "group"
    return Failure(kind, f"no place in the consumer group yet{away}")
