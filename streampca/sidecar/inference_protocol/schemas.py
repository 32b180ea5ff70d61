"""Requests and answers of the Open Inference Protocol: they validate requests and document both."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, SkipValidation

from streampca.pca.model import Basis

Datatype = Literal["FP32", "FP64"]
Size = Annotated[int, Field(ge=0, lt=2**31)]
OutputName = Literal["coordinates", "residual", "reconstruction", "score", "p"]


class TensorParameters(BaseModel):
    """Parameters of an input tensor."""

    binary_data_size: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        None, description="Number of bytes of the tensor, which follow the JSON."
    )


class Tensor(BaseModel):
    """The input: vectors."""

    name: Annotated[str, Field(description="Any name: there is one input.", examples=["vectors"])]
    shape: Annotated[list[Size], Field(min_length=2, max_length=2, description="Numbers of vectors and of dimensions.")]
    datatype: Datatype
    data: Annotated[
        list[Any] | None,
        SkipValidation,
        Field(description="All numbers in one list, vector by vector, or a list each."),
    ] = None
    parameters: TensorParameters = TensorParameters()


class OutputParameters(BaseModel):
    """Parameters of a requested output."""

    binary_data: bool | None = Field(
        None, description="Whether the output is sent as bytes; if absent, `binary_data_output` decides."
    )


class RequestedOutput(BaseModel):
    """An output to answer with."""

    name: OutputName
    parameters: OutputParameters = OutputParameters()


class InferenceParameters(BaseModel):
    """Parameters of a request; parameters of other servers are ignored."""

    basis: Basis = "principal"
    binary_data_output: bool = Field(False, description="Whether outputs are sent as bytes behind the JSON.")


class InferenceRequest(BaseModel):
    """Vectors to project."""

    id: str | None = Field(None, description="Repeated in the answer.")
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=1)]
    outputs: list[RequestedOutput] = Field(
        [], max_length=len(get_args(OutputName)), description="If empty, the outputs are coordinates and residual."
    )
    parameters: InferenceParameters = InferenceParameters()


class ModelTensor(BaseModel):
    """An input or an output of a model. In its shape, −1 stands for any number of vectors."""

    name: str
    datatype: Datatype
    shape: list[int]


class OutputTensor(ModelTensor):
    """An output. If it has no data, its numbers are bytes behind the JSON."""

    data: list[float] | None = None
    parameters: dict[str, int] | None = None


class InferenceResponse(BaseModel):
    """The outputs of a model's version."""

    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[OutputTensor]


class ServerMetadata(BaseModel):
    """This server."""

    name: str
    version: str
    extensions: list[str]


class ModelMetadata(BaseModel):
    """A model's inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[ModelTensor]
    outputs: list[ModelTensor]


class Live(BaseModel):
    """The process responds."""

    live: bool


class Ready(BaseModel):
    """Requests can be answered."""

    name: str | None = None
    ready: bool


class RepositoryEntry(BaseModel):
    """A version in the store."""

    name: str
    version: str
    state: str
    reason: str = ""
