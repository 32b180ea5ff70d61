"""The log of a worker: what every member logs, its checkpoints and its models."""

import structlog

from streampca.consumer_group.events import BatchLearned, CheckpointSaved, ModelPublished
from streampca.consumer_group.log import MemberLog
from streampca.consumer_group.member import Change
from streampca.consumer_group.member_state import MemberState
from streampca.fold.dominance import describe_dominant_dimension
from streampca.fold.fold import Fold
from streampca.formats.epoch import describe_odd_timestamp

log = structlog.get_logger()

_CLOCK_TOLERANCE_S = 3600.0  # by which records may be ahead of this machine's clock


class WorkerLog(MemberLog):
    """Logs what every member logs, and the checkpoints and models of a worker."""

    activity = "learning"

    def __init__(self) -> None:
        super().__init__()
        self._warnings: set[str] = set()  # that were logged: each is logged once

    def observe(self, change: Change) -> None:
        """Log what an event means for the user."""
        super().observe(change)
        state = change.after
        match change.event:
            # At least one timestamp is odd.
            case BatchLearned(odd_timestamps=[first, *_]):
                cause = f"half_life_seconds depends on {describe_odd_timestamp(first)}"
                self._warn_once("timestamps outside 1990 to 2100", cause=cause)
            case CheckpointSaved(partition, fold, seconds):
                log.debug("checkpoint saved", partition=partition, next_offset=fold.position, seconds=round(seconds, 4))
            case ModelPublished():
                self._warn_of_clock(change.event)
                self._warn_of_dominant_dimension(change.event)
                _log_model(change.event, is_first=change.before.model_version is None)
        if state.has_caught_up and not change.before.has_caught_up:
            learned = sum(fold.stats.learned for fold in _learned_folds(state))
            if learned:
                log.info("caught up", partitions=len(state.partitions), learned=learned)

    def _warn_once(self, warning: str, **fields: object) -> None:
        """Log a warning, unless it was logged before."""
        if warning not in self._warnings:
            self._warnings.add(warning)
            log.warning(warning, **fields)

    def _warn_of_clock(self, event: ModelPublished) -> None:
        """Warn once if a model with a half-life has learned records far ahead of this machine's clock.

        A merge treats partitions that are ahead of the clock as if they were at the clock's time. If two partitions are
        ahead, the older one should lose weight against the newer one by the half-life, but loses none.
        """
        model = event.model
        has_half_life = model.settings.get("half_life_seconds") is not None
        ahead_s = event.event_time_ms / 1000 - model.published_at
        if has_half_life and ahead_s > _CLOCK_TOLERANCE_S:
            self._warn_once(
                "records are ahead of the clock",
                ahead_s=round(ahead_s),
                cause="half_life_seconds has no effect between partitions that are ahead: correct this machine's "
                "clock, or the producers'",
            )

    def _warn_of_dominant_dimension(self, event: ModelPublished) -> None:
        """Warn once if one dimension has nearly all of the variance."""
        cause = describe_dominant_dimension(event.model)
        if cause:
            self._warn_once("one dimension has most variance", cause=cause)

    def log_end(self, state: MemberState) -> None:
        """Log the last line: what was learned, and the offsets at which the next worker will resume."""
        saved_up_to = {}
        for number, partition in sorted(state.partitions.items()):
            if partition.saved_up_to >= 0:  # a negative offset: nothing of the partition is saved
                saved_up_to[str(number)] = partition.saved_up_to
        log.info(
            "worker ended",
            learned=state.messages,
            rejected=self._rejected.total(),
            saved_up_to=saved_up_to,
            last_model=state.model_version,
        )

    def _progress_fields(self, state: MemberState) -> dict[str, object]:
        """Return the fields that every kind of member logs, and the version of the last model and `loss`.

        `loss` is the share of the squared length of recent messages that projection loses.
        """
        # In each partition, `norm_ewma` is the mean squared length of recent messages, and `loss_ewma` the mean squared
        # length that projection loses. The ratio of their sums over all partitions is the loss.
        all_stats = [fold.stats for fold in _learned_folds(state)]
        squared_length = sum(stats.norm_ewma for stats in all_stats)
        lost_squared_length = sum(stats.loss_ewma for stats in all_stats)
        return super()._progress_fields(state) | {
            "loss": round(lost_squared_length / squared_length, 5) if squared_length else None,
            "last_model": state.model_version,
        }


def _log_model(event: ModelPublished, *, is_first: bool) -> None:
    """Log a published model. Progress lines tell the versions, so only the first is logged at `info`."""
    published = event.model
    explained_ratios = published.model.explained_variance_ratio  # of each component
    loss = published.stats.loss_ewma  # None: no message was scored
    write = log.info if is_first else log.debug
    write(
        "model published",
        version=published.version,
        explained_variance_ratio=round(float(explained_ratios.sum()), 5),
        loss_ewma=None if loss is None else round(loss, 5),
        partitions=len(published.positions),
        seconds=round(event.seconds, 3),
    )


def _learned_folds(state: MemberState) -> list[Fold]:
    """Return the folds of the partitions of which a batch was learned."""
    return [partition.fold for partition in state.partitions.values() if partition.fold]
