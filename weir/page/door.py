"""Asks who looks at a page: the same tokens as the server's, by header or, from a browser, by cookie."""

import time
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from weir.serving.access.access import Access, Caller
from weir.serving.access.config import Right
from weir.serving.errors import InvalidRequestError, Violation
from weir.serving.http.connection import Bodies
from weir.serving.http.messages import object_of

__all__ = ["CALLER", "Door"]

CALLER: Final = web.RequestKey("caller", Caller)
"""Who asks, where the page asks that."""

_COOKIE: Final = "weir-token"
_MOST_CHARACTERS: Final = 3800
"""Browsers keep no larger cookies."""

_API: Final = "/api/"
_ENTRY: Final = "/api/token"
_RIGHTS: Final[dict[str, tuple[Right, ...]]] = {
    "/api/stream": ("GetInfo",),
    "/api/caller": ("GetInfo",),
    "/api/query": ("Retrieve", "GetInfo"),
    "/api/click": ("Retrieve", "GetInfo"),
    "/api/map": ("Embed", "GetInfo"),
}
"""What the server would ask for; the page itself calls it as one and the same client."""


class Door:
    """Lets callers in. What the page is made of is public; all that it shows comes from ``/api/``.

    Parameters
    ----------
    access
        Verifies tokens and knows the rules.
    secure
        Whether the page is served over TLS: the cookie then never travels without.
    """

    def __init__(self, access: Access, *, secure: bool) -> None:
        self._access, self._secure, self._bodies = access, secure, Bodies()

    def guard(self) -> Middleware:
        """Return the middleware that refuses who is not known, or may not do it."""

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
        """Take a token that somebody has typed, and have the browser send it from now on; no script can read it."""
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
