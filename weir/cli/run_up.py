"""`weir up` while it runs: the processes, the view, and the end of a demo."""

import asyncio
import os
import shlex
import time
from dataclasses import dataclass, field
from typing import Final

from contracts import Store
from serving.client import RetrievalClient
from weir.cli.answers import print_answer, print_change
from weir.cli.errors import CommandError
from weir.cli.prepare import Launch
from weir.demo.summary import DemoSummary, print_summary, summarise
from weir.demo.tour import something_new
from weir.interact import Asker
from weir.supervisor import Supervisor
from weir.supervisor.memory import Peak, tree_memory
from weir.supervisor.observer import Observer, Snapshot
from weir.supervisor.plan import child_specs
from weir.supervisor.view import View
from weir.text import plain

__all__ = ["run_up"]

_LOOK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 30.0
_CLICK_SECONDS: Final = 60.0
_SHOWN: Final = 8


def run_up(launch: Launch) -> DemoSummary | None:
    """Run until a signal comes (None) or, with ``--once``, until all has been shown (the summary).

    Raises `GaveUpError` where a process cannot be kept alive, `CommandError` where the time is up.
    """
    return asyncio.run(_Run(launch).run())


@dataclass
class _Run:
    launch: Launch
    peak: Peak = field(default_factory=Peak)
    summary: DemoSummary | None = None
    hinted: bool = False
    troubled: bool = False

    async def run(self) -> DemoSummary | None:
        launch, session = self.launch, self.launch.session
        specs = child_specs(launch.settings_file, launch.options.ranks, launch.replayed)
        with View(session.notes) as view, RetrievalClient(session.target, timeout=5.0) as client:
            supervisor = Supervisor(specs, launch.folder / "logs", view.say, _GRACE_SECONDS)
            observer = Observer(session.store, session.settings, client, launch.begun, launch.user)

            async def work() -> None:
                snapshot = await self._watch(supervisor, observer, view)
                view.stop()
                await asyncio.to_thread(self._finish, client, supervisor, snapshot)

            await supervisor.run(work)
        return self.summary

    async def _watch(self, supervisor: Supervisor, observer: Observer, view: View) -> Snapshot:
        """Look again and again; return when, with ``--once``, nothing is left to wait for."""
        options = self.launch.options
        while True:
            snapshot = await asyncio.to_thread(observer.look)
            await self._show(snapshot, view)
            if options.once:
                if supervisor.has_finished("replay") and await asyncio.to_thread(observer.is_settled, snapshot):
                    return snapshot
                if snapshot.seconds > options.timeout:
                    raise CommandError(
                        f"not finished after {options.timeout:.0f} s: {snapshot.last_sequence + 1} windows committed, "
                        f"{snapshot.trained_sequence + 1} learnt; see {self.launch.folder / 'logs'}"
                    )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _show(self, snapshot: Snapshot, view: View) -> None:
        try:
            self.peak.see(await asyncio.to_thread(tree_memory, os.getpid()))
            view.show(snapshot)
            self._hint(snapshot, view)
        except Exception as error:  # noqa: BLE001 - what watches the stages must not end them
            if not self.troubled:
                self.troubled = True
                view.say("weir", f"the view failed and goes on: {type(error).__name__}: {error}")

    def _hint(self, snapshot: Snapshot, view: View) -> None:
        """Say once how to ask, when there is an answer."""
        if self.hinted or snapshot.first_answer_seconds is None:
            return
        self.hinted = True
        store = shlex.quote(os.path.relpath(self.launch.folder))
        where = "" if store == Store("weir-data").path("").rsplit("/", 1)[-1] else f" --store {store}"
        user = shlex.quote(self.launch.user or "USER")
        view.say("weir", f"answers after {snapshot.first_answer_seconds:.1f} s; try: weir query {user}{where}")

    def _finish(self, client: RetrievalClient, supervisor: Supervisor, snapshot: Snapshot) -> None:
        """Take the tour and sum up, while everything is still running."""
        session, user = self.launch.session, self.launch.user or ""
        asker = Asker(client, session.store)
        out = session.notes
        out.print()
        out.print(plain(f"weir query {user}", style="bold"))
        print_answer(out, asker.ask(user, _SHOWN))
        item = something_new(asker, user)
        out.print()
        out.print(plain(f"weir click {user} {item}", style="bold"))
        change = asker.click(session.settings.pipeline, user, item, _SHOWN, _CLICK_SECONDS)
        print_change(out, change)
        restarts = {child.spec.name: child.restarts for child in supervisor.children}
        self.peak.see(tree_memory(os.getpid()))
        seconds = time.monotonic() - self.launch.begun
        self.summary = summarise(
            session.store, session.settings, snapshot, change, restarts, peak_memory=self.peak.bytes, seconds=seconds
        )
        out.print()
        print_summary(out, self.summary, session.settings)
