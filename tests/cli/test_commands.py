"""The command line: fast help, errors that users can fix in one line or as the last line of the log, no traceback."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.main import get_command

from streampca.cli.app import app
from streampca.fold import model_file
from tests.command_line import assert_fatal, assert_one_line, output_of, printed, run, succeeded, variables
from tests.docs_tables import flat
from tests.example_models import TOPIC, D, models_in, numbered
from tests.fold.streams import fold_config
from tests.forked import ForkedProcess
from tests.kafka_broker import Broker
from tests.waiting import wait_until

COMMANDS = flat(get_command(app).commands)  # type: ignore[attr-defined]
REQUIRED = ["--topic", "readings", "--dimensions", "8", "--components", "2"]
WITHOUT_KAFKA_PYTHON = """
import sys
sys.modules["kafka"] = None
from streampca.cli.app import main
main()
"""
WITHOUT_POSIX = """
import os, sys
for name in ("resource", "fcntl", "pwd", "grp"):
    sys.modules[name] = None
for name in ("O_DIRECTORY", "fork", "geteuid"):
    delattr(os, name)
import streampca
from streampca.cli.app import main
os._exit = sys.exit  # as often as there are commands
streampca.StreamingPCA
for command in sys.argv[1:]:
    sys.argv = ["streampca", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "vectors.npy"
    random = np.random.default_rng(0)
    Y = random.standard_normal((1500, 3)) @ random.standard_normal((3, 8)) + 0.01 * random.standard_normal((1500, 8))
    np.save(path, Y + 5)
    return path


def test_version_is_printed_and_help_lists_every_command() -> None:
    assert succeeded(sys.executable, "-m", "streampca", "--version").startswith("streampca 0.")  # as a user starts it
    text = run("--help").stdout
    assert all(f"\n  {command.split()[0]} " in text for command in COMMANDS)
    assert "Length d of every vector." in run("worker", "--help").stdout


def test_a_process_ends_whatever_its_threads_do() -> None:
    """A thread that runs Python while Python is finalised, or after that, ends the process by a signal."""
    program = (
        "import atexit, threading; threading.Thread(target=threading.Event().wait).start(); "
        "atexit.register(print, 'ended'); from streampca.cli.app import main; main()"
    )
    assert succeeded(sys.executable, "-c", program, "--version", timeout=60).endswith("\nended\n")


def test_help_names_choices_defaults_and_kinds_of_values() -> None:
    text = " ".join(printed("transform", "--help").split())
    for words in ("--output-format json|float32|npy", "or arrow. [default: json]", "[default: localhost:9092]"):
        assert words in text
    assert "--dimensions NUMBER" in printed("worker", "--help")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("localhost:8000", "sidecar's address, write http://localhost:8000"),
        (".", "holds no models: give the file"),
        ("none.npz", "cannot read none.npz: there is no such file"),
        ("HTTP://[::1", "not the URL of a sidecar"),
    ],
)
def test_an_error_names_the_place_without_a_model(vectors: Path, tmp_path: Path, given: str, words: str) -> None:
    model = tmp_path if given == "." else given
    assert_one_line(run("project", vectors, "--model", model, "-o", tmp_path / "out.npy"), words)


def test_there_are_few_options() -> None:
    assert sum(len(option.opts) for command in COMMANDS.values() for option in command.params) <= 166


def test_the_error_of_an_unknown_option_names_the_variable_of_a_setting() -> None:
    for option, name in (("--checkpoint-interval-s", "CHECKPOINT_INTERVAL_S"), ("--sasl-password", "SASL_PASSWORD")):
        for command in ("worker", "create-topics"):
            outcome = run(command, option, 3)
            assert (outcome.returncode, f"it is a setting: set STREAMPCA_{name}, or" in outcome.stderr) == (2, True)
    assert "setting" not in run("worker", "--nonsense", 3).stderr
    assert "requires an argument" in run("worker", "--topic").stderr  # the option exists


