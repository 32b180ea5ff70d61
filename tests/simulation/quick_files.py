"""Remembers what was encoded, so that the simulation seldom decodes: most of its time would go there.

Contents that no worker encoded, such as damaged ones, are decoded as ever. That `decode` inverts `encode` is a law of
its own (tests/fold).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from unittest import mock

from streampca.fold import checkpoint, model_file

T = TypeVar("T")


@contextmanager
def installed() -> Iterator[None]:
    """Let checkpoints and models be decoded quickly."""
    with ExitStack() as stack:
        for module in (checkpoint, model_file):
            encode, decode = _remembering(module.encode, module.decode)  # type: ignore[attr-defined]
            stack.enter_context(mock.patch.multiple(module, encode=encode, decode=decode))
        yield


def _remembering(
    encode: Callable[[T], bytes], decode: Callable[..., T]
) -> tuple[Callable[[T], bytes], Callable[..., T]]:
    encoded: dict[bytes, T] = {}

    def remember(thing: T) -> bytes:
        data = encode(thing)
        encoded[data] = thing
        return data

    def recall(data: bytes, **options: bool) -> T:
        found = encoded.get(data)
        return decode(data, **options) if found is None else found

    return remember, recall
