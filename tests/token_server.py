"""An identity provider on a loopback port: it issues the tokens that the test broker accepts.

Client credentials (RFC 6749, section 4.4) for JWTs with RS256; the broker reads the public key from a file.
"""

import base64
import json
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.http_server import HttpServer

CLIENT, SECRET, AUDIENCE = "streampca-worker", "client-secret", "kafka"


def write_keys(folder: Path) -> Path:
    """Write the key that signs tokens, and the key set that verifies them, whose path is returned."""
    key = generate_private_key(65537, 2048)
    (folder / "token-key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    numbers = key.public_key().public_numbers()
    public = {
        name: _base64(n.to_bytes(-(-n.bit_length() // 8), "big")) for name, n in (("n", numbers.n), ("e", numbers.e))
    }
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", **public}]}))
    return keys


class TokenServer(HttpServer):
    """Issues tokens to clients who know the secret."""

    def __init__(self, folder: Path) -> None:
        """Signs with the key in this folder."""
        super().__init__(self._respond)
        self._key: Any = load_pem_private_key((folder / "token-key.pem").read_bytes(), None)
        self.lifetime_s, self.audience, self.knows_client = 300.0, AUDIENCE, True
        self.failure: int | None = None  # the status of all answers, if they are errors
        self.asked: list[dict[str, list[str]]] = []  # the forms of all requests

    @property
    def url(self) -> str:
        return f"{self.root}/token"

    def login(self, bootstrap_servers: str, query: str = "") -> dict[str, str]:
        """The settings to log in at brokers with tokens of this server."""
        return {
            "bootstrap_servers": bootstrap_servers, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER", "sasl_username": CLIENT, "sasl_password": SECRET,
            "sasl_token_url": self.url + query,
        }  # fmt: skip

    def _respond(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, Any]]:
        form, login = parse_qs(body.decode()), request.headers["Authorization"]
        self.asked.append(form)
        if self.failure is not None:
            return self.failure, {}
        expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if not self.knows_client or login != f"Basic {expected}" or form["grant_type"] != ["client_credentials"]:
            return 401, {"error": "invalid_client", "error_description": f"not {login}"}
        return 200, {"access_token": self._token(), "token_type": "Bearer", "expires_in": self.lifetime_s}

    def _token(self) -> str:
        now = int(time.time())  # brokers ignore the fraction
        claims = {"sub": CLIENT, "aud": self.audience, "iat": now, "exp": now + self.lifetime_s}
        parts = ({"alg": "RS256", "kid": "1"}, claims)
        signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_base64(self._key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
