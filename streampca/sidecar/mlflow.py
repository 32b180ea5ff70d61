"""MLflow's scoring protocol: rows of a table, and their coordinates."""

from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse

from streampca.sidecar import compute
from streampca.sidecar.compute import Answer
from streampca.sidecar.engine import Engine
from streampca.sidecar.errors import invalid
from streampca.sidecar.inference_protocol.schemas import InferenceParameters
from streampca.sidecar.openapi import body_of, errors_of
from streampca.sidecar.parsing import Limits, check_names, json_object, validate
from streampca.sidecar.request import RawRequest
from streampca.sidecar.responses import JSON, answer_response
from streampca.sidecar.schemas import ErrorResponse, ProjectQuery, ProjectRequest, Rows
from streampca.version import __version__

_FORMS = ("instances", "inputs", "dataframe_split")


class Instances(BaseModel):
    """Vectors, in one of the protocol's forms."""

    dataframe_split: dict[str, Any] | None = Field(None, description="`data` holds the vectors; columns are in order.")
    instances: Rows | None = None
    inputs: Rows | None = None
    params: InferenceParameters = InferenceParameters()


class Predictions(BaseModel):
    """Coordinates of the vectors."""

    predictions: Rows


class MlflowEndpoints:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add_to(self, app: FastAPI) -> None:
        options: dict[str, Any] = {"tags": ["MLflow"], "responses": errors_of(ErrorResponse, JSON)}
        post = app.post("/invocations", response_model=Predictions, openapi_extra=body_of(Instances), **options)
        post(self.invocations)
        for endpoint in (self.ping, self.version):
            app.get(f"/{endpoint.__name__}", response_class=PlainTextResponse, **options)(endpoint)

    async def invocations(self, request: Request) -> Response:
        """Coordinates of vectors, as MLflow's scoring server answers."""
        return await self._engine.answer(
            request, operation="project", parse=parse, compute=compute.project, respond=respond
        )

    async def ping(self) -> Response:
        """Succeed if requests should be sent here, as /readyz does."""
        self._engine.check_ready()
        return Response("\n", media_type="text/plain")

    async def version(self) -> Response:
        """The version of this server."""
        return Response(__version__, media_type="text/plain")


def parse(raw: RawRequest, limits: Limits) -> ProjectRequest:
    """The request in a body. Raises `RequestError`."""
    content = json_object(raw.body, limits)
    forms = [content[name] for name in _FORMS if content.get(name) is not None]
    if len(forms) != 1:
        raise invalid(f"the body must have one of {', '.join(_FORMS)}")
    rows = forms[0].get("data") if isinstance(forms[0], dict) else forms[0]
    params = content.get("params") or {}
    if not isinstance(params, dict):
        raise invalid("params must be an object")
    check_names("parameter", params, ProjectQuery.model_fields)
    return validate(ProjectRequest, params | {"vectors": rows}, strict=True, context=raw.body)


def respond(_: ProjectRequest, answer: Answer, raw: RawRequest) -> Response:
    """One row of coordinates for each vector."""
    return answer_response(Answer(answer.version, {"predictions": answer.fields["coordinates"]}))
