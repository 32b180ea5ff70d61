"""A client that openapi-python-client has made from `/openapi.json`: everything is called, defaults included.

`python generated.py URL FOLDER` makes the package in the folder and calls it.
"""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from expected import TOPIC, VECTORS, asked, same

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
PACKAGE = "sidecar_client"
CONFIG = f"project_name_override: {PACKAGE}\npackage_name_override: {PACKAGE}\npost_hooks: []\n"


def make() -> None:
    config = FOLDER / "config.yml"
    config.write_text(CONFIG)
    made = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--url", f"{URL}/openapi.json", "--meta", "none",
         "--config", str(config), "--output-path", str(FOLDER / PACKAGE)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(FOLDER))


def call(name: str, **arguments: Any) -> Any:
    """The answer of the operation of this name."""
    modules = list((FOLDER / PACKAGE / "api").rglob(f"{name}.py"))
    assert len(modules) == 1, (name, modules)
    module = importlib.import_module(".".join(modules[0].relative_to(FOLDER).with_suffix("").parts))
    client = importlib.import_module(PACKAGE).Client(base_url=URL, raise_on_unexpected_status=True)
    answer = module.sync_detailed(client=client, **arguments)
    assert answer.status_code == 200, (name, answer.content)
    return answer.parsed


make()
models = importlib.import_module(f"{PACKAGE}.models")
rows = VECTORS.tolist()
projected = call("project", body=models.ProjectRequest(vectors=rows))
same(np.array(projected.coordinates), asked(VECTORS, {})["coordinates"])
whitened = call("project", body=models.ProjectRequest(vectors=rows, basis=models.ProjectRequestBasis.WHITENED))
same(np.array(whitened.coordinates), asked(VECTORS, {"basis": "whitened"})["coordinates"])
assert call("project", body=models.ProjectRequest(vectors=rows), version="latest").version == 20
back = call("reconstruct", body=models.ReconstructRequest(coordinates=projected.coordinates))
assert np.shape(back.vectors) == VECTORS.shape
assert len(call("score", body=models.ScoreRequest(vectors=rows, contributions=2)).t2_dimensions) == len(rows)
assert call("model").version == call("model_version", version=20).version == 20
assert call("models").versions == [10, 20]
assert len(call("components", version=10).components) == 2
assert call("healthz").status == "ok"
assert call("readyz").version == 20
assert call("server_live").live
assert call("server_ready").ready
assert call("model_ready", model_name=TOPIC).ready
assert call("version_ready", model_name=TOPIC, model_version=10).ready
assert call("model_metadata", model_name=TOPIC).versions == ["10", "20"]
assert call("version_metadata", model_name=TOPIC, model_version=10).versions == ["10"]
assert call("server_metadata").name == "streampca"
assert len(call("repository_index")) == 2
tensor = models.Tensor(
    name="vectors", shape=list(VECTORS.shape), datatype=models.TensorDatatype.FP64, data=VECTORS.ravel().tolist()
)
request = models.InferenceRequest(inputs=[tensor])
outputs = call("infer", model_name=TOPIC, body=request).outputs
same(np.reshape(outputs[0].data, outputs[0].shape), asked(VECTORS, {})["coordinates"])
assert call("infer_version", model_name=TOPIC, model_version=10, body=request).model_version == "10"
assert len(call("invocations", body=models.Instances(instances=rows)).predictions) == len(rows)
call("ping")
call("version")
call("metrics")
