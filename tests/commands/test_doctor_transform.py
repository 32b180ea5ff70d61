"""`streampca doctor` with an output topic: what it finds without a broker, and which roles it checks."""

from pathlib import Path

import pytest

from streampca.commands.doctor_topic import Check, TopicChecks
from streampca.commands.doctor_transform import TransformChecks
from streampca.errors import InputError, StoreError
from streampca.settings import TransformSettings
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.api.known import TOPIC, known
from tests.command_line import assert_one_line, run


def checks_of(store: Path, **settings: str) -> dict[str, Check]:
    """The checks by name; they have no broker."""
    read = TransformSettings.read(topic=TOPIC, output_topic="projected", store=str(store), **settings)
    return dict(TransformChecks(read, TopicChecks(read)).checks(alone=True))


def models_in(store: Path) -> Models:
    return Models(DirectoryStore(store), TOPIC)


def test_the_model_and_what_transform_waits_for(tmp_path: Path) -> None:
    check = checks_of(tmp_path)["model"]
    assert "none yet, so transform will wait: no model has been published yet" in (check() or "")
    models_in(tmp_path).save(known(7))
    assert check() == "version 7 has 2 components of 5 dimensions, without past scores"
    waits = checks_of(tmp_path, emit="coordinates,p")["model"]()
    assert waits == "none yet, so transform will wait: the newest model has no past scores yet, which p-values need"


def test_a_model_that_transform_cannot_use_is_a_mistake(tmp_path: Path) -> None:
    models_in(tmp_path).save(known(7))
    with pytest.raises(InputError, match="there is no model version 6"):
        checks_of(tmp_path, model_version="6")["model"]()
    with pytest.raises(InputError, match="version 7 has no past scores"):
        checks_of(tmp_path, model_version="7", only_p_below="0.1")["model"]()
    with pytest.raises(StoreError, match=f"there is no store at {tmp_path}/absent: start a worker first"):
        checks_of(tmp_path / "absent")["model"]()
    assert not (tmp_path / "absent").exists()


def test_without_a_broker_its_checks_are_skipped(tmp_path: Path) -> None:
    checks = checks_of(tmp_path)
    skipped = ("topic", "output topic", "transactions", "transform group", "newest record")
    assert [checks[name]() for name in skipped] == [None] * 5
    assert checks["output schema"]() == "not needed for output_format json"


def test_mistakes_in_the_settings_of_either_role_are_a_one_line_error() -> None:
    required = ("--topic", "readings")
    assert_one_line(run("doctor", *required), "dimensions is required", code=2)
    assert_one_line(run("doctor", *required, "--output-topic", "readings"), "output_topic must be neither", code=2)
    both = ("--output-topic", "out", "--dimensions", 8)
    assert_one_line(run("doctor", *required, *both), "components is required", code=2)
