"""`weir up` while it runs: the processes, the status on the console, and the end of a demo."""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from weir.contracts import Store
from weir.contracts.bundles.variants import roles_in
from weir.errors import CommandError
from weir.interact import Asker, print_answer, print_change
from weir.runtime.listening import reached
from weir.runtime.supervisor import Supervisor
from weir.serving.client import RetrievalClient
from weir.text import operand, plain, program, shell
from weir.up.ports import page_scheme
from weir.up.prepare import Launch, child_specs
from weir.up.status import Status, StatusDisplay, StatusReader
from weir.up.summary import DemoSummary, print_summary, summarise
from weir.verdict import SMALL_LOG

__all__ = ["run_up", "something_new", "tree_memory"]

_PROC: Final = Path("/proc")

_LOOK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 30.0
_CLICK_SECONDS: Final = 60.0
_SHOWN: Final = 8
"""Items in the answers that a demo prints."""
_TOP: Final = 50
"""Number of a user's top items among which the item that a demo clicks must not be."""


def tree_memory(root: int) -> int:
    """Return the bytes used by the process `root` and its descendants; 0 without ``/proc``.

    A page shared by several processes is counted once (sum of proportional set sizes).
    """
    children: dict[int, list[int]] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            # The process has ended since the listing.
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    processes, frontier = [root], [root]
    while frontier:
        frontier = [child for process in frontier for child in children.get(process, ())]
        processes += frontier
    return sum(_proportional_set(_PROC / str(process)) for process in processes)


def _proportional_set(folder: Path) -> int:
    """Return the proportional set size in bytes of the process with this folder in ``/proc``; 0 if it has ended."""
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def run_up(launch: Launch) -> DemoSummary | None:
    """Run the processes until a signal arrives; with ``--once``, until the demo is over, and return its summary.

    Raises `GaveUpError` if a process keeps failing, `CommandError` after the timeout.
    """
    return asyncio.run(_Run(launch).run())


