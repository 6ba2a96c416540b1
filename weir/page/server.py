"""Serves the page in a background thread."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Final, cast

from aiohttp import web

from weir.config import Settings
from weir.contracts import Store
from weir.page.access import PageAccess, Rights
from weir.page.app import application
from weir.page.questions import Questions, can_click
from weir.page.reader import ItemFeatures
from weir.page.watch import Watch
from weir.runtime.listening import in_url, is_loopback, listening
from weir.serving.access.access import Access
from weir.serving.access.certificates import http_context
from weir.serving.client import RetrievalClient
from weir.serving.http.connection import HEAD_SECONDS, connections
from weir.up.ports import page_scheme

__all__ = ["page_served"]

log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 300.0
_MOST_CONNECTIONS: Final = 512


@contextlib.contextmanager
def page_served(settings: Settings, store: Store) -> Iterator[str | None]:
    """Context manager: serve the page if `monitor.page_port` is set; yields and logs its address, else yields None.

    If the keys that verify tokens cannot be read, no page is served, and an error is logged. Raises
    `CannotListenError`.
    """
    config = settings.monitor
    if config.page_port is None:
        yield None
        return
    try:
        door = _door(settings)
    except (OSError, ValueError) as error:
        log.error("there is no page, as it cannot verify tokens: %s", error)
        yield None
        return
    listeners = listening("the page", config.page_host, config.page_port)
    address = f"{page_scheme(settings)}://{in_url(config.page_host)}:{listeners[0].getsockname()[1]}"
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(settings, store, listeners, door, stop),))
    thread.name = "weir-page"
    thread.start()
    log.info("the page is at %s", address)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def _is_secure(settings: Settings) -> bool:
    return page_scheme(settings) == "https"


def _door(settings: Settings) -> PageAccess | None:
    """Return the authentication of the page; None if the server has none.

    It is also required on loopback, which any local process can reach.
    """
    is_local = is_loopback(settings.monitor.page_host)
    if settings.serving.auth.jwks is None:
        if settings.serving.tls.client_ca_file is not None and not is_local:
            log.warning(
                "the page asks no caller for a certificate: set serving.auth.jwks, or put a proxy in front of it"
            )
        return None
    if not is_local and not _is_secure(settings):
        log.warning("tokens travel in plain text to the page: set serving.tls, or put a proxy in front of it")
    return PageAccess(Access(settings.serving.auth), secure=_is_secure(settings))


async def _serve(
    settings: Settings, store: Store, listeners: list[socket.socket], door: PageAccess | None, stop: asyncio.Event
) -> None:
    config = settings.monitor
    rights = Rights.on(config.page_host, shows_data=config.page_shows_data, has_folder=can_click(settings.pipeline))
    with RetrievalClient(config.target, config.timeout_seconds, settings.client) as client:
        tags = ItemFeatures(store)
        watch = Watch(settings, store, client, tags, lines=rights.data)
        questions = Questions(client, store, settings.pipeline, tags)
        made = application(watch, questions, rights, config.page_host, door)
        runner = web.AppRunner(made, shutdown_timeout=1.0)
        await runner.setup()
        server = cast(web.Server, runner.server)  # not None after `setup`
        secure = http_context(settings.serving.tls, asks_clients=False) if _is_secure(settings) else None
        loop, connected = asyncio.get_running_loop(), connections(server, _IDLE_SECONDS, _MOST_CONNECTIONS)
        servers = [
            await loop.create_server(
                connected, sock=each, ssl=secure, ssl_handshake_timeout=HEAD_SECONDS if secure else None
            )
            for each in listeners
        ]
        looking = asyncio.create_task(watch.run())
        try:
            await stop.wait()
        finally:
            looking.cancel()
            for each in servers:
                each.close()
            await watch.end()
            await runner.cleanup()
