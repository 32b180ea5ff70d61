"""The broker of a benchmark: a new one of its own, or a running one by the option `--broker`."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import parser
from tests.broker_client import BrokerClient, RunningBroker
from tests.kafka_broker import Broker


def parser_with_broker(description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark on a broker."""
    options = parser(description)
    options.add_argument("--broker", metavar="HOST:PORT", help="use this running broker instead of starting one")
    return options


@contextmanager
def broker_of(given: argparse.Namespace) -> Iterator[BrokerClient]:
    """The running broker that the options name; without one, a broker that is started here and stopped at the end."""
    if given.broker:
        with RunningBroker(given.broker) as running:
            yield running
    else:
        with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as started:
            yield started
