"""Ports for servers under test that must come back where they were."""

import itertools
import os
import random
import socket
from collections.abc import Iterator

# Below the ports that Linux, macOS and Windows give to outgoing connections: one of those would hold
# the port of a server that is away for a moment, and the server could not come back.
_RANGE = range(20_000, 32_768)


def _of_this_process() -> Iterator[int]:
    """Each port once, in an order of chance; no port that another process of the same test run would take."""
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = list(_RANGE[mine :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))])
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


_ports = _of_this_process()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on, and that were not given before."""
    return list(itertools.islice(filter(_is_free, _ports), count))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
