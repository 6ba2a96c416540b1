"""A planner whose exports of all items are made beside the stream, and end when a test says so."""

import threading
from dataclasses import dataclass, field

from weir.contracts import BundleLog, BundleManifest, Store
from weir.trainer.export import export_bundle
from weir.trainer.export.content import Content
from weir.trainer.export.onnx_models import AwaitedError
from weir.trainer.export.plan import Complete, Delta
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import RecentCases
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["HeldKeeper", "export_or_none"]


@dataclass
class HeldKeeper(ExportPlanner):
    """Drafts nothing of what it is to make before `going` is set."""

    beside: bool = True
    large: int = 1
    going: threading.Event = field(default_factory=threading.Event)

    def draft_whole(self, log: BundleLog, content: Content) -> Complete | Delta:
        """Draft it, but later."""
        assert self.going.wait(60)
        return super().draft_whole(log, content)

    def let_go(self) -> None:
        """Wait for the end of what is being made, if anything is."""
        self.going.set()
        if self.making is not None:
            self.making.wait()


def export_or_none(
    store: Store, state: TrainerState, recent: RecentCases, planner: HeldKeeper
) -> BundleManifest | None:
    """Export, or publish what was being made; return None where that goes on beside the stream."""
    if planner.making is None:
        planner.going.clear()
    else:
        planner.let_go()
    try:
        return export_bundle(store, state, recent, planner=planner)
    except AwaitedError:
        return None
