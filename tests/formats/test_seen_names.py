"""Names at which no vector has a number."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.formats.seen_names import SeenNames
from tests.formats.structured import codec

NAMES = ["temp", "hum", "dust"]
ROWS = st.lists(st.tuples(*[st.sampled_from([1.0, np.nan])] * 3), max_size=4)


@given(batches=st.lists(ROWS, max_size=4))
def test_a_name_is_unseen_if_all_batches_have_gaps_there(batches: list[list[tuple[float, ...]]]) -> None:
    seen = SeenNames(NAMES)
    for batch in batches:
        seen.add_from(np.array(batch).reshape(-1, 3))
    columns = list(zip(*[row for batch in batches for row in batch], strict=True)) or [()] * 3
    unseen = [name for name, column in zip(NAMES, columns, strict=True) if np.isnan(column).all()]
    if len(unseen) == 3:  # there is no vector: each has at least one number
        assert seen.describe_unseen("the rows") == ""
        return
    text = f"none of the rows has a number at {', '.join(unseen)}: correct field if a name is misspelt"
    assert seen.describe_unseen("the rows") == (text if unseen else "")
    assert seen.has_unseen == bool(unseen)


@pytest.mark.parametrize(("field", "d"), [("v", 3), ("", 3), ("a,b", 3), ("a", 1)])
def test_only_paths_to_each_number_are_looked_for(field: str, d: int) -> None:
    assert not codec("json", field, d=d).create_seen_names().has_unseen


def test_a_codec_looks_for_the_names_of_its_paths() -> None:
    decoder = codec("json", "in.temp,hum,dust", d=3, min_observed=1)
    seen = decoder.create_seen_names()
    seen.add_from(decoder.decode([b'{"in": {"temp": 1}}', b'{"hum": 2, "dust": null}', b"{}"]).vectors)
    assert "at dust:" in seen.describe_unseen("the rows")
