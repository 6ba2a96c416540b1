"""Who may ask the page, and what for."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from weir.serving.http.hosts import is_loopback

__all__ = ["Rights", "guard", "secured"]

_HEADERS: Final = {
    # The page loads what it is made of from itself, and nothing else from anywhere.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Rights:
    """What the page does where it listens: `data`, lines of the log and queries; `click`, events for the log."""

    data: bool
    click: bool

    @classmethod
    def on(cls, host: str, *, shows_data: bool, has_folder: bool) -> "Rights":
        """Return the rights of a page that listens on `host`: off loopback it is read only."""
        local = is_loopback(host)
        return cls(data=local or shows_data, click=local and has_folder)


def guard() -> Middleware:
    """Return the middleware of a page: only its own pages may ask."""

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        # Any page of the web may have a browser ask; it says which page that is.
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text=f"Origin: {origin[:128]} is not this page")
        return await handler(request)

    return checked


async def secured(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every answer has."""
    response.headers.update(_HEADERS)
