"""Small streams are learned twice: with the covariance kept, as where d is small, and with a factor."""

import pytest


@pytest.fixture(params=[False, True], ids=["covariance", "factor"])
def factor(request: pytest.FixtureRequest) -> bool:
    """Whether a small stream is learned with a factor."""
    return bool(request.param)
