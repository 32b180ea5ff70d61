"""All test processes use one S3 server: the first starts it, the last kills it, in whatever order they leave."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from tests import shared_server
from tests.shared_server import shared_s3

USERS = 3


class FakeServer:
    """One that needs no Java; the class counts starts."""

    starts = 0

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.port, self.pid = port, 0

    def start(self) -> None:
        type(self).starts += 1
        self.port, self.pid = self.starts, 1000 + self.starts

    def leave(self) -> None:
        self.pid = 0


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The pids of servers that were killed."""
    pids: list[int] = []
    monkeypatch.setattr(FakeServer, "starts", 0)
    monkeypatch.setattr(shared_server, "S3Process", FakeServer)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: pids.append(pid) if number == signal.SIGKILL else None)
        yield pids


@pytest.mark.parametrize("order", list(permutations(range(USERS))))
def test_the_first_starts_it_and_the_last_kills_it(tmp_path: Path, killed: list[int], order: tuple[int, ...]) -> None:
    users = [ExitStack() for _ in range(USERS)]
    assert [user.enter_context(shared_s3(tmp_path / "s3")).port for user in users] == [1] * USERS
    for place in order:
        assert killed == []
        users[place].close()
    assert killed == [1001]


def test_who_comes_after_the_last_starts_another(tmp_path: Path, killed: list[int]) -> None:
    for number in (1, 2):
        with shared_s3(tmp_path / "s3") as server:
            assert server.port == number
    assert killed == [1001, 1002]


def test_a_failing_start_is_left_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FakeServer, "start", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError), shared_s3(tmp_path / "s3"):
            pass
    with shared_s3(tmp_path / "s3") as server:
        assert server.port == 1
