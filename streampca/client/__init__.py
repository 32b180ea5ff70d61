"""A client of the sidecar: arrays in, arrays out. Needs `pip install 'streampca[client]'`.

with Client("http://localhost:8000") as client:
    coordinates = client.project(vectors).coordinates
"""

from streampca.client.calls import Projected, Reconstructed, Scored, SidecarError
from streampca.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "Projected", "Reconstructed", "Scored", "SidecarError"]
