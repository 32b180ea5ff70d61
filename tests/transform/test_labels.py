"""Outputs with contributions tell whose record it was, in each format that has names."""

from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from streampca.formats import writer_of
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.record import Record
from streampca.sources.events import Records, Vectors, decode_records
from streampca.transform.arrow import ArrowPacker
from streampca.transform.output_fields import OutputFields
from streampca.transform.output_limit import OutputLimit
from streampca.transform.outputs import Outputs
from streampca.transform.record_packer import Packer, RecordPacker
from tests.transform.harness import make_model_with_past_scores

D = 5
SINGLE = [{"v": [1, 2, 3, 4, 5], "pump": "p-1"}, {"v": [0, 0, 0, 0, 0]}, {"v": [50, 0, 0, 0, 0], "pump": "p-3"}]
SEVERAL = [{"v": [[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]], "pump": "p-1"}, {"v": [[9, 0, 0, 0, 0]], "pump": "p-2"}]


def outputs_of(contents: list[Any], packer: Packer, p: float | None = None) -> list[Any]:
    records = [Record(offset=i, value=orjson.dumps(content), timestamp=1) for i, content in enumerate(contents)]
    codec = Codec("json", Judge.of_projected(D), "v", label="pump")
    model: Any = SimpleNamespace(published=make_model_with_past_scores(7))
    fields = OutputFields(("residual", "contributions:1"), with_p=p is not None, with_label=True)
    outputs = Outputs("projected", codec, model, fields, packer, "readings", None, p)
    batch = decode_records(codec, Records(0, records, len(records), len(records)))
    assert isinstance(batch, Vectors)
    return [value for _, _, value, *_ in outputs.project(model.published, OutputLimit(), batch).outputs]


@pytest.mark.parametrize(("contents", "labels"), [(SINGLE, ["p-1", "", "p-3"]), (SEVERAL, [["p-1", "p-1"], "p-2"])])
def test_an_output_in_json_has_the_label_of_its_record(contents: list[Any], labels: list[Any]) -> None:
    values = outputs_of(contents, RecordPacker(writer_of("json"), always_lists=False))
    assert [orjson.loads(value)["label"] for value in values] == labels
    assert list(orjson.loads(values[0]))[-1] == "label"


def test_rows_of_arrow_have_a_column_of_labels() -> None:
    [message] = outputs_of(SEVERAL, ArrowPacker())
    table = pa.ipc.open_stream(message).read_all()
    assert table["label"].to_pylist() == ["p-1", "p-1", "p-2"]
    assert table.schema.field("label").type == pa.string()


def test_a_record_that_is_left_out_takes_no_label_from_others() -> None:
    usual = {"v": make_model_with_past_scores(7).model.mean.tolist(), "pump": "p-0"}
    [value] = outputs_of([usual, SINGLE[2], usual], RecordPacker(writer_of("json"), always_lists=False), p=0.01)
    assert orjson.loads(value)["label"] == "p-3"


@pytest.mark.parametrize("emitted", [("residual",), ("coordinates", "record")])
def test_outputs_without_contributions_have_no_label(emitted: tuple[str, ...]) -> None:
    assert "label" not in OutputFields(emitted, with_label=True).kinds
    assert "label" not in OutputFields((*emitted, "contributions:2")).kinds
    assert [*OutputFields((*emitted, "contributions:2"), with_label=True).kinds][-1] == "label"
