"""The files of the page at `/`, in the folder `static/`."""

from os import PathLike, stat_result
from pathlib import Path

from fastapi import Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"

HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag each time, so that the page is never older than its sidecar
}


class PageFiles(StaticFiles):
    def __init__(self, folder: Path = FOLDER) -> None:
        super().__init__(directory=folder)

    async def index(self, request: Request) -> Response:
        """The page itself. Its links are relative (`page/…`), so it also works behind a path prefix."""
        return await self.get_response("index.html", request.scope)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """One file, or 304 if the client has it already."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response
