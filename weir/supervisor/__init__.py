"""The local supervisor: every stage as a process of its own on one machine, restarted, watched and stopped together."""

from weir.supervisor.child import Child, ChildSpec, Death
from weir.supervisor.parent import die_with_parent
from weir.supervisor.supervisor import GaveUpError, Supervisor

__all__ = ["Child", "ChildSpec", "Death", "GaveUpError", "Supervisor", "die_with_parent"]
