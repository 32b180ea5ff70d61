"""Requests side by side: each is made once, in order, and no more at once than allowed."""

from concurrent.futures import Future
from threading import Event
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from streampca.errors import StoreBusyError, StoreError
from streampca.stores import parallel_requests
from streampca.stores.parallel_requests import REQUESTS_AT_ONCE, ParallelRequests, RequestThreads, wait_for_end
from tests.errors import refusal
from tests.stepped_threads import SteppedThreads
from tests.waiting import PATIENCE_S

LIMIT = 100
SIZES = st.dictionaries(st.integers(0, 99), st.integers(0, 2 * LIMIT), max_size=60)


@given(SIZES, st.lists(st.integers(1, 20), min_size=1))
def test_answers_come_once_each_and_never_too_many_are_in_flight(sizes: dict[int, int], steps: list[int]) -> None:
    threads, in_flight = SteppedThreads(), set[int]()

    def begin(partition: int) -> int:
        return -partition

    def check() -> None:
        """What has begun and was not taken fits, or is alone; and no room is left unused."""
        in_flight.clear()
        in_flight.update(set(threads.begun) - answers.keys())
        nbytes = sum(sizes[partition] for partition in in_flight)
        assert len(in_flight) == 1 or (len(in_flight) <= REQUESTS_AT_ONCE and nbytes <= LIMIT)
        waiting = [partition for partition in sizes if partition not in threads.begun]
        if waiting:
            assert len(in_flight) == REQUESTS_AT_ONCE or nbytes + sizes[waiting[0]] > LIMIT

    answers: dict[int, int] = {}
    with mock.patch.object(parallel_requests, "BYTES_AT_ONCE", LIMIT):
        requests = ParallelRequests(threads, begin, sizes)
        turn = 0
        while not requests.have_ended:
            check()
            threads.end(steps[turn % len(steps)])
            turn += 1
            for partition, result in requests.take_ended(0.0):
                assert partition not in answers
                answers[partition] = result()
    assert answers == {partition: -partition for partition in sizes}
    assert threads.begun == list(sizes)


@given(SIZES)
def test_answers_can_be_taken_in_order(sizes: dict[int, int]) -> None:
    requests = ParallelRequests(SteppedThreads(), str, sizes)
    assert [(partition, result()) for partition, result in requests.take_in_order()] == [(p, str(p)) for p in sizes]


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize(("error", "is_last"), [(StoreError("403"), False), (StoreBusyError("503"), True)])
def test_a_busy_store_gets_no_further_requests(count: int, error: StoreError, *, is_last: bool) -> None:
    def fail(partition: int) -> None:
        raise error

    threads = SteppedThreads()
    requests = ParallelRequests(threads, fail, dict.fromkeys(range(count), 1))
    taken = [partition for partition, _ in requests.take_in_order()]
    assert taken == threads.begun == list(range(min(count, REQUESTS_AT_ONCE) if is_last else count))
    assert requests.have_ended


def test_the_error_of_a_call_is_raised_by_its_result_alone() -> None:
    def call(partition: int) -> int:
        if partition == 1:
            raise StoreError("away")
        return partition

    answers = dict(ParallelRequests(RequestThreads(), call, {0: 1, 1: 1, 2: 1}).take_in_order())
    assert (answers[0](), answers[2]()) == (0, 2)
    assert refusal(StoreError, answers[1]) == "away"


def test_requests_wait_for_each_other_in_threads_of_their_own() -> None:
    """All of them run at once: each waits until all have begun."""
    begun, all_begun = [], Event()

    def call(partition: int) -> bool:
        begun.append(partition)
        if len(begun) == REQUESTS_AT_ONCE:
            all_begun.set()
        return all_begun.wait(PATIENCE_S)

    requests = ParallelRequests(RequestThreads(), call, dict.fromkeys(range(REQUESTS_AT_ONCE), 1))
    assert all(result() for _, result in requests.take_in_order())


def test_what_has_ended_is_taken_although_the_oldest_hangs() -> None:
    threads = SteppedThreads()
    threads.held = {0}
    requests = ParallelRequests(threads, str, dict.fromkeys(range(40), 1))
    taken: list[int] = []
    for _ in range(40):
        threads.end(1)
        taken += [partition for partition, _ in requests.take_ended(0.0)]
    assert taken == list(range(1, 40))
    assert not requests.have_ended
    threads.held.clear()
    threads.end(1)
    assert [partition for partition, _ in requests.take_ended(0.0)] == [0]


def test_waiting_has_a_limit_and_raises_no_error_of_the_call() -> None:
    future: Future[None] = Future()
    assert not wait_for_end(future, 0.001)
    future.set_exception(StoreError("away"))
    assert wait_for_end(future, 0.001)
