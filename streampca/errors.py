"""The errors that streampca expects. Each has a message of one line that says how to fix it; bugs are left to crash."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

RETRY_MAY_HELP = "a retry may help"  # part of every message about a failure that may end by itself
NO_ANSWER = "no broker answers"  # part of every message about a client whose requests nobody answers
_MAX_NAMES = 20  # in a message
_MAX_NAME_LETTERS = 60


class StreampcaError(Exception):
    """Base class of all expected errors; the message is one line, fit for a terminal."""


class SettingsError(StreampcaError):
    """The settings are invalid, or do not match what the store already holds."""


class ForeignStoreError(SettingsError):
    """The store is not the one that the group's workers have written, since the group has committed further offsets."""


class InputError(StreampcaError, ValueError):
    """Vectors cannot be learned or projected: wrong shape, not finite, or too large."""


class DamagedFileError(StreampcaError):
    """A checkpoint or model file is corrupt."""


class StoreError(StreampcaError):
    """The store cannot be read or written (missing folder, permissions, full disk)."""


class StoreBusyError(StoreError):
    """The store fails, does not answer, or does not show what was just written; a retry may help."""


class NewerFormatError(StoreError):
    """A newer release has written a file, which is not damaged. This process waits until it is upgraded."""


class StaleListingError(StoreBusyError):
    """A listing names files that are gone, as network file systems do for a minute; a retry helps."""


class SourceError(StreampcaError):
    """The broker refuses the request and retrying cannot help: unknown topic, wrong credentials, not authorized."""


class NoBrokerError(SourceError):
    """Neither a broker nor another server that clients need answers: it is away, or a setting is wrong."""


class CertificateError(NoBrokerError):
    """A TLS connection fails: the broker refuses our certificate, or we refuse the broker's."""


class TopicReplacedError(SourceError):
    """The topic was deleted and created again, so the checkpoint's offsets are no longer valid."""


class OffsetGapError(SourceError):
    """The next records to read are gone: retention removed them, or the log was truncated."""


class BadRecordError(StreampcaError):
    """A record cannot be learned or projected, and no dead-letter topic is set."""


class RejectLimitError(StreampcaError):
    """All records that a member reads first are rejected, so a setting or a producer must be wrong."""


def refuse_other_topic(topic: str, before: str, now: str, where: str, remedy: str) -> None:
    """Raise `TopicReplacedError` if the topic's id `now` differs from its id `before`.

    `where` completes the message: "when this worker started". Nothing is raised if one of the ids is empty: while a
    cluster is upgraded from 2.7, some of its brokers report an id, and others none.
    """
    if before and now and before != now:
        raise TopicReplacedError(
            f"topic {topic} was deleted and created again (its id is {now}, but was {before} {where}); {remedy}"
        )


def listed(names: Sequence[str], start: int = 0) -> str:
    """Return the names as a text. Of more than 20 names, only 20 from `start` on are listed, and "…" for the others."""
    if len(names) <= _MAX_NAMES:
        start = 0
    some_names = [name[:_MAX_NAME_LETTERS] for name in names[start : start + _MAX_NAMES]]
    text = ", ".join(name if name.isprintable() else repr(name) for name in some_names)
    before = "…, " if start else ""
    after = ", …" if start + len(some_names) < len(names) else ""
    return before + text + after


def needs(feature: str, package: str, extra: str) -> str:
    """Say which extra has the missing package. It is installed from a checkout, since nothing is published yet."""
    return f"{feature} needs {package}: pip install '.[{extra}]'"


@contextmanager
def naming_the_extra(feature: str, extra: str, *packages: str) -> Iterator[None]:
    """If an import fails, raise `SettingsError` that names the extra to install.

    With `packages`, only if one of these is missing; otherwise the error of the import is left as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if packages and package not in packages:
            raise
        raise SettingsError(needs(feature, package, extra)) from None


def naming_the_worker() -> AbstractContextManager[None]:
    """Name the extra `worker` if a package is missing that an installation for the sidecar alone does not have."""
    return naming_the_extra("this", "worker", "kafka", "numba", "scipy")


def exit_code_of(error: Exception) -> int:
    """Return the exit code of a command that ends with this error.

    3 if all first records were rejected, 2 for wrong settings, and 1 for anything else.
    """
    if isinstance(error, RejectLimitError):
        return 3
    if isinstance(error, SettingsError):
        return 2
    return 1
