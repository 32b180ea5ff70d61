"""Folds → model: the newest checkpoints of all partitions, merged, as one more version in the model store.

A model is a function of the positions that its folds have reached. Only the signs of its axes follow the version
published before, so that coordinates do not jump.
"""

from collections.abc import Callable, Sequence

from streampca.pca.merge import merge
from streampca.pca.summary import model_of
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.stream import guard
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import Shape, Tally
from streampca.stream.published import Published

_LEAST = 2  # messages: one alone has no direction


class Publisher:
    """Writes models. Two at work for a moment are harmless: the same positions give the same version."""

    def __init__(self, checkpoints: Checkpoints, models: Models, shape: Shape, now: Callable[[], float]) -> None:
        self._checkpoints, self._models, self._shape, self._now = checkpoints, models, shape, now

    def publish(self, at_hand: Sequence[Checkpoint] = ()) -> Published | None:
        """Write the model of the newest checkpoints; None when there is nothing new, or too little to make one of.

        Those that the caller has just saved are `at_hand`, and need not be read again where they are the newest.
        """
        saved = {checkpoint.partition: checkpoint for checkpoint in at_hand}
        folds = [found for p in self._checkpoints.partitions() if (found := self._newest(p, saved.get(p)))]
        for checkpoint in folds:
            guard.refuse_other_settings(checkpoint, self._shape)
            guard.refuse_other_topic(checkpoint, folds[0].topic_id)
        version = sum(checkpoint.fold.tally.learned for checkpoint in folds)
        newest = self._models.newest()
        if version < _LEAST or (newest and version <= newest.version):
            return None
        model = self._merged(folds, newest)
        return model if self._models.save(model) else None

    def _newest(self, partition: int, at_hand: Checkpoint | None) -> Checkpoint | None:
        if at_hand and self._checkpoints.offsets(partition)[-1:] == [at_hand.fold.position]:
            return at_hand
        return self._checkpoints.newest(partition)

    def _merged(self, folds: list[Checkpoint], before: Published | None) -> Published:
        recipe = self._shape.recipe
        time = max(checkpoint.fold.clock.now_ms for checkpoint in folds)
        elapsed = [time - c.fold.clock.now_ms if c.fold.clock.now_ms >= 0 else 0 for c in folds]
        state = merge(
            [checkpoint.fold.provisional(recipe) for checkpoint in folds],
            recipe.columns,
            [self._shape.decay(e) for e in elapsed],
        )
        tallies = [checkpoint.fold.tally for checkpoint in folds]
        first = [t.first_ms for t in tallies if t.first_ms >= 0]
        return Published(
            version=sum(tally.learned for tally in tallies),
            model=model_of(state, recipe.components, before.model.components if before else None),
            topic=folds[0].topic,
            topic_id=folds[0].topic_id,
            positions={checkpoint.partition: checkpoint.fold.position for checkpoint in folds},
            rejected=sum(sum(tally.rejected.values()) for tally in tallies),
            **_losses(tallies),
            first_timestamp_ms=min(first, default=-1),
            last_timestamp_ms=max(tally.last_ms for tally in tallies),
            published_at=self._now(),
            settings=self._shape.as_dict(),
        )


def _losses(tallies: list[Tally]) -> dict[str, float | None]:
    """The losses of all partitions together, each weighing as many messages as it scored."""
    scored = sum(tally.scored for tally in tallies)
    if not scored:
        return {"loss": None, "loss_ratio": None, "loss_ewma": None}

    def mean(name: str) -> float:
        return sum(tally.scored / scored * float(getattr(tally, name)) for tally in tallies)

    norm, norm_ewma = mean("norm"), mean("norm_ewma")
    return {
        "loss": mean("loss"),
        "loss_ratio": mean("loss") / norm if norm else 0.0,
        "loss_ewma": mean("loss_ewma") / norm_ewma if norm_ewma else 0.0,
    }
