"""Describes in `/openapi.json` the bodies and answers that endpoints parse and encode without FastAPI."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from streampca.sidecar.errors import PROBLEM_JSON, ErrorResponse

DESCRIPTION = """Projections onto the principal components of a Kafka topic, by the newest model or an older one.

Every answer names the version of its model, in the body and in the header `X-Model-Version`.
Errors are `application/problem+json`: `type` names the kind, `detail` says what is wrong, where, and how to correct it.

Request bodies of `/v1` are JSON, whatever their Content-Type, with two exceptions: `application/x-npy` is a NumPy file
of real numbers, one row (d,) or several (n, d), and `application/octet-stream;dtype=float32` (or `float64`) is rows of
little-endian numbers without a header. A binary body holds only the rows; the other fields are then query parameters,
and `of=vectors` or `of=coordinates` says what `/v1/reconstruct` gets.
With `Accept: application/x-npz` the fields of the answer are arrays of the same names, for `numpy.load`."""

EXAMPLES = Path(__file__).parent / "examples.json"  # requests and answers for a small model, by path

_SCHEMAS = "#/components/schemas/"
_BINARY = {"schema": {"type": "string", "format": "binary"}}

Responses = dict[int | str, dict[str, Any]]


def describe_content(schema: type[BaseModel], media_type: str, *binary_types: str) -> dict[str, Any]:
    """Describe a body: text of this media type and schema, or bytes of a binary type.

    The schema is referred to by its name; `add_schemas` adds it to the document.
    """
    content: dict[str, Any] = {media_type: {"schema": {"$ref": _SCHEMAS + schema.__name__}}}
    for binary_type in binary_types:
        content[binary_type] = _BINARY
    return {"content": content}


def describe_request(
    schema: type[BaseModel], *binary_types: str, query: type[BaseModel] | None = None
) -> dict[str, Any]:
    """Describe the body and the query of a request, for FastAPI's option `openapi_extra`."""
    parameters = query.model_json_schema()["properties"] if query else {}
    return {
        "requestBody": {"required": True, **describe_content(schema, "application/json", *binary_types)},
        "parameters": [{"name": name, "in": "query", "schema": described} for name, described in parameters.items()],
    }


def describe_binary_answer(media_type: str) -> Responses:
    """Describe the binary form of an answer, which comes in addition to JSON."""
    return {200: {"content": {media_type: _BINARY}}}


def describe_errors(media_type: str = PROBLEM_JSON) -> Responses:
    """Describe the answers of an endpoint that are errors."""
    content = describe_content(ErrorResponse, media_type)
    return {
        "4XX": {"description": "A wrong or too large request, or an unknown version."} | content,
        "5XX": {"description": "No model yet, an unreadable one, or too many requests."} | content,
    }


def add_schemas(app: FastAPI, *schemas: type[BaseModel]) -> None:
    """Replace `app.openapi`, which generates the OpenAPI document: the new one adds schemas, summaries and examples."""
    generate_with_fastapi = app.openapi
    _, definitions = models_json_schema(
        [(schema, "validation") for schema in schemas], ref_template=_SCHEMAS + "{model}"
    )
    added_schemas = definitions["$defs"]

    def generate_extended() -> dict[str, Any]:
        """Generate FastAPI's OpenAPI document, and add the schemas, summaries and examples."""
        document = generate_with_fastapi()
        document["components"]["schemas"] |= added_schemas
        examples = json.loads(EXAMPLES.read_bytes())
        for path, operations in document["paths"].items():
            for operation in operations.values():
                _add_summary_and_examples(operation, examples.get(path, {}))
        return document

    app.openapi = generate_extended  # type: ignore[method-assign]


def _add_summary_and_examples(operation: dict[str, Any], example: Mapping[str, Any]) -> None:
    """Add a summary, the first sentence of the description, and the examples, if there are any."""
    first_line = operation["description"].splitlines()[0]
    first_sentence = first_line.split(". ")[0]
    operation["summary"] = first_sentence.rstrip(".")
    content = operation["responses"]["200"].get("content", {})
    if example:
        for media_type in content.keys() & {"application/json", "text/plain"}:
            content[media_type]["example"] = example["answer"]
    if "request" in example and "requestBody" in operation:
        operation["requestBody"]["content"]["application/json"]["example"] = example["request"]
