"""A limit for the memory of large bodies and answers: each is reserved before it is read or sent."""

import asyncio

LIMIT_BYTES = 64 * 2**20  # with models and two computations, 420 of 512 MiB
SMALL_BYTES = 64 * 1024  # a body or an answer up to this size needs no reservation
WAIT_S = 1.0


class Memory:
    """Counts reserved bytes; False: they do not fit. A single request always fits. Only for use on the event loop."""

    def __init__(self) -> None:
        self._reserved, self._released = 0, asyncio.Event()

    def try_reserve(self, size: int) -> bool:
        if size > SMALL_BYTES:
            if self._reserved and self._reserved + size > LIMIT_BYTES:
                return False
            self._reserved += size
        return True

    async def reserve(self, size: int) -> bool:
        if self.try_reserve(size):  # without a timer, which costs more than all else here
            return True
        try:
            async with asyncio.timeout(WAIT_S):
                while not self.try_reserve(size):
                    await self._released.wait()
        except TimeoutError:
            return False
        return True

    def release(self, size: int) -> None:
        if size > SMALL_BYTES:
            self._reserved -= size
            self._released.set()
            self._released = asyncio.Event()