@dataclass
class _Run:
    """Runs the processes of one `weir up`, and shows their status; the fields are what has happened so far."""

    launch: Launch
    peak_memory: int = 0
    summary: DemoSummary | None = None
    hinted: bool = False
    failed_once: bool = False
    is_over: bool = False

    async def run(self) -> DemoSummary | None:
        launch, session = self.launch, self.launch.session
        roles = roles_in(session.store, session.settings.trainer.variants)
        specs = child_specs(launch.settings_file, launch.options.ranks, launch.replayed, roles.lines)
        with (
            StatusDisplay(session.notes) as display,
            RetrievalClient(session.target, 5.0, session.settings.client) as client,
        ):
            display.say("weir", f"see it work: {self._page()}")
            if roles.challenger is not None:
                compared = f"{program()} inspect variants{self._store_option()}"
                display.say("weir", f"{roles.challenger} challenges {roles.champion}: {compared}")
            if launch.replayed is not None:
                display.say(
                    "weir",
                    "starting: the replay begins when the trainer is ready, the first answer comes some seconds later",
                )
            supervisor = Supervisor(specs, launch.folder / "logs", display.say, _GRACE_SECONDS)
            reader = StatusReader(session.store, session.settings, client, launch.started, launch.user)

            async def work() -> None:
                status = await self._watch(supervisor, reader, display)
                display.stop()
                await asyncio.to_thread(self._finish, client, supervisor, status)

            await supervisor.run(work)
        return self.summary

    async def _watch(self, supervisor: Supervisor, reader: StatusReader, display: StatusDisplay) -> Status:
        """Read and show the status periodically; with ``--once``, return the last status once the replay is settled."""
        options = self.launch.options
        while True:
            status = await asyncio.to_thread(reader.read)
            await self._show(status, display)
            if not self.is_over and supervisor.has_finished("replay"):
                self.is_over = await asyncio.to_thread(reader.is_settled, status)
                if self.is_over and not options.once:
                    display.say("weir", await asyncio.to_thread(self._next, reader.client))
            if options.once:
                if self.is_over:
                    return status
                if status.seconds > options.timeout:
                    raise CommandError(
                        f"not finished after {options.timeout:.0f} s: {status.last_sequence + 1} panes committed, "
                        f"{status.trained_sequence + 1} trained on; see {self.launch.folder / 'logs'}"
                    )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _show(self, status: Status, display: StatusDisplay) -> None:
        try:
            self.peak_memory = max(self.peak_memory, await asyncio.to_thread(tree_memory, os.getpid()))
            display.show(status)
            self._hint(status, display)
        except Exception as error:  # noqa: BLE001 - watching the stages must not stop them
            if not self.failed_once:
                self.failed_once = True
                display.say("weir", f"the view failed and continues: {type(error).__name__}: {error}")

    def _hint(self, status: Status, display: StatusDisplay) -> None:
        """Print how to query, once, as soon as the server answers."""
        if self.hinted or status.first_answer_seconds is None:
            return
        self.hinted = True
        command = f"{program()} query{self._store_option()} {operand(self.launch.user or 'USER')}"
        display.say("weir", f"answers after {status.first_answer_seconds:.1f} s; try: {command}")
        display.say("weir", f"the same as JSON: {self._address()}/v1/info and POST /v1/retrieve (docs/serving.md)")

    def _next(self, client: RetrievalClient) -> str:
        """Return the advice to print when a replay is over and the stages stay up; never raises."""
        user, item = self.launch.user or "USER", "ITEM"
        # The server may be away or the store damaged: the advice then names no item.
        with contextlib.suppress(Exception):
            item = something_new(Asker(client, self.launch.session.store), user)
        command = f"{program()} click{self._store_option()} {operand(user, item)}"
        return f"the replay is over, and all of it is learned; next: {command} changes the answer on {self._page()}"

    def _store_option(self) -> str:
        """Return the `--store` option for later commands; empty for the default store."""
        store = shell(os.path.relpath(self.launch.folder))
        return "" if store == Store("weir-data").path("").rsplit("/", 1)[-1] else f" --store {store}"

    def _page(self) -> str:
        """Return the URL of the page, which queries for a user of the log if one is known."""
        monitor, user = self.launch.session.settings.monitor, self.launch.user
        asked = f"?{urlencode({'user': user})}" if user else ""
        scheme = page_scheme(self.launch.session.settings)
        return f"{scheme}://{reached(monitor.page_host)}:{monitor.page_port}/{asked}"

    def _address(self) -> str:
        serving = self.launch.session.settings.serving
        scheme = "http" if serving.tls.certificate_file is None else "https"
        return f"{scheme}://{reached(serving.host)}:{serving.http_port}"

    def _finish(self, client: RetrievalClient, supervisor: Supervisor, status: Status) -> None:
        """Query, click, and print and keep the summary, while all processes are still running."""
        session, user = self.launch.session, self.launch.user or ""
        asker = Asker(client, session.store)
        out = session.notes
        out.print()
        out.print(plain(f"weir query {user}", style="bold"))
        print_answer(out, asker.ask(user, _SHOWN))
        change = None
        if status.counts.events >= SMALL_LOG:
            item = something_new(asker, user)
            out.print()
            out.print(plain(f"weir click {user} {item}", style="bold"))
            change = asker.click(session.settings.pipeline, user, item, _SHOWN, _CLICK_SECONDS)
            print_change(out, change)
        restarts = {child.spec.name: child.restarts for child in supervisor.children}
        peak_memory = max(self.peak_memory, tree_memory(os.getpid()))
        seconds = time.monotonic() - self.launch.started
        self.summary = summarise(
            session.store, session.settings, status, change, restarts, peak_memory=peak_memory, seconds=seconds
        )
        out.print()
        print_summary(out, self.summary)
        weir, where, asked = program(), self._store_option(), operand(user)
        out.print()
        out.print(
            plain(
                f"next: {weir} up{where} stays up with what was learned; then, beside it, {weir} query{where} {asked}"
            ),
            soft_wrap=True,
        )


def something_new(asker: Asker, user: str) -> str:
    """Return the most popular item that is not among the user's top items, so that a click on it changes the answer."""
    answer = asker.ask(user, _TOP)
    top = set(answer.item_ids)
    ranked = sorted(asker.popularity_ranks(answer.bundle_version).items(), key=lambda pair: pair[1])
    return next((item for item, _ in ranked if item not in top), answer.item_ids[-1])
