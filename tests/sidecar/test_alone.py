"""The sidecar without the packages of the worker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.example_models import TOPIC, D, models_in, numbered
from tests.sidecar.test_inference_protocol import INFER, tensor

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("numba", "scipy", "kafka", "confluent_kafka", "sklearn")))
from streampca.cli.app import main
main()
"""


def start_command(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def read_processor_s(pid: int) -> float:
    """Return the processor time of a process. It depends less on other processes than the time on a clock."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_it_starts_fast_and_answers_everything(tmp_path: Path) -> None:
    published = numbered(20)
    published.settings["missing"] = "impute"
    models_in(tmp_path).save(published)
    with start_command("serve", "--topic", TOPIC, "--store", str(tmp_path), "--port", "0") as process:
        try:
            url = next(line["url"] for line in map(json.loads, process.stderr) if line["event"] == "serving")
            rows = {"vectors": [[1.0, None, *[2.0] * (D - 2)]]}
            with httpx.Client(base_url=url, timeout=60) as client:
                for path in ("project", "reconstruct", "score"):
                    assert client.post(f"/v1/{path}", json=rows).status_code == 200
                assert client.post(INFER, json=tensor()).status_code == 200
                assert client.post("/invocations", json={"instances": np.ones((2, D)).tolist()}).status_code == 200
                for path in (
                    "/", "/docs", "/openapi.json", "/readyz", "/metrics", "/v1/model", "/v1/models", "/v1/page/history",
                    "/v1/page/recent", "/v1/page/workers", "/v1/model/components", f"/v2/models/{TOPIC}",
                ):  # fmt: skip
                    assert client.get(path).status_code == 200, path
                assert read_processor_s(process.pid) < 8  # the start takes 0.8 s
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "worker --topic t --bootstrap-servers b:1 --dimensions 3 --components 1 --format json",
        "fit vectors.npy -o m.npz",
    ],
)
def test_other_commands_name_the_extra_that_they_need(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("vectors.npy", np.eye(3))
    with start_command(*words.split()) as process:
        assert "pip install '.[worker]'" in process.stderr.read()
    assert process.returncode == 2
