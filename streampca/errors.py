"""The errors that streampca expects, each with a one-line message that says how to fix it. Bugs are left to crash."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

RETRY_MAY_HELP = "a retry may help"  # part of every message about a failure that may end by itself
NO_ANSWER = "no broker answers"  # part of every message about a client whose requests nobody answers
_SHOWN, _LETTERS = 20, 60  # names in a message, and letters of each


class StreampcaError(Exception):
    """Base class of all expected errors; the message is one line, fit for a terminal."""


class SettingsError(StreampcaError):
    """The settings are invalid, or do not match what the store already holds."""


class ForeignStoreError(SettingsError):
    """The consumer group is ahead of the store: the store is not the one that the group's workers have written."""


class InputError(StreampcaError, ValueError):
    """Vectors cannot be learned or projected: wrong shape, not finite, or too large."""


class DamagedFileError(StreampcaError):
    """A checkpoint or model file is corrupt."""


class StoreError(StreampcaError):
    """The store cannot be read or written (missing folder, permissions, full disk)."""


class StoreBusyError(StoreError):
    """The store fails, does not answer, or does not show what was just written; a retry may help."""


class NewerFormatError(StoreError):
    """A file was written by a newer release; nothing is damaged. Until this process is upgraded, it waits."""


class StaleListingError(StoreBusyError):
    """A listing names files that are gone, as network file systems do for a minute; a retry helps."""


class SourceError(StreampcaError):
    """The broker refuses the request and retrying cannot help: unknown topic, wrong credentials, not authorized."""


class NoBrokerError(SourceError):
    """No broker answers, or nothing else that clients need: it is away, or a setting is wrong."""


class CertificateError(NoBrokerError):
    """No broker answers, since a certificate is refused: ours, or theirs by us."""


class TopicReplacedError(SourceError):
    """The topic was deleted and created again, so the checkpoint's offsets are no longer valid."""


class OffsetGapError(SourceError):
    """The next records to read were removed by retention, or the log was truncated."""


class BadRecordError(StreampcaError):
    """A record cannot be learned or projected, and no dead-letter topic is set."""


class RejectLimitError(StreampcaError):
    """The first records that a member reads are all rejected, so that a setting or a producer must be wrong."""


def refuse_other_topic(topic: str, before: str, now: str, where: str, remedy: str) -> None:
    """Raise `TopicReplacedError` if the topic has another id `now` than `before`; `where` says when or where that was.

    An empty id says nothing: brokers that are being upgraded from 2.7 begin to report ids, one after the other.
    """
    if before and now and before != now:
        raise TopicReplacedError(
            f"topic {topic} was deleted and created again (its id is {now}, but was {before} {where}); {remedy}"
        )


def listed(names: Sequence[str], start: int = 0) -> str:
    """The names; of many, some from `start` on."""
    start = start if len(names) > _SHOWN else 0
    shown = [name[:_LETTERS] for name in names[start : start + _SHOWN]]
    text = ", ".join(name if name.isprintable() else repr(name) for name in shown)
    return ("…, " if start else "") + text + (", …" if start + len(shown) < len(names) else "")


def needs(feature: str, package: str, extra: str) -> str:
    """The sentence about a missing package; it is installed from a checkout, since nothing is published yet."""
    return f"{feature} needs {package}: pip install '.[{extra}]'"


@contextmanager
def naming_the_extra(feature: str, extra: str, *packages: str) -> Iterator[None]:
    """Raise `SettingsError` with the extra to install if a package is missing: one of `packages`, or any."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if packages and package not in packages:
            raise
        raise SettingsError(needs(feature, package, extra)) from None


def naming_the_worker() -> AbstractContextManager[None]:
    """As `naming_the_extra`, for commands that an installation of the sidecar alone lacks packages for."""
    return naming_the_extra("this", "worker", "kafka", "numba", "scipy")


def exit_code_of(error: Exception) -> int:
    """The exit code of a command that the error ends: 2 for settings, 3 if all first records are rejected, else 1."""
    if isinstance(error, RejectLimitError):
        return 3
    return 2 if isinstance(error, SettingsError) else 1
