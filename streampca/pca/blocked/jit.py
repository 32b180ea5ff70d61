"""Compiled functions whose machine code is kept between runs, also where nothing can be written.

numba keeps the code in a folder that it can write to (that which NUMBA_CACHE_DIR names, the module's own, the
user's), and where it finds none it refuses to define the function at all. Here the code that an image was built with is
read from NUMBA_CACHE_DIR although that cannot be written to, and what cannot be kept is compiled again at each start.
"""

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

Function = TypeVar("Function", bound=Callable[..., Any])


class _Named(UserProvidedCacheLocator):  # type: ignore[misc]  # numba has no types
    """The folder that NUMBA_CACHE_DIR names; that it can be written to is not asked for."""

    def ensure_cache_path(self) -> None:
        with contextlib.suppress(OSError):
            super().ensure_cache_path()


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Named, *CompileResultCacheImpl._locator_classes)

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._locator.get_source_stamp = lambda: (_stamp(Path(function.__code__.co_filename)), _stamp(Path(__file__)))


@cache
def _stamp(module: Path) -> str:
    """Of all modules beside this one: what is compiled has a part of its code from functions of others."""
    digest = hashlib.sha256()
    for path in sorted(module.parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Cache(FunctionCache):  # type: ignore[misc]
    _impl_class = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was kept; nothing when it cannot be read."""
        with contextlib.suppress(OSError):
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep it; a folder that is read-only, full or gone costs the next start a compilation, and no more."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


def compiled(function: Function) -> Function:
    """The function compiled at its first call, its code kept where that can be done.

    Division by zero gives infinity or NaN, as in NumPy. Python's lock is held while it runs: what is over soon would
    only have to wait for it afterwards.
    """
    return _compiled(function, set())


def compiled_with_free_sums(function: Function) -> Function:
    """As `compiled`; terms may be added up in any order and products fused into sums, so that sums vectorise.

    On one machine and build the order is always the same.
    """
    return _compiled(function, _FREE)


def compiled_without_lock(function: Function) -> Function:
    """As `compiled_with_free_sums`, and other threads run meanwhile: for what takes long."""
    return _compiled(function, _FREE, nogil=True)


def inlined(function: Function) -> Function:
    """Compiled as a part of whatever compiled function calls it, with the liberties of that one.

    For what is called in one place: each function that is compiled by itself costs the very first start some 0.1 s.
    """
    return _compiled(function, _FREE, inline="always")


_FREE = {"reassoc", "contract", "nsz"}


def _compiled(function: Function, liberties: set[str], **options: Any) -> Function:
    dispatcher = njit(
        fastmath=liberties or False, error_model="numpy", no_cfunc_wrapper=True, **options
    )(function)  # fmt: skip
    with contextlib.suppress(RuntimeError):  # no folder will do
        dispatcher._cache = _Cache(function)  # what `cache=True` does, with numba's own, which needs a writable folder
    made: Function = dispatcher
    return made
