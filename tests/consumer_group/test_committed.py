"""The metadata of a worker's committed offsets; those of transform are in tests/transform/test_position.py."""

import pytest

from streampca.consumer_group.committed import format_store_metadata, parse_store_metadata
from streampca.stores.identity import StoreIdentity


def test_a_stores_metadata_are_short_text_that_can_be_read_back() -> None:
    short = StoreIdentity("ab" * 16, "s3://bucket/prefix", "worker-1")
    assert parse_store_metadata(format_store_metadata(short)) == short
    assert parse_store_metadata(format_store_metadata(short) + "\0\x7f}{") == short
    assert str(short) == "s3://bucket/prefix on host worker-1"
    long = StoreIdentity("ab" * 16, "/" + "\U0001f600" * 4000 + "\udcff", "worker-1")
    assert len(format_store_metadata(long).encode()) < 4096
    assert parse_store_metadata(format_store_metadata(long))


@pytest.mark.parametrize("metadata", ["", "5", "[]", "{}", '{"store": "x"}', "written by another tool"])
def test_metadata_of_other_tools_name_no_store(metadata: str) -> None:
    assert parse_store_metadata(metadata) is None
