"""MLflow's scoring protocol: rows of a table, and their coordinates."""

from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse

from streampca.errors import listed
from streampca.fold.model_file import PublishedModel
from streampca.sidecar import compute
from streampca.sidecar.engine import JSON, Dialect, answer_response
from streampca.sidecar.errors import invalid
from streampca.sidecar.inference_protocol.schemas import InferenceParameters
from streampca.sidecar.openapi import body_of, errors_of
from streampca.sidecar.parsing import Limits, check_names, json_object, validate
from streampca.sidecar.request import RawRequest
from streampca.sidecar.schemas import ProjectQuery, ProjectRequest, Rows
from streampca.version import __version__

_FORMS = ("instances", "inputs", "dataframe_split", "dataframe_records")


class Instances(BaseModel):
    """Vectors, in one of the protocol's forms."""

    dataframe_split: dict[str, Any] | None = Field(
        None, description="`data` holds the vectors; `columns` may name their entries, in any order."
    )
    dataframe_records: list[dict[str, Any]] | None = Field(None, description="The vectors as objects, by names.")
    instances: Rows | None = None
    inputs: Rows | None = None
    params: InferenceParameters = InferenceParameters()


class Predictions(BaseModel):
    """Coordinates of the vectors."""

    predictions: Rows


class MlflowEndpoints(Dialect):
    def add_to(self, app: FastAPI) -> None:
        options: dict[str, Any] = {"tags": ["MLflow"], "responses": errors_of(JSON)}
        app.post("/invocations", response_model=Predictions, openapi_extra=body_of(Instances), **options)(
            self.invocations
        )
        for endpoint in (self.ping, self.version):
            app.get(f"/{endpoint.__name__}", response_class=PlainTextResponse, **options)(endpoint)

    async def invocations(self, request: Request) -> Response:
        """Coordinates of vectors, as MLflow's scoring server answers."""
        return await self._engine.answer(request, operation="project", parse=parse, compute=predict, respond=respond)

    async def ping(self, request: Request) -> Response:
        """Succeed if requests should be sent here, as /readyz does."""
        self._engine.check_ready(request)
        return Response("\n", media_type="text/plain")

    async def version(self) -> Response:
        """The version of this server."""
        return Response(__version__, media_type="text/plain")


class Invocation(ProjectRequest):
    """The request in one of the protocol's forms; `columns` name the entries of its vectors."""

    columns: list[Any] | None = None


def parse(raw: RawRequest, limits: Limits) -> Invocation:
    """The request in a body. Raises `RequestError`."""
    content = json_object(raw.body, limits)
    forms = [content[name] for name in _FORMS if content.get(name) is not None]
    if len(forms) != 1:
        raise invalid(f"the body must have one of {', '.join(_FORMS)}")
    table = forms[0] if isinstance(forms[0], dict) else {"data": forms[0]}
    if "data" not in table:
        raise invalid("dataframe_split must have data")
    rows = table["data"]
    form = "records" if isinstance(rows, list) and rows and isinstance(rows[0], dict) else "vectors"
    params = content.get("params") or {}
    if not isinstance(params, dict):
        raise invalid("params must be an object")
    check_names("parameter", params, ProjectQuery.model_fields)
    return validate(Invocation, params | {form: rows, "columns": table.get("columns")}, strict=True, context=raw.body)


def predict(published: PublishedModel, invocation: Invocation, limits: Limits) -> compute.Answer:
    """Coordinates; a model with names takes the columns of a table by their names."""
    names, columns, vectors = published.names, invocation.columns, invocation.vectors
    if names and columns and vectors is not None and all(isinstance(column, str) for column in columns):
        if sorted(columns) != sorted(names) or (len(vectors) and vectors.shape[1] != len(columns)):
            raise invalid(f"the columns are {listed(columns)}, and the model's dimensions {listed(names)}")
        at = {name: j for j, name in enumerate(columns)}
        invocation.vectors = vectors[:, [at[name] for name in names]]
    return compute.project(published, invocation, limits)


def respond(_: Invocation, answer: compute.Answer, raw: RawRequest) -> Response:
    """One row of coordinates for each vector."""
    return answer_response(compute.Answer(answer.version, {"predictions": answer.fields["coordinates"]}))
