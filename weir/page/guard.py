"""Rights of the page, checks of the Origin header, and security headers."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from weir.serving.http.hosts import is_loopback

__all__ = ["Rights", "guard", "secured"]

_HEADERS: Final = {
    # The page only loads resources from its own origin.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Rights:
    """What the page offers: `data`, lines of the log and queries; `click`, appending events to the log."""

    data: bool
    click: bool

    @classmethod
    def on(cls, host: str, *, shows_data: bool, has_folder: bool) -> "Rights":
        """Return the rights of a page that listens on `host`: clicks only on loopback, data also if `shows_data`."""
        local = is_loopback(host)
        return cls(data=local or shows_data, click=local and has_folder)


def guard() -> Middleware:
    """Return the middleware that refuses requests from other web pages (cross-origin)."""

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        # Any web page can make a browser send requests; the Origin header names that page.
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text=f"Origin: {origin[:128]} is not this page")
        return await handler(request)

    return checked


async def secured(_: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers to a response."""
    response.headers.update(_HEADERS)
