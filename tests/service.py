"""What runs from entry to exit."""

from abc import ABC, abstractmethod
from typing import Self


class Service(ABC):
    """Started when it is entered, and stopped at the end of the block."""

    @abstractmethod
    def start(self) -> None:
        """Return when it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """Return when it has ended."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