def test_a_flag_takes_precedence_over_its_variable() -> None:
    """A worker refuses to standardize without centering, before it connects."""
    environment = {"STREAMPCA_CENTER": "false", "STREAMPCA_STANDARDIZE": "true", "STREAMPCA_LOG_LEVEL": "nonsense"}
    for flags, is_standardized in ((["--standardize"], True), ([], True), (["--no-standardize"], False)):
        outcome = run("worker", *REQUIRED, *flags, **environment)
        assert outcome.returncode == 2
        assert ("standardize divides by" in outcome.stderr) == is_standardized


def test_the_shell_completes_commands_and_options() -> None:
    program = "import sys; sys.argv[0] = 'streampca'; from streampca.cli.app import main; main()"
    for words, count, expected in (("streampca do", 1, "doctor"), ("streampca worker --stand", 2, "--standardize")):
        environment = {"_STREAMPCA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        assert expected in output_of(program, **environment).split()
    assert "--install-completion" in run("--help").stdout


def test_an_output_with_another_suffix_is_refused_before_anything_is_learned(vectors: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.npz"
    wrong = tmp_path / "x.txt"
    printed("fit", vectors, "-o", model)
    commands = {
        ".npz": ("fit", vectors, "-o", wrong),
        ".onnx": ("export", model, "--to", "onnx", "-o", wrong),
        ".parquet": ("backfill", vectors, "--rejects", wrong, "--topic", "readings"),
    }
    for suffix, command in commands.items():
        outcome = run(*command, STREAMPCA_DIMENSIONS="8", STREAMPCA_COMPONENTS="2")
        assert_one_line(outcome, f"must end with {suffix}", code=2)
    assert_one_line(run("project", vectors, "--model", model, "-o", wrong), ".jsonl and .parquet files can be written")
    assert not wrong.exists()


@pytest.mark.parametrize(
    "words",
    [
        "fit none.npy -o m.npz",
        "fit v.npy -o m.npz --start-from none.npz",
        "project none.npy --model m.npz -o p.npy",
        "export none.npz --to onnx -o m.onnx",
        "inspect none.npz",
        "produce none.csv --topic readings",
        "backfill none.csv --topic readings",
        "demo --file none.npy",
    ],
)
def test_a_missing_file_is_named_in_one_sentence(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", np.load(vectors))
    printed("fit", "v.npy", "-o", "m.npz")
    shape = variables({"dimensions": 8, "components": 2})
    outcome = run(*words.split(), **shape)
    assert_one_line(outcome, "none.", code=outcome.returncode)
    assert outcome.returncode in (1, 2)


def test_notes_about_a_file_are_not_on_stdout(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 7},{i % 5}" for i in range(50))
    (tmp_path / "v.csv").write_text(f"temp,hum\n{rows}\n")
    outcome = run("fit", tmp_path / "v.csv", "-o", tmp_path / "m.npz", "--components", 1)
    assert outcome.returncode == 0
    assert "the first line is the header" in outcome.stderr
    assert "header" not in outcome.stdout
    assert "wrote" in outcome.stdout


@pytest.mark.parametrize("command", ["list", "replay"])
def test_an_unknown_reason_of_dead_letters_is_refused_with_those_that_there_are(command: str) -> None:
    topics = ("--topic", "readings", "--dead-letter-topic", "dead", "--bootstrap-servers", "127.0.0.1:1")
    outcome = run("dead-letters", command, *topics, "--reason", "too_large", "--reason", "nonsense")
    assert_one_line(outcome, "--reason nonsense: must be one of undecodable, unknown_schema, wrong_length", code=2)
    assert "output_too_large" in outcome.stderr


def test_passwords_are_not_options() -> None:
    options = {option for command in COMMANDS.values() for parameter in command.params for option in parameter.opts}
    assert not options & {"--sasl-password", "--ssl-password", "--schema-registry-login"}
    assert "--topic" in options


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom streampca.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = ('numpy', 'pydantic', 'kafka', 'scipy', 'rich', 'fastapi', 'structlog')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert output_of(program).splitlines()[-1] == "[]"


def test_commands_for_files_need_nothing_that_only_posix_has(tmp_path: Path) -> None:
    """As docs/ say, for Windows."""
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((300, 5)))
    check = "check --topic t --dimensions 3 --components 2"
    commands = ("fit v.npy -o m.npz --components 2", "inspect m.npz --json", check)
    output = succeeded(sys.executable, "-c", WITHOUT_POSIX, *commands, cwd=tmp_path)
    assert '"version": 300' in output
    assert "no mistakes" in output


@pytest.mark.parametrize(
    "words", ["worker --dimension", "worker --dimensions many", "nonsense", "demo --port 70000", "demo --port -1"]
)
def test_usage_errors_have_exit_code_2(words: str) -> None:
    outcome = run(*words.split())
    assert (outcome.returncode, "Traceback" in outcome.stderr) == (2, False)


@pytest.mark.parametrize(
    ("command", "assert_refused"),
    [*((name, assert_one_line) for name in ("doctor", "create-topics", "reset", "produce")),
     *((name, assert_fatal) for name in ("worker", "serve"))],
)  # fmt: skip
def test_missing_settings_are_an_error(command: str, assert_refused: Callable[..., None]) -> None:
    assert_refused(run(command), "topic is required: set STREAMPCA_TOPIC or pass --topic", code=2)


def test_an_absent_broker_is_an_error_soon(vectors: Path) -> None:
    options = [vectors, "--topic", "readings", "--bootstrap-servers", "127.0.0.1:1"]
    outcome = run("produce", *options, timeout=100)  # ten seconds, if nothing else runs
    assert_one_line(outcome, "no broker answers at 127.0.0.1:1")


@pytest.mark.broker
def test_kafka_python_is_not_imported_with_the_confluent_client(
    broker: Broker, topic: str, vectors: Path, tmp_path: Path
) -> None:
    """Except by `reset`: confluent-kafka cannot delete the offsets of a group."""
    settings = {
        "topic": topic, "group_id": topic, "store": tmp_path, "bootstrap_servers": broker.bootstrap, "dimensions": 8,
        "components": 2, "metrics_port": 0, "kafka_client": "confluent", "dead_letter_topic": f"{topic}-dead",
        "output_topic": f"{topic}-out", "transform_group_id": f"{topic}-t",
    }  # fmt: skip
    environment = os.environ | variables(settings)

    def command(*words: object) -> list[str]:
        return [sys.executable, "-c", WITHOUT_KAFKA_PYTHON, *map(str, words)]

    succeeded(*command("create-topics"), env=environment)
    succeeded(*command("produce", vectors), env=environment)
    for role, name in (("worker", topic), ("transform", f"{topic}-t")):
        with (
            (tmp_path / role).open("w") as log,
            subprocess.Popen(command(role), env=environment, stderr=log) as process,
        ):
            wait_until(lambda name=name: broker.committed(name, topic).get(0, 0) >= 1500, 60, f"what {name} commits")
            process.terminate()
            assert process.wait(30) == 0
    for words in ("doctor", "audit --from 0", "dead-letters list", "dead-letters replay", "dead-letters replay --send"):
        succeeded(*command(*words.split()), env=environment)


@pytest.mark.parametrize(("role", "client"), [("worker", "confluent"), ("transform", "kafka-python")])
def test_a_start_waits_for_brokers_and_ends_at_a_signal(role: str, client: str, tmp_path: Path) -> None:
    models_in(tmp_path).save(numbered(7))
    shape = {"dimensions": 8, "components": 2} if role == "worker" else {"output_topic": "projected"}
    settings = {"topic": TOPIC, "store": tmp_path, "bootstrap_servers": "127.0.0.1:1", "metrics_port": 0}
    log = tmp_path / "log"
    process = ForkedProcess([role], os.environ | variables(settings | shape | {"kafka_client": client}), log)
    try:
        wait_until(lambda: "waiting for brokers" in log.read_text(), what="a start that waits")
        url = json.loads(log.read_text().splitlines()[0])["metrics"]
        health, ready = (httpx.get(url.replace("metrics", probe), timeout=60) for probe in ("healthz", "readyz"))
        assert (health.status_code, ready.status_code) == (200, 503)
        assert "no broker answers at 127.0.0.1:1" in ready.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()


def test_an_unwritable_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_fatal(run("worker", *REQUIRED, "--store", tmp_path / "file" / "store"), str(tmp_path / "file"))


@pytest.mark.parametrize("command", ["worker", "transform"])
def test_a_port_in_use_is_an_error_that_names_its_setting(command: str, tmp_path: Path) -> None:
    options = REQUIRED if command == "worker" else ["--topic", "readings", "--output-topic", "projected"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        outcome = run(command, *options, STREAMPCA_STORE=str(tmp_path), STREAMPCA_METRICS_PORT=port)
    assert_fatal(outcome, "Address already in use (stop the process there or set metrics_port, 0 for any)", code=2)


def test_check_prints_settings_and_their_origins(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('sasl_password = "hush-hush"\nsasl_username = "me"\n')
    output = printed("check", *REQUIRED, "--config", config, STREAMPCA_GROUP_ID="mine")
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if len(line.split()) > 2}
    assert rows.items() >= {
        "topic": ["readings", "option", "--topic"], "group_id": ["mine", "environment", "STREAMPCA_GROUP_ID"],
        "store": [str(Path.cwd() / "streampca-store"), "default"],
        "sasl_password": ["********", "file", str(config)], "port": ["8000", "default"],
    }.items()  # fmt: skip
    assert "hush-hush" not in output


def test_check_shows_transform_once_any_of_its_settings_is_given() -> None:
    assert "streampca transform" not in run("check", *REQUIRED).stdout
    output = printed("check", *REQUIRED, "--output-topic", "unusual", STREAMPCA_EMIT="score,p")
    _, _, shown = output.partition("streampca transform (besides those above)")
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if len(line.split()) > 2}
    assert rows["emit"] == ["score,p", "environment", "STREAMPCA_EMIT"]
    assert rows["transform_group_id"] == ["streampca-transform-readings", "default"]
    assert "group_id" not in rows
    wrong = run("check", *REQUIRED, STREAMPCA_EMIT="scores")
    assert wrong.returncode == 2
    assert "✗ output_topic is required" in wrong.stdout


def test_check_warns_of_ports_that_are_open() -> None:
    assert "whoever reaches" not in printed("check", *REQUIRED)
    assert "whoever reaches 10.1.2.3 can read what it shows: set tokens_file" in printed(
        "check", *REQUIRED, STREAMPCA_HOST="10.1.2.3"
    )


def test_check_lists_every_mistake(tmp_path: Path) -> None:
    outcome = run("check", "--dimensions", 2, "--components", 3, STREAMPCA_PORT="http", STREAMPCA_DTYPE="int8")
    assert outcome.returncode == 2
    mistakes = [line for line in outcome.stdout.splitlines() if line.startswith("✗")]
    for needle in ("topic is required", "components (3) cannot exceed", "port: ", "dtype: "):
        assert sum(needle in line for line in mistakes) == 1, needle
    assert len(mistakes) == 4


def test_an_unknown_variable_is_a_mistake_for_check_and_a_warning_at_a_start(tmp_path: Path) -> None:
    others = {"STREAMPCA_TOKEN": "b", "STREAMPCA_SERVICE_HOST": "10.0.0.1"}
    outcome = run("check", *REQUIRED, STREAMPCA_CLIENT_RACK="a", **others)
    assert outcome.returncode == 2
    mistakes = [line for line in outcome.stdout.splitlines() if line.startswith("✗")]
    assert mistakes == ["✗ STREAMPCA_CLIENT_RACK is not a setting"]
    missing = tmp_path / "missing"
    for command in ("worker", "serve", "transform"):
        started = run(
            command, STREAMPCA_CLIENT_RACK="a", STREAMPCA_TOKENS_FILE=str(missing), STREAMPCA_TOPIC="readings"
        )
        first, *_ = (json.loads(line) for line in started.stderr.splitlines())
        assert (first["event"], first["level"]) == ("unknown variable ignored", "warning")
        assert first["variable"] == "STREAMPCA_CLIENT_RACK"


def test_fit_and_inspect(vectors: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.npz"
    assert "1,500 vectors of 8 dimensions" in printed("fit", vectors, "-o", model, "--components", 3)
    decoded = model_file.decode(model.read_bytes())
    Y = np.load(vectors)
    exact = np.linalg.eigvalsh(np.cov(Y.T, bias=True))[::-1][:3]
    np.testing.assert_allclose(decoded.model.explained_variance, exact, rtol=1e-6)
    np.testing.assert_allclose(decoded.model.mean, Y.mean(axis=0), rtol=1e-9)
    assert decoded.past_scores is not None  # /v1/score gives p
    assert decoded.past_scores.weight > 500
    facts = json.loads(run("inspect", model, "--json").stdout)
    assert (facts["kind"], facts["version"], facts["dimensions"], facts["components"]) == ("model", 1500, 8, 3)
    assert facts["explained_variance_ratio_sum"] > 0.999
    assert "explained_variance[2]" in run("inspect", model).stdout
    np.save(tmp_path / "single.npy", Y.astype(np.float32))
    assert "Warning" not in run("fit", tmp_path / "single.npy", "-o", model).stderr


def test_a_model_keeps_its_names_when_it_is_continued_and_inspect_shows_them(tmp_path: Path) -> None:
    model, named = tmp_path / "m.npz", replace(numbered(20), names=list("vwxyz"), settings=fold_config().as_dict())
    model.write_bytes(model_file.encode(named))
    rows = tmp_path / "rows.npy"
    np.save(rows, np.random.default_rng(0).normal(size=(300, D)))
    run("fit", rows, "--start-from", model, "-o", model)
    facts = json.loads(run("inspect", model, "--json").stdout)
    assert (facts["version"], facts["names"]) == (320, list("vwxyz"))
    assert "names[4]" in run("inspect", model).stdout


def test_fit_standardizes_and_says_what_it_clipped(vectors: Path, tmp_path: Path) -> None:
    Y, file, model = np.load(vectors) * np.logspace(-4, 3, 8), tmp_path / "v.npy", tmp_path / "model.npz"
    np.save(file, Y)
    assert "clipped" not in printed("fit", file, "-o", model, "--components", 3, "--standardize")
    published = model_file.decode(model.read_bytes())
    assert published.model.scale == pytest.approx(1 / Y.std(axis=0))
    exact = np.linalg.eigvalsh(np.corrcoef(Y.T))[::-1][:3]
    assert published.model.explained_variance == pytest.approx(exact)
    assert json.loads(run("inspect", model, "--json").stdout)["settings"]["standardize"] is True
    Y[1400] *= 1e6
    np.save(file, Y)
    assert "1 clipped to the limit of influence" in printed(
        "fit", file, "-o", tmp_path / "next.npz", "--start-from", model
    )
    refused = run("fit", file, "-o", model, "--standardize", "--no-center")
    assert_one_line(refused, "so it excludes --no-center", code=2)


@pytest.mark.parametrize(
    ("options", "warns"), [(["--field", "serial,temp"], True), (["--field", "temp"], False), (["--standardize"], False)]
)
def test_fit_warns_of_a_dimension_with_nearly_all_of_the_variance(
    tmp_path: Path, options: list[str], warns: bool
) -> None:
    file = tmp_path / "readings.csv"
    temperatures = np.random.default_rng(0).normal(20, 3, 100)
    file.write_text("serial,temp\n" + "".join(f"{1000 * i},{temp}\n" for i, temp in enumerate(temperatures)))
    done = run("fit", file, "-o", tmp_path / "m.npz", *options)
    assert done.returncode == 0, done.stderr
    assert ("warning: dimension serial has 100.00% of the total variance" in done.stderr) == warns


def test_fit_learns_gaps(vectors: Path, tmp_path: Path) -> None:
    Y = np.load(vectors)
    Y[np.random.default_rng(0).random(Y.shape) < 0.1] = np.nan
    np.save(tmp_path / "v.npy", Y)
    rows = [[None if np.isnan(entry) else entry for entry in row] for row in Y.tolist()]
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "v.csv").write_text("\n".join(",".join("" if e is None else repr(e) for e in row) for row in rows))
    models = []
    for name in ("v.npy", "v.csv", "v.jsonl"):
        options = ("-o", tmp_path / "m.npz", "--components", 2, "--missing", "impute", "--no-header")
        printed("fit", tmp_path / name, *options)
        models.append(model_file.decode((tmp_path / "m.npz").read_bytes()))
    assert models[0].settings["missing"] == "impute"
    assert all(np.array_equal(models[0].model.components, other.model.components) for other in models[1:])
    exact = np.linalg.eigvalsh(np.cov(np.load(vectors).T, bias=True))[::-1][:2]
    np.testing.assert_allclose(models[0].model.explained_variance, exact, rtol=0.1)
    assert_one_line(run("fit", tmp_path / "v.csv", "-o", tmp_path / "m.npz"), "or say --no-header")
    impute = ("-o", tmp_path / "m.npz", "--missing", "impute")
    refused = run("fit", tmp_path / "v.npy", *impute, "--components", 8)
    assert_one_line(refused, "entries are there, at least 8 are needed with --components 8")
    assert_one_line(run("fit", vectors, "-o", tmp_path / "m.npz", "--missing", "x"), "must be refuse or impute", code=2)


def test_fit_and_project_read_missing_values_as_gaps(vectors: Path, tmp_path: Path) -> None:
    Y = np.load(vectors)
    is_gap = np.random.default_rng(0).random(Y.shape) < 0.1
    np.save(tmp_path / "gaps.npy", np.where(is_gap, np.nan, Y))
    np.save(tmp_path / "codes.npy", np.where(is_gap, -9999.0, Y))
    learn = ("fit", "--components", 2, "--missing", "impute")
    printed(*learn, tmp_path / "gaps.npy", "-o", tmp_path / "gaps.npz")
    printed(*learn, tmp_path / "codes.npy", "-o", tmp_path / "codes.npz", "--missing-values", "-200,-9999")
    models = [model_file.decode((tmp_path / name).read_bytes()) for name in ("gaps.npz", "codes.npz")]
    assert models[0].model.components.tobytes() == models[1].model.components.tobytes()
    assert models[1].settings["missing_values"] == "-9999, -200"
    for name in ("gaps", "codes"):
        printed(
            "project", tmp_path / f"{name}.npy", "--model", tmp_path / f"{name}.npz", "-o", tmp_path / f"{name}-p.npy"
        )
    assert (tmp_path / "gaps-p.npy").read_bytes() == (tmp_path / "codes-p.npy").read_bytes()
    printed("fit", tmp_path / "codes.npy", "--start-from", tmp_path / "codes.npz", "-o", tmp_path / "next.npz")
    assert model_file.decode((tmp_path / "next.npz").read_bytes()).model.mean.min() > -100
    refused = run("fit", tmp_path / "codes.npy", "-o", tmp_path / "m.npz", "--missing-values", "-9999")
    assert_one_line(refused, "is -9999.0, one of missing_values (missing=impute learns vectors with gaps)")
    refused = run("fit", vectors, "-o", tmp_path / "m.npz", "--missing-values", "x")
    assert_one_line(refused, "--missing-values x: 'x' is not a number", code=2)


def test_fit_and_project_warn_of_names_that_no_row_has(tmp_path: Path) -> None:
    rows = [{"temp": float(i % 7), "hum": float(i % 5), "press": float(i % 3)} for i in range(50)]
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, rows)))
    warning = "warning: none of the rows has a number at dust: correct field if a name is misspelt"
    options = ("--components", 1, "--missing", "impute", "-o", tmp_path / "m.npz")
    assert run("fit", tmp_path / "v.jsonl", *options, "--field", "temp,hum,press").stderr == ""
    assert warning in run("fit", tmp_path / "v.jsonl", *options, "--field", "temp,hum,press,dust").stderr
    project = ("project", tmp_path / "v.jsonl", "--model", tmp_path / "m.npz", "-o", tmp_path / "p.npy")
    assert warning in run(*project, "--field", "temp,hum,press,dust").stderr


