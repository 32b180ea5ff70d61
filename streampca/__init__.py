"""Streaming principal component analysis for Kafka topics, learned exactly once.

    from streampca import StreamingPCA, merge      # a scikit-learn estimator (extra: sklearn)
    from streampca import Model

Names are loaded when they are first used, so that `import streampca` is quick and needs no scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streampca.version import __version__

if TYPE_CHECKING:
    from streampca.estimator.estimator import StreamingPCA, merge
    from streampca.pca.model import Model

__all__ = ["Model", "StreamingPCA", "__version__", "merge"]


def __getattr__(name: str) -> Any:
    """Import a public class or function when it is first used, since the estimator needs scikit-learn.

    Raises `ImportError` with a remedy if scikit-learn, an optional package, is not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = "streampca.pca.model" if name == "Model" else "streampca.estimator.estimator"
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        from streampca.errors import describe_missing_package

        message = describe_missing_package(package="scikit-learn", extra="sklearn", needed_by=f"streampca.{name}")
        raise ImportError(message, name=name) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
