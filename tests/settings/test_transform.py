"""The settings of `streampca transform`."""

from typing import Any

import pytest

from streampca.errors import SettingsError
from streampca.settings import TransformSettings, transform


def read(**options: Any) -> TransformSettings:
    return TransformSettings.read(**{"topic": "readings", "output_topic": "projected"} | options)


def test_its_group_is_not_the_workers() -> None:
    assert read().group == "streampca-transform-readings"
    assert read(transform_group_id="mine").group == "mine"


def test_what_is_emitted_is_a_list_of_names() -> None:
    assert read(emit="score, p").emitted == ("score", "p")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_topic": "readings"}, "output_topic must be neither the topic itself nor the dead-letter topic"),
        ({"dead_letter_topic": "projected"}, "output_topic must be neither"),
        ({"emit": "coordinates,loss"}, "not a comma-separated choice of coordinates, residual"),
        ({"emit": "p,p"}, "not a comma-separated choice"),
        ({"emit": ""}, "not a comma-separated choice"),
        ({"output_format": "avro"}, "output_format avro needs schema_registry_url"),
        ({"output_format": "int8"}, "int8 has one scale: set emit to coordinates"),
        ({"output_format": "int8", "emit": "coordinates", "format": "arrow"}, "holds one vector"),
    ],
)
def test_mistakes_are_reported(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(**options)


def test_arrow_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"output_format arrow needs pyarrow.*pip install 'streampca\[arrow\]'"):
        read(output_format="arrow")
    monkeypatch.setattr(transform, "find_spec", lambda name: name)
    assert read(output_format="arrow", format="arrow").output_format == "arrow"