def test_a_sensor_missing_from_a_file_is_learned_from_the_next_file(vectors: Path, tmp_path: Path) -> None:
    """Its mean is not that of nothing and of what is shown."""
    Y, model = np.load(vectors), tmp_path / "m.npz"
    Y[:, 1] = np.nan
    np.save(tmp_path / "first.npy", Y)
    Y[:, 1] = np.load(vectors)[:, 1] + 50
    np.save(tmp_path / "next.npy", Y)
    printed("fit", tmp_path / "first.npy", "-o", model, "--components", 2, "--missing", "impute")
    assert model_file.decode(model.read_bytes()).model.seen.tolist() == [j != 1 for j in range(Y.shape[1])]
    printed("fit", tmp_path / "next.npy", "--start-from", model, "-o", model)
    continued = model_file.decode(model.read_bytes())
    assert continued.model.seen is None
    assert continued.known is not None
    assert continued.model.mean[1] == pytest.approx(Y[:, 1].mean(), rel=0.02)


def test_fit_refuses_invalid_input(vectors: Path, tmp_path: Path) -> None:
    bad = np.load(vectors)
    bad[1234, 3] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    output = tmp_path / "m.npz"
    assert_one_line(run("fit", tmp_path / "bad.npy", "-o", output), "row 1235: number 4 is nan")
    assert_one_line(run("fit", vectors, "-o", output, "--components", 9), "cannot exceed the dimensions", code=2)
    assert_one_line(run("fit", vectors, "-o", tmp_path / "none" / "m.npz"), "cannot write")
    assert_one_line(run("fit", tmp_path / "none.npy", "-o", output), "No such file")
    assert not output.exists()


