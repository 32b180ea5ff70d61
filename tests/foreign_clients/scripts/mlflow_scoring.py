"""MLflow's client of scoring servers: frames, arrays, parameters, errors."""

import sys
from urllib.parse import urlsplit

import pandas as pd
import requests
from expected import VECTORS, asked, same
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

address = urlsplit(sys.argv[1])
client = ScoringServerClient(address.hostname, address.port)
client.wait_server_ready(10)
assert client.get_version()
for data in (VECTORS, pd.DataFrame(VECTORS, columns=list("abcde"))):
    for params in ({}, {"basis": "whitened"}):
        predictions = client.invoke(data, params).get_predictions()
        same(predictions.to_numpy(), asked(VECTORS, params)["coordinates"])
instances = requests.post(f"{sys.argv[1]}/invocations", json={"instances": VECTORS.tolist()}, timeout=10).json()
assert instances == {"predictions": asked(VECTORS, {})["coordinates"].tolist()}
try:
    client.invoke(VECTORS[:, :4])
except Exception as error:
    assert "vectors[0] has 4 numbers where this model has 5" in str(error), error
else:
    raise AssertionError
