"""The errors that streampca expects. Each has a message of one line that says how to fix it; bugs are left to crash."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

RETRY_MAY_HELP = "a retry may help"  # part of every message about a failure that may end by itself
NO_ANSWER = "no broker answers"  # part of every message about a client whose requests nobody answers
_MAX_NAMES = 20  # in a message
_MAX_NAME_LETTERS = 60
_MAX_CAUSES = 3  # in a message


class StreampcaError(Exception):
    """Base class of all expected errors; the message is one line, fit for a terminal."""


class SettingsError(StreampcaError):
    """The settings are invalid, or do not match what the store already holds."""


class ForeignStoreError(SettingsError):
    """The store is not the one that the group's workers have written, since the group has committed further offsets."""


class EarlierFormatError(SettingsError):
    """A release before the previous one has written a file, so this release cannot read the file."""


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


class PartitionsMissingError(StoreError):
    """The newest model contains partitions that no checkpoint holds any more, or a checkpoint cannot be read."""

    def __init__(self, causes: Mapping[int, str]) -> None:
        super().__init__(list_causes(causes))
        self.causes = causes  # by partition


class StaleListingError(StoreBusyError):
    """A listing names files that are gone, as network file systems do for a minute; a retry helps."""


class SourceError(StreampcaError):
    """The broker refuses the request and retrying cannot help: unknown topic, wrong credentials, not authorized."""


class NoBrokerError(SourceError):
    """A broker, or another server that clients need, does not answer: it is away, or a setting is wrong."""


class CertificateError(NoBrokerError):
    """A TLS connection fails: the broker refuses our certificate, or we refuse the broker's."""


class TopicReplacedError(SourceError):
    """The topic is not the one that was read before, although it has the same name, so offsets mean other records."""


class OffsetGapError(SourceError):
    """The next records to read are gone: retention removed them, or the log was truncated."""


class BadRecordError(StreampcaError):
    """A record cannot be learned or projected, and no dead-letter topic is set."""


class RejectLimitError(StreampcaError):
    """All records that a member reads first are rejected, so a setting or a producer must be wrong."""


def refuse_other_topic(topic: str, before: str, now: str, where: str, remedy: str) -> None:
    """Raise `TopicReplacedError` if the topic's id `now` differs from its id `before`.

    While a cluster is upgraded from Kafka 2.7, some brokers report no id: an empty id is not compared.
    `where` and `remedy` complete the message.
    """
    if before and now and before != now:
        raise TopicReplacedError(
            f"topic {topic} is not the topic that was read before (its id is {now}, but was {before} {where}): correct "
            "bootstrap_servers if these are brokers of another cluster; if the topic was moved here on purpose, run "
            f"`streampca reset --adopt-topic`; if it was deleted and created again, {remedy}"
        )


def list_names(names: Sequence[str], start: int = 0) -> str:
    """Join the names to a text: at most 20 of them, from index `start` on."""
    if len(names) <= _MAX_NAMES:  # there is room for all names
        start = 0
    end = start + _MAX_NAMES
    short_names = [name[:_MAX_NAME_LETTERS] for name in names[start:end]]
    text = ", ".join(name if name.isprintable() else repr(name) for name in short_names)
    before = "…, " if start > 0 else ""
    after = ", …" if end < len(names) else ""
    return before + text + after


def list_causes(causes: Mapping[int, str]) -> str:
    """Return in one line why partitions are missing; "" if none is. Only the first three causes are named."""
    texts = [causes[partition] for partition in sorted(causes)]
    further_count = len(texts) - _MAX_CAUSES
    more = f"; and {further_count} more partitions" if further_count > 0 else ""
    return "; ".join(texts[:_MAX_CAUSES]) + more


def on_one_line(text: object) -> str:
    """Return a text, or the message of an error, with a blank in place of each line end and each run of blanks."""
    return " ".join(str(text).split())


def describe_missing_package(package: str, extra: str, needed_by: str) -> str:
    """Say how to install the extra that contains a missing package."""
    return f"{needed_by} needs {package}: pip install '.[{extra}]'"


@contextmanager
def explain_missing_extra(extra: str, *, needed_by: str, packages: Sequence[str] = ()) -> Iterator[None]:
    """Raise `SettingsError` if the block imports a package that is not installed, saying which extra has it.

    If `packages` are given, only these are explained.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if packages and package not in packages:
            raise
        raise SettingsError(describe_missing_package(package, extra, needed_by)) from None


def explain_missing_worker_extra() -> AbstractContextManager[None]:
    """Say to install `worker` if the block imports a package that only workers need."""
    return explain_missing_extra("worker", needed_by="this", packages=("kafka", "numba", "scipy"))


def find_exit_code(error: Exception) -> int:
    """Return the exit code of a command that ends with this error.

    3 if all first records were rejected, 2 for wrong settings, and 1 for anything else.
    """
    if isinstance(error, RejectLimitError):
        return 3
    if isinstance(error, SettingsError):
        return 2
    return 1
