"""The page's HTTP routes: static files, the event stream, queries, clicks, and the map."""

import asyncio
import json
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

import grpc
from aiohttp import web
from aiohttp.typedefs import Handler
from google.rpc import status_pb2

from weir.page.access import CALLER, PageAccess, Rights, guard, secured
from weir.page.questions import Questions, k_in
from weir.page.reader import Letter
from weir.page.watch import Watch
from weir.serving.client import RetrievalError
from weir.serving.errors import InvalidRequestError, NotJsonError, Violation
from weir.serving.http.connection import ANSWER_SECONDS, Bodies
from weir.serving.http.messages import object_of, refusals, response_of

__all__ = ["application"]

_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_MOST_STREAMS: Final = 32
_MOST_CLICKS: Final = 2
_MOST_BYTES: Final = 1 << 16
_OF_THE_PAGE: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_CLOSED: Final = "the page shows no data of users here: see monitor.page_shows_data"
_READ_ONLY: Final = "no clicks here: the page takes them on loopback only, for a log that is a folder of this machine"


class _Paths:
    def __init__(self, watch: Watch, questions: Questions, rights: Rights) -> None:
        self._watch, self._questions, self._rights = watch, questions, rights
        self._clicks, self._bodies = 0, Bodies()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send server-sent events: the whole state first, then only changes."""
        watch = self._watch
        if watch.watchers >= _MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text=f"{_MOST_STREAMS} pages are open already")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        watch.watchers += 1
        try:
            await answer.prepare(request)
            sent = _Sent(watch, self._rights)
            while not watch.ended and _may_still(request):
                await watch.news(sent.looks)
                async with asyncio.timeout(ANSWER_SECONDS):
                    await answer.write(f"data: {json.dumps(sent.news())}\n\n".encode())
        except TimeoutError:
            # The browser does not read; a normal close would wait for it.
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            pass
        finally:
            watch.watchers -= 1
        return answer

    async def query(self, request: web.Request) -> web.Response:
        """Answer a query by user, history or item."""
        if not self._rights.data:
            raise web.HTTPForbidden(text=_CLOSED)
        wanted = await _object(request, self._bodies)
        return await _answered(lambda: self._questions.ask(wanted))

    async def click(self, request: web.Request) -> web.Response:
        """Append an event to the log, and answer once the event has changed the user's items."""
        if not self._rights.click:
            raise web.HTTPForbidden(text=_READ_ONLY)
        wanted = await _object(request, self._bodies)
        user, item, k = wanted.get("user"), wanted.get("item"), k_in(wanted)
        if not (isinstance(user, str) and user and isinstance(item, str) and item):
            raise InvalidRequestError([Violation("", "give a user and an item")])
        if self._clicks >= _MOST_CLICKS:
            raise web.HTTPTooManyRequests(text="other clicks are still awaited: try again")
        self._clicks += 1
        try:
            return await _answered(lambda: self._questions.click(user, item, k))
        finally:
            self._clicks -= 1

    async def caller(self, _: web.Request) -> web.Response:
        """Answer an authorised caller with an empty object; other callers learn why the event stream is refused."""
        return web.json_response({})

    async def atlas(self, _: web.Request) -> web.Response:
        """Return the map of the items."""

        def drawn() -> dict[str, Any] | None:
            found = self._questions.atlas()
            return None if found is None else found.as_json()

        return await _answered(drawn)


def _may_still(request: web.Request) -> bool:
    """Return whether the caller's token is still valid; True if the page requires no tokens."""
    caller = request.get(CALLER)
    return caller is None or caller.ends > time.time()


class _Sent:
    """Remembers what a browser has received of the state, to send only the changes."""

    def __init__(self, watch: Watch, rights: Rights) -> None:
        self._watch, self._rights = watch, rights
        self.looks = watch.looks - 1 if watch.looks else 0
        self._epoch, self._points = -1, 0
        self._letters: tuple[Letter, ...] | None = None
        self._recalls: dict[int, Any] = {}

    def news(self) -> dict[str, Any]:
        """Return the changes since the last call, as JSON; `whole` is true if the charts start again."""
        watch = self._watch
        self.looks = watch.looks
        news: dict[str, Any] = {
            "state": watch.state,
            "rights": {"data": self._rights.data, "click": self._rights.click},
        }
        if whole := self._epoch != watch.history.epoch:
            self._epoch, self._points = watch.history.epoch, 0
        news |= {"whole": whole, "points": watch.history.since(self._points)}
        self._points = len(watch.history)
        recalls = {key: recall for key, recall in watch.recalls.items() if self._recalls.get(key) != recall}
        news["recalls"] = [recalls[key] for key in sorted(recalls)]
        self._recalls = watch.recalls
        if self._rights.data and self._letters != watch.letters:
            self._letters = watch.letters
            news["letters"] = watch.letters
        return news


async def _object(request: web.Request, bodies: Bodies) -> dict[str, Any]:
    try:
        return object_of(await bodies.read(request))
    except web.RequestPayloadError:
        raise NotJsonError("its encoding is broken") from None


async def _answered(make: Callable[[], dict[str, Any] | None]) -> web.Response:
    try:
        return web.json_response(await asyncio.to_thread(make))
    except RetrievalError as error:
        status = status_pb2.Status(code=error.code.value[0], message="; ".join(error.explain()))
        # 502: a refusal of the page's own call is not a fault of the page's caller.
        return response_of(status, {}, 502 if error.code in _OF_THE_PAGE else None)
    except (ValueError, TypeError) as error:
        raise web.HTTPBadRequest(text=str(error)) from None


def _file(name: str) -> Handler:
    """Return the handler for one of the page's static files."""
    path = files("weir.page").joinpath("static", name)
    kind = _TYPES["." + name.rpartition(".")[2]]

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=path.read_bytes(), content_type=kind, charset="utf-8")

    return answer


def application(
    watch: Watch, questions: Questions, rights: Rights, host: str, door: PageAccess | None = None
) -> web.Application:
    """Return the web application of a page that listens on `host`.

    `door` authenticates callers; None: the page requires no tokens.
    """
    behind = [] if door is None else [door.guard()]
    made = web.Application(client_max_size=_MOST_BYTES, middlewares=[refusals(host), guard(), *behind])
    if door is not None:
        made.router.add_post("/api/token", door.enter)
    made.on_response_prepare.append(secured)
    paths = _Paths(watch, questions, rights)
    made.router.add_get("/", _file("index.html"))
    for folder in ("", "vendor/"):
        for entry in files("weir.page").joinpath("static", folder).iterdir():
            if entry.name.rpartition(".")[2] in {"js", "css", "svg"}:
                made.router.add_get(f"/{folder}{entry.name}", _file(folder + entry.name))
    made.router.add_get("/api/stream", paths.stream)
    made.router.add_get("/api/caller", paths.caller)
    made.router.add_get("/api/map", paths.atlas)
    made.router.add_post("/api/query", paths.query)
    made.router.add_post("/api/click", paths.click)
    return made
