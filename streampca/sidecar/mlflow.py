"""Requests and answers of MLflow's scoring protocol: rows of a table, and their coordinates."""

from fastapi import Response

from streampca.sidecar import compute
from streampca.sidecar.compute import Answer
from streampca.sidecar.parsing import check_names, check_values, json_object, validate
from streampca.sidecar.request import RawRequest, RequestError
from streampca.sidecar.request_arrays import Limits
from streampca.sidecar.responses import json_response, version_header
from streampca.sidecar.v1.schemas import ProjectQuery, ProjectRequest

_FORMS = ("instances", "inputs", "dataframe_split")


def parse(raw: RawRequest, limits: Limits) -> ProjectRequest:
    """The request in a body. Raises `RequestError`."""
    check_values(raw.body, limits)
    content = json_object(raw.body)
    found = [content[name] for name in _FORMS if content.get(name) is not None]
    if len(found) != 1:
        raise RequestError(422, f"the body must have one of {', '.join(_FORMS)}")
    rows = found[0].get("data") if isinstance(found[0], dict) else found[0]
    params = content.get("params") or {}
    if not isinstance(params, dict):
        raise RequestError(422, "params must be an object")
    check_names("parameter", params, list(ProjectQuery.model_fields))
    return validate(ProjectRequest, params | {"vectors": rows}, strict=True, context=raw.body)


predict = compute.project


def respond(request: ProjectRequest, answer: Answer, raw: RawRequest) -> Response:
    """One row of coordinates for each vector."""
    return json_response({"predictions": answer.fields["coordinates"]}, headers=version_header(answer.version))
