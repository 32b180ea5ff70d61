"""Steps that the tests of the page share."""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

from playwright.sync_api import Page, expect

from streampca.stores.directory import DirectoryStore
from streampca.stores.process_status import (
    PartitionStatus,
    ProcessStatus,
    ProcessStatuses,
    TransformStatus,
)
from tests.example_models import TOPIC

Opened = Callable[..., Page]


def status(page: Page, text: str) -> None:
    expect(page.locator("#status")).to_contain_text(text)


def project(page: Page, vectors: list[list[float]]) -> None:
    """Project vectors as another client of the sidecar does."""
    page.request.post(urljoin(page.url, "v1/project"), data={"vectors": vectors})


def report_member(store: DirectoryStore, name: str, silent_s: float, lags: dict[str, int], **transform: Any) -> None:
    """Write the report of a member of transform."""
    none = {"model_version": None, "awaits": None, "written": 0, "rejected": 0, "committed_at": None}
    status = ProcessStatus(
        name=name, state="transforming" if lags else "starting", trouble=None, started_at=1.0,
        updated_at=time.time() - silent_s, messages_per_second=2.5,
        partitions={p: PartitionStatus(position=1, lag=lag, learned=None, rejected=None, loss_ewma=None)
                    for p, lag in lags.items()},
        transform=TransformStatus(output_topic="<i>out</i>", **none | transform),
    )  # fmt: skip
    ProcessStatuses(store, TOPIC).write(status)
