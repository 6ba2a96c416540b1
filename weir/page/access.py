"""Access to the page: callers' tokens, in a header or a cookie, the rights that each path needs, and safe headers."""

import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from weir.runtime.listening import is_loopback
from weir.serving.access.access import Access, Caller
from weir.serving.access_config import Right
from weir.serving.errors import InvalidRequestError, Violation
from weir.serving.http.connection import Bodies
from weir.serving.http.messages import object_of

__all__ = ["CALLER", "PageAccess", "Rights", "guard", "secured"]

CALLER: Final = web.RequestKey("caller", Caller)
"""The authenticated caller of a request, if the page requires tokens."""

_COOKIE: Final = "weir-token"
_MOST_CHARACTERS: Final = 3800
"""Most characters of a token, as browsers drop larger cookies."""

_API: Final = "/api/"
_ENTRY: Final = "/api/token"
_RIGHTS: Final[dict[str, tuple[Right, ...]]] = {
    "/api/stream": ("GetInfo",),
    "/api/caller": ("GetInfo",),
    "/api/query": ("Retrieve", "GetInfo"),
    "/api/click": ("Retrieve", "GetInfo"),
    "/api/map": ("Embed", "GetInfo"),
}
"""Path -> the rights that a caller needs, as the page itself calls the server as a single client for all users."""

_HEADERS: Final = {
    # The page only loads resources from its own origin.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class PageAccess:
    """Authenticates the page's callers; the paths below ``/api/``, which have all data, are protected.

    Parameters
    ----------
    access
        Verifies tokens and knows the rules.
    secure
        Whether the page is served over TLS; the cookie is then sent over TLS only.
    """

    def __init__(self, access: Access, *, secure: bool) -> None:
        self._access, self._secure, self._bodies = access, secure, Bodies()

    def guard(self) -> Middleware:
        """Return the middleware that refuses calls without a valid token or without the rights that the path needs."""

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not request.path.startswith(_API) or request.path == _ENTRY:
                return await handler(request)
            sent = request.headers.getall("Authorization", [])
            if not sent and _COOKIE in request.cookies:
                sent = [f"Bearer {request.cookies[_COOKIE]}"]
            request[CALLER] = await self._access.admit(sent, None, *_RIGHTS.get(request.path, ()))
            return await handler(request)

        return checked

    async def enter(self, request: web.Request) -> web.Response:
        """Check a token typed into the page, and answer with a cookie that holds it and that scripts cannot read."""
        token = object_of(await self._bodies.read(request)).get("token")
        if not isinstance(token, str) or len(token) > _MOST_CHARACTERS:
            raise InvalidRequestError([Violation("token", f"give one of at most {_MOST_CHARACTERS} characters")])
        caller = await self._access.admit([f"Bearer {token.strip()}"], None)
        answer = web.json_response({})
        left = max(0, int(caller.ends - time.time()))
        answer.set_cookie(
            _COOKIE, token.strip(), path=_API, max_age=left, httponly=True, samesite="Strict", secure=self._secure
        )
        return answer


@dataclass(frozen=True)
class Rights:
    """Which features the page offers: `data` (lines of the log, queries) and `click` (appending events to the log)."""

    data: bool
    click: bool

    @classmethod
    def on(cls, host: str, *, shows_data: bool, has_folder: bool) -> "Rights":
        """Return the features of a page that listens on `host`.

        Data is offered on loopback or with `shows_data`; clicks only on loopback, if the log is a folder.
        """
        local = is_loopback(host)
        return cls(data=local or shows_data, click=local and has_folder)


def guard() -> Middleware:
    """Return the middleware that refuses cross-origin requests, which other web pages send."""

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
