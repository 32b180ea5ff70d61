"""One tree of errors: what a person can mend carries a sentence that says how; bugs are left to crash."""


class StreampcaError(Exception):
    """Anything that streampca refuses or cannot do; its text is one line fit for a terminal."""


class SettingsError(StreampcaError):
    """The settings contradict themselves, or do not fit what the store already holds."""


class InputError(StreampcaError, ValueError):
    """Vectors that cannot be learned or projected: wrong shape, not finite, too large."""


class DamagedFileError(StreampcaError):
    """A checkpoint or model file does not hold what was written into it."""


class StoreError(StreampcaError):
    """The store cannot be read or written (missing folder, permissions, full disk)."""


class SourceError(StreampcaError):
    """The broker refuses us for good: unknown topic, wrong credentials, not authorized."""


class TopicReplacedError(SourceError):
    """The topic was deleted and created again: its offsets no longer mean what the checkpoint says."""


class OffsetGapError(SourceError):
    """Records between the checkpoint and the start of the log have been removed by retention."""


class BadRecordError(StreampcaError):
    """A record cannot be learned and there is no dead-letter topic to put it into."""
