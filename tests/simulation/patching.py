"""Replaces parts of production code by broken ones."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from streampca.stores.model_cache import ModelCache

Mutant = Callable[[], AbstractContextManager[Any]]


def patched(owner: Any, **attributes: Any) -> Mutant:
    """A mutant with other attributes of a class or module."""
    return lambda: mock.patch.multiple(owner, **attributes)


LOADS_OLDER_MODELS = patched(ModelCache, _candidates=lambda self, versions: list(reversed(versions)))
"""Makes a model cache load an older model when the file of a newer one is damaged."""


def nothing(*arguments: Any, **options: Any) -> None:
    """A method that does nothing."""


class both(AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Several mutants at once."""

    def __init__(self, *mutants: Mutant) -> None:
        self._managers = [mutant() for mutant in mutants]

    def __enter__(self) -> None:
        for manager in self._managers:
            manager.__enter__()

    def __exit__(self, *exception: object) -> None:
        for manager in self._managers:
            manager.__exit__(None, None, None)
