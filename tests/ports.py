"""Ports for servers that tests restart on the same port."""

import itertools
import os
import random
import socket
from collections.abc import Iterator

# Below the range from which Linux, macOS and Windows assign ports to outgoing connections: such a connection could
# take the port of a stopped server, which then could not restart.
_RANGE = range(20_000, 32_768)


def _of_this_process() -> Iterator[int]:
    """The ports in random order, without those of the test run's other processes."""
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = list(_RANGE[mine :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))])
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


_ports = _of_this_process()


def free_ports(count: int) -> list[int]:
    """Unused loopback ports that were not returned before."""
    return list(itertools.islice(filter(_is_free, _ports), count))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
