"""One HTTP GET, in its own module because importing urllib costs more than the rest of a plan."""

from email.message import Message
from typing import IO
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener


class _KeepTokenOnHost(HTTPRedirectHandler):
    """A redirect to another host never sees the token; one on the same host keeps it."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        token = req.unredirected_hdrs.get("Authorization")
        if redirected is not None and token and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            redirected.add_unredirected_header("Authorization", token)
        return redirected


def get(url: str, *, token: str | None, timeout_seconds: float, most_bytes: int) -> bytes:
    """The body of an answer, at most one byte more than ``most_bytes``. Raises urllib's and http.client's errors."""
    request = Request(url, headers={"User-Agent": "traincast"})
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with build_opener(_KeepTokenOnHost).open(request, timeout=timeout_seconds) as response:
        body: bytes = response.read(most_bytes + 1)
        return body
