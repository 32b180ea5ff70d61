"""MLflow's scoring protocol: a request has the rows of a table, and its answer their coordinates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse

from streampca.errors import list_names
from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import Array
from streampca.sidecar import compute
from streampca.sidecar.engine import JSON, Endpoints, answer_response
from streampca.sidecar.errors import RequestError, invalid
from streampca.sidecar.inference_protocol.schemas import InferenceParameters
from streampca.sidecar.openapi import describe_errors, describe_request
from streampca.sidecar.parsing import Limits, check_names, parse_json_object, refuse_query, shape_rows, validate
from streampca.sidecar.request import RawRequest
from streampca.sidecar.schemas import ProjectQuery, ProjectRequest, Rows
from streampca.version import __version__

_TABLE_FIELDS = ("instances", "inputs", "dataframe_split", "dataframe_records")  # a request has exactly one of them


class Instances(BaseModel):
    """Vectors, in one of the four fields of a request that may hold a table."""

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


class MlflowEndpoints(Endpoints):
    """The endpoints of the protocol."""

    def add_to(self, app: FastAPI) -> None:
        """Add the endpoints to the application."""
        options: dict[str, Any] = {"tags": ["MLflow"], "responses": describe_errors(JSON)}
        body = describe_request(Instances)
        app.post("/invocations", response_model=Predictions, openapi_extra=body, **options)(self.invocations)
        app.get("/ping", response_class=PlainTextResponse, **options)(self.ping)
        app.get("/version", response_class=PlainTextResponse, **options)(self.version)

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
    """A parsed request."""

    columns: list[Any] | None = None  # names of the entries of the vectors, in their order


def parse(raw: RawRequest, limits: Limits) -> Invocation:
    """Parse a body, which has one table of rows. Raises `RequestError`."""
    raw.require_json()
    options = [name for name in ProjectQuery.model_fields if name in raw.query]
    refuse_query(options, instead="write it into params")
    content = parse_json_object(raw.body, limits)
    rows, columns = _read_table(content)
    has_records = isinstance(rows, list) and len(rows) > 0 and isinstance(rows[0], dict)
    row_field = "records" if has_records else "vectors"
    params = content.get("params") or {}
    if not isinstance(params, dict):
        raise invalid("params must be an object")
    check_names("parameter", params, ProjectQuery.model_fields)
    return validate(Invocation, params | {row_field: rows, "columns": columns}, strict=True)


def _read_table(content: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the rows of the table in a body, and the names of its columns or None. Raises `RequestError`."""
    fields = [field for field in _TABLE_FIELDS if content.get(field) is not None]
    if len(fields) != 1:
        raise invalid(f"the body must have one of {', '.join(_TABLE_FIELDS)}")
    [field] = fields
    table = content[field]
    is_split = isinstance(table, dict)  # as in dataframe_split: {"columns": …, "data": rows}
    if not is_split:
        return table, None
    if "data" not in table:
        raise invalid(f"{field} must have data")
    return table["data"], table.get("columns")


def predict(published: PublishedModel, invocation: Invocation, limits: Limits) -> compute.Answer:
    """Return the coordinates of vectors, whose named columns may be in any order.

    Raises `RequestError` if columns have other names, or rows have another width.
    """
    names = published.names
    columns = invocation.columns or []
    # pandas numbers columns that have no names.
    has_column_names = len(columns) > 0 and all(isinstance(column, str) for column in columns)
    if names and has_column_names and invocation.vectors is not None:
        if sorted(columns) != sorted(names):
            raise _wrong_names_error(columns, names)
        invocation.vectors = _order_columns(invocation.vectors, columns, names)
    return compute.project(published, invocation, limits)


def _wrong_names_error(columns: Sequence[str], names: Sequence[str]) -> RequestError:
    """Return the error of columns whose names, in any order, are not the names of the dimensions.

    So a name is missing, or there is one too many, such as a repeated one. The error tells this name, since long lists
    of names are cut off.
    """
    missing = list((Counter(names) - Counter(columns)).elements())
    surplus = list((Counter(columns) - Counter(names)).elements())
    if missing:
        first_difference = f"{list_names(missing[:1])} is missing"
    else:
        first_difference = f"{list_names(surplus[:1])} is one too many"
    return invalid(
        f"the columns are {list_names(columns)}, and the model's dimensions {list_names(names)}: {first_difference}"
    )


def _order_columns(vectors: Array, columns: Sequence[str], names: Sequence[str]) -> Array:
    """Return the vectors (n, d) with their columns in the order of `names`.

    Raises `RequestError` if rows have another width than `columns`.
    """
    # Rows in base64 get the width of `columns`. Rows in JSON keep their own width, which is checked below.
    vectors = shape_rows(vectors, "vectors", len(columns))
    if len(vectors) == 0:  # an array without rows may have no columns
        return vectors
    width = vectors.shape[1]
    if width != len(columns):
        raise invalid(f"each row of data has {width} values, but columns has {len(columns)} names")
    index_by_name = {name: index for index, name in enumerate(columns)}
    indices = [index_by_name[name] for name in names]
    return vectors[:, indices]


def respond(_: Invocation, answer: compute.Answer, raw: RawRequest) -> Response:
    """Return the response, which has only the coordinates of each vector."""
    predictions = compute.Answer(version=answer.version, fields={"predictions": answer.fields["coordinates"]})
    return answer_response(predictions)