def test_inspect_survives_a_closed_pipe_and_names_foreign_and_damaged_files(vectors: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.npz"
    for content in (b"", b"PK\x03\x04 not a zip", b"text"):
        model.write_bytes(content)
        foreign = f"{model} is not a checkpoint or model of streampca; it begins with {content}"
        assert_one_line(run("inspect", model), foreign)
    printed("fit", vectors, "-o", model)
    command = f"{sys.executable} -m streampca inspect {model} | true"
    outcome = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert outcome.stderr == ""
    model.write_bytes(model.read_bytes()[:-100])
    assert_one_line(run("inspect", model), "it is cut short or damaged")


def test_closed_standard_streams_stop_nothing(vectors: Path, tmp_path: Path) -> None:
    for closed in ("<&- >&- 2>&-", "2>&-", ">&-"):
        model = tmp_path / "model.npz"
        command = f"{sys.executable} -m streampca fit {vectors} -o {model} {closed}"
        subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=True)
        printed("inspect", model)
        model.unlink()


def test_a_full_disk_under_stdout_is_an_error_of_one_line(vectors: Path, tmp_path: Path) -> None:
    printed("fit", vectors, "-o", tmp_path / "model.npz")
    for words in ("--help", f"inspect {tmp_path}/model.npz"):
        command = f"{sys.executable} -m streampca {words} >/dev/full"
        assert_one_line(subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60), "No space")


def test_produce_needs_either_a_file_of_the_right_length_or_synthetic(vectors: Path) -> None:
    for words in ([], [vectors, "--synthetic"]):
        assert_one_line(run("produce", *words, "--topic", "readings"), "give either a file to send or --synthetic")
    outcome = run("produce", vectors, "--topic", "readings", STREAMPCA_DIMENSIONS="9")
    assert_one_line(outcome, f"{vectors} holds vectors of 8 numbers, not of 9")
