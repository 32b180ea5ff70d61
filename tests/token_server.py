"""An identity provider: a token endpoint whose tokens the test broker accepts."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

CLIENT, SECRET = "alice", "client-secret"


def jwks_url(folder: Path) -> str:
    """Where the broker finds the public key."""
    return f"file:{folder / 'tokens.jwks'}"


class TokenKey:
    """The key in a broker's folder that its provider signs with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self) -> None:
        """Write the key, and its public part for the broker."""
        key = rsa.generate_private_key(65537, 2048)
        (self._folder / "token-key.pem").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        numbers = key.public_key().public_numbers()
        n, e = (_text(i.to_bytes((i.bit_length() + 7) // 8)) for i in (numbers.n, numbers.e))
        jwk = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": n, "e": e}
        (self._folder / "tokens.jwks").write_text(json.dumps({"keys": [jwk]}))

    def token(self, life_s: float) -> str:
        """A token that expires after this time."""
        key: Any = load_pem_private_key((self._folder / "token-key.pem").read_bytes(), None)
        now = int(time.time())
        claims = {"sub": CLIENT, "aud": "kafka", "iat": now, "exp": int(now + life_s)}
        parts = [_text(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, claims)]
        signed = ".".join(parts)
        return f"{signed}.{_text(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class TokenServer(ThreadingHTTPServer):
    """The token endpoint; counts the tokens that it gives."""

    def __init__(self, folder: Path, life_s: float = 300, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.key, self.life_s, self.given, self.scopes = TokenKey(folder), life_s, 0, list[str]()
        self.url = f"http://127.0.0.1:{self.server_port}/token"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        expected = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        right = self.headers["authorization"] == expected and form["grant_type"] == ["client_credentials"]
        self.server.scopes += form.get("scope", [])
        self.server.given += right
        content: dict[str, Any] = {"error": "invalid_client"}
        if right:
            content = {"access_token": self.server.key.token(self.server.life_s), "expires_in": self.server.life_s}
        body = json.dumps(content).encode()
        self.send_response(200 if right else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
