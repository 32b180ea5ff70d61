"""Formats and stores of other packages: those in CONTRIBUTING.md keep the contracts, and wrong ones are named."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streampca.cli.transform_start import TransformStart
from streampca.errors import SettingsError
from streampca.formats import reader_of, writer_of
from streampca.formats.base import Layout
from streampca.formats.trial import check_writer
from streampca.process.metrics import LabelledRegistry, StoreMetrics
from streampca.settings import plug_ins, store_url
from streampca.settings.commands import TransformSettings
from streampca.settings.kafka import FormatSettings
from streampca.stores.choice import open_store
from streampca.stores.memory import MemoryStore
from streampca.transform.record_packer import RecordPacker
from tests.command_line import printed
from tests.errors import refusal

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
FORMAT, STORE = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
LINES = re.findall(r"^\[project\.entry-points\.\"(.*)\"\]\n(.*)$", GUIDE, re.MULTILINE)
ENTRY_POINTS = [(group, line.replace('"', "")) for group, line in LINES]  # TOML has quotes, the installed file has none
Install = Callable[..., None]


def install(folder: Path, package: str, *entry_points: tuple[str, str], **modules: str) -> None:
    """Put a package with these entry points, (group, line), into a folder, as pip does."""
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(f"[{group}]\n{line}\n" for group, line in entry_points))
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs packages as `install` does, for this process."""
    monkeypatch.syspath_prepend(tmp_path)

    def install_here(package: str, *entry_points: tuple[str, str], **modules: str) -> None:
        install(tmp_path, package, *entry_points, **modules)
        plug_ins._find_plug_ins.cache_clear()

    yield install_here
    plug_ins._find_plug_ins.cache_clear()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def install_guide(into: Install) -> None:
    into("streampca-bars", *ENTRY_POINTS, streampca_bars=FORMAT, streampca_bars_store=STORE)


@pytest.mark.parametrize("suite", ["tests/formats/test_base.py", "tests/stores/test_contract.py"])
def test_the_guides_packages_keep_the_contracts(suite: str, tmp_path: Path) -> None:
    install(tmp_path, "streampca-bars", *ENTRY_POINTS, streampca_bars=FORMAT, streampca_bars_store=STORE)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "TEST_STORE_URLS": f"bars:/{tmp_path}/stores"}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", suite]
    done = subprocess.run(
        [*words, "-k", "bars"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"[1-9]\d* passed", done.stdout)


def test_inspect_opens_a_store_by_its_scheme(installed: Install, tmp_path: Path) -> None:
    install_guide(installed)
    url = f"bars:/{tmp_path}/stores"
    assert store_url.validate_location(url) == url
    store = open_store(url)
    assert store.location == url
    store.write("models/readings/00000000000000000007.npz", b"")
    assert "readings: 1 models, newest version 7" in printed("inspect", url)


def test_the_requests_to_a_store_are_counted_and_timed(installed: Install, tmp_path: Path) -> None:
    install_guide(installed)
    metrics = StoreMetrics()
    registry = LabelledRegistry("worker", topic="readings")
    metrics.register(registry)
    store = open_store(f"bars:/{tmp_path}/stores", metrics.observe)
    store.write("a/b", b"1")
    refusal(FileNotFoundError, store.read, "a/c")
    counted = {
        (sample.labels["operation"], sample.labels["outcome"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "streampca_store_requests_total"
    }
    assert counted == {("write", "ok"): 1, ("read", "missing"): 1}


def test_a_stores_own_error_is_one_of_settings(installed: Install) -> None:
    install_guide(installed)
    assert "store: write bars://path, without .." in refusal(SettingsError, open_store, "bars://a/../b")


def test_a_format_has_no_schema_and_any_field(installed: Install) -> None:
    install_guide(installed)
    settings = FormatSettings(format="bars", field="a.b")
    assert (settings.format_name, settings.vector_dtype) == ("bars", "float64")


PACKED = Layout({"coordinates": "numbers", "residual": "number"})
EVERYTHING = Layout(PACKED.fields | {"label": "text", "names": "texts", "dimensions": "integers", "record": "bytes"})
OUTPUTS = {"topic": "readings", "output_topic": "projected", "output_format": "bars"}
PACKER = """
from streampca.formats.base import Writer

class BarsReader: pass

class BarsWriter(Writer):
    holds_names = {holds_names}

    def write(self, fields, counts=None):
        {write}
"""


def mistakes_of(**options: str) -> list[str]:
    """The mistakes in these settings of transform."""
    _, mistakes = TransformSettings.explain(None, **(OUTPUTS | options))
    return mistakes


def test_transform_writes_outputs_in_the_guides_format(installed: Install) -> None:
    install_guide(installed)
    assert mistakes_of(emit="coordinates,p") == []
    writer = writer_of("bars")
    check_writer(writer, PACKED)
    fields = {"coordinates": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), "residual": np.array([0.5, 0.25, 0.125])}
    packer = RecordPacker(writer, always_lists=False)
    assert packer.write_values(fields, np.array([1, 2])) == [b"1.0|2.0|0.5", b"3.0|4.0|0.25\n5.0|6.0|0.125"]


@pytest.mark.parametrize("emit", ["coordinates,record", "contributions:3"])
def test_an_output_format_that_holds_only_numbers_has_no_records_and_contributions(
    installed: Install, emit: str
) -> None:
    install_guide(installed)
    [mistake] = mistakes_of(emit=emit)
    assert "output_format bars holds only numbers, since its writer does not set holds_names" in mistake


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf", "arrow", "float32", "npy"])
def test_the_writers_of_streampca_say_whether_they_hold_names(kind: str) -> None:
    mistakes = mistakes_of(output_format=kind, emit="record", schema_registry_url="http://registry:1")
    assert (mistakes == []) == writer_of(kind).holds_names


def test_an_output_format_that_holds_names_has_records_and_contributions(installed: Install) -> None:
    write = "return writer_of('json').write(fields, counts)"
    code = "from streampca.formats import writer_of" + PACKER.format(holds_names=True, write=write)
    installed("named", ("streampca.formats", "bars = named"), named=code)
    assert mistakes_of(emit="record,contributions:3") == []
    check_writer(writer_of("bars"), EVERYTHING)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("return [b''] * len(fields['residual'])", "must return 2 values for counts of 1 and 2 rows, not 3"),
        ("return b'one value'", "must return a list of bytes"),
        ("return ['texts'] * 3", "must return a list of bytes"),
        ("1 / 0", "fails for 3 rows of coordinates, residual: ZeroDivisionError: division by zero"),
    ],
)
def test_a_start_of_transform_refuses_a_writer_that_lacks_something(
    installed: Install, write: str, message: str
) -> None:
    installed("wrong", ("streampca.formats", "bars = wrong"), wrong=PACKER.format(holds_names=False, write=write))
    start = TransformStart(TransformSettings(**OUTPUTS), MemoryStore())
    assert f"output_format bars: the write of BarsWriter {message}" in refusal(SettingsError, start._create_packer)


