"""A time span for code that does not know the time when it creates the span."""


class Countdown:
    """A number of seconds that begin when somebody first asks whether they are over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends_at: float | None = None  # None until the first call of `is_over`

    def is_over(self, now: float) -> bool:
        """Return whether the seconds have passed since the first call; `now` is in monotonic seconds."""
        if self._ends_at is None:
            self._ends_at = now + self.seconds
        return now >= self._ends_at
