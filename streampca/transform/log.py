"""The log of `streampca transform`: what every member logs, its transactions and its models."""

import structlog

from streampca.consumer_group.events import ModelVersionFixed
from streampca.consumer_group.log import MemberLog
from streampca.consumer_group.member import Change
from streampca.consumer_group.member_state import MemberState

log = structlog.get_logger()


class TransformLog(MemberLog):
    """Logs what every member logs, and the models and the progress of a member of transform."""

    activity = "transforming"

    def observe(self, change: Change) -> None:
        super().observe(change)
        before = change.before
        after = change.after
        if before.model_version is None and after.model_version is not None:
            log.info("model in use", version=after.model_version)
        elif before.model_version != after.model_version:  # a debug message: the version may change every few seconds
            log.debug("model in use", version=after.model_version)
        if after.has_caught_up and not before.has_caught_up:
            log.info("caught up", partitions=len(after.partitions), read=after.messages)
        match change.event:
            case ModelVersionFixed(version, pins) if pins:  # the setting model_version names this version
                log.info("model version fixed", version=version, pins=pins)
            case ModelVersionFixed(version):  # without a pin, the store may delete the version that is in use
                log.warning("model version not pinned", version=version, remedy=f"streampca pin {version}")

    def log_end(self, state: MemberState) -> None:
        log.info("transform ended", committed=state.committed.get("all", 0), **self._progress_fields(state))

    def _progress_fields(self, state: MemberState) -> dict[str, object]:
        return super()._progress_fields(state) | {"written": state.outputs, "model": state.model_version}