def test_without_plug_ins_there_is_none() -> None:
    assert plug_ins.load_plug_in("format", "bars") is None
    assert "no installed package offers it" in refusal(ValueError, FormatSettings._check_format, "bars")
    assert "scheme of an installed plug-in" in refusal(SettingsError, open_store, "bars://a")


WRONG = [
    ("bars = absent_module", "cannot be imported from absent_module: ModuleNotFoundError: No module named"),
    ("bars = broken", "cannot be imported from broken: ZeroDivisionError: division by zero"),
    ("bars = empty:Absent", "cannot be imported from empty:Absent: AttributeError: module 'empty' has no attribute"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_package_that_cannot_be_imported_is_named(installed: Install, line: str, message: str) -> None:
    groups = ("streampca.formats", "streampca.stores")
    installed("wrong", *((group, line) for group in groups), broken="1 / 0", empty="")
    for text in (
        refusal(ValueError, FormatSettings._check_format, "bars"),
        refusal(SettingsError, reader_of, "bars", 3, "", None),
        refusal(ValueError, store_url.validate_location, "bars://a"),
        refusal(SettingsError, open_store, "bars://a"),
    ):
        assert message in text
        assert "bars of wrong" in text


def test_a_module_without_the_classes_is_named(installed: Install) -> None:
    installed("half", ("streampca.formats", "bars = half"), half="class BarsReader: pass")
    message = "the module of the format bars, half, has no class BarsWriter"
    assert message in refusal(ValueError, FormatSettings._check_format, "bars")
    assert message in refusal(SettingsError, writer_of, "bars")


def test_two_packages_with_one_name_are_named(installed: Install) -> None:
    install_guide(installed)
    installed("another", *ENTRY_POINTS)
    for text in (
        refusal(ValueError, FormatSettings._check_format, "bars"),
        refusal(SettingsError, open_store, "bars://a"),
    ):
        assert "another and streampca-bars both offer" in text


@pytest.mark.parametrize("name", ["json", "float32", "bool"])
def test_a_format_of_streampca_is_not_replaced(installed: Install, name: str) -> None:
    installed("greedy", ("streampca.formats", f"{name} = json"))
    text = refusal(ValueError, FormatSettings._check_format, name)
    assert f"greedy offers the format {name}, a name that streampca reserves" in text


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "http", "https"])
def test_a_scheme_of_streampca_is_not_replaced(installed: Install, scheme: str) -> None:
    installed("greedy", ("streampca.stores", f"{scheme} = json"))
    text = refusal(SettingsError, open_store, f"{scheme}://bucket/a")
    assert f"greedy offers the store {scheme}, a name that streampca reserves" in text
