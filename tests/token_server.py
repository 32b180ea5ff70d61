"""An identity provider on a loopback port: it issues the tokens that the test broker accepts.

Client credentials (RFC 6749, section 4.4) for JWTs with RS256; the broker reads the public key from a file.
"""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.ports import free_ports

CLIENT, SECRET, AUDIENCE = "streampca-worker", "client-secret", "kafka"


def write_keys(folder: Path) -> Path:
    """Write the key that signs tokens, and the key set that verifies them, whose path is returned."""
    key = generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "token-key.pem").write_bytes(pem)
    numbers = key.public_key().public_numbers()
    public = {
        name: _base64(n.to_bytes(-(-n.bit_length() // 8), "big")) for name, n in (("n", numbers.n), ("e", numbers.e))
    }
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", **public}]}))
    return keys


class TokenServer:
    """A server that can be stopped, and started again on its port."""

    def __init__(self, folder: Path) -> None:
        """Signs with the key in this folder."""
        key = load_pem_private_key((folder / "token-key.pem").read_bytes(), None)
        assert isinstance(key, RSAPrivateKey)
        self._key = key
        self._server: ThreadingHTTPServer | None = None
        (self._port,) = free_ports(1)
        self.lifetime_s, self.audience, self.knows_client = 300.0, AUDIENCE, True
        self.failure: int | None = None
        """The status of all answers, if they are errors."""
        self.asked: list[dict[str, list[str]]] = []
        """The forms of all requests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/token"

    def login(self, bootstrap_servers: str, query: str = "") -> dict[str, str]:
        """The settings to log in at brokers with tokens of this server."""
        return {
            "bootstrap_servers": bootstrap_servers, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER", "sasl_username": CLIENT, "sasl_password": SECRET,
            "sasl_token_url": self.url + query,
        }  # fmt: skip

    def start(self) -> None:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, body = provider._answer(self.headers["Authorization"], form)
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answer(self, login: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
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
