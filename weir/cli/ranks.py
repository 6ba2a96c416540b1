"""Commands that run as several ranks of one training run, on this machine or on several nodes."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Mapping
from typing import Any

import typer

from weir.cli.command import DEBUGGING
from weir.cli.nodes import Nodes
from weir.cli.options import StoreOptions
from weir.errors import CommandError

__all__ = ["arguments_of", "is_first_rank", "run_in_ranks"]


def arguments_of(options: StoreOptions, store: str) -> list[str]:
    """Return what tells a rank the options of the command that starts it."""
    found = ["--debug"] if DEBUGGING.get() else []
    for name, value in (("--config", options.config), ("--store", store)):
        found += [name, str(value)] if value is not None else []
    for pair in options.assign or ():
        found += ["--set", pair]
    return found


def is_first_rank() -> bool:
    """Say whether this process is the first rank, or the only one; a rank ends with the process that started it."""
    if "RANK" in os.environ:
        from weir.up.supervisor.parent import die_with_parent

        # A rank without its launcher would wait for its peers forever.
        die_with_parent(signal.SIGKILL)
    return os.environ.get("RANK", "0") == "0"


def run_in_ranks(ranks: int, restarts: int, command: list[str], nodes: Nodes | None = None) -> None:
    """Run a command of weir in so many processes, as torchrun does: restart all when one fails, stop with them.

    With several nodes each runs as many, and all start again with those that are there when one is lost or comes.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="weir-ranks-") as folder:
        meeting = _alone(folder) if nodes is None else _together(nodes)
        # The launcher would share its store with the ranks by a port, or keep there where lost ranks were.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        launch = LaunchConfig(
            nproc_per_node=ranks,
            rdzv_backend="c10d",
            max_restarts=restarts,
            monitor_interval=0.2,
            # Ranks write to the terminal. Left alone the launcher makes a folder for each, and leaves them there.
            logs_specs=DefaultLogsSpecs(f"{folder}/logs"),
            **meeting,
        )
        try:
            elastic_launch(launch, sys.executable)("-m", "weir", *command)
        except SignalException as stopped:
            raise typer.Exit(0 if stopped.sigval == signal.SIGTERM else 130) from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            raise CommandError(f"rank {rank} {how}, after {restarts} restarts; its last lines are above") from error
        except RendezvousError as error:
            where = meeting["rdzv_endpoint"]
            why = "nobody answers there" if isinstance(error, RendezvousConnectionError) else error
            raise CommandError(f"this machine does not meet the others at {where}: {why}") from error


def _together(nodes: Nodes) -> Mapping[str, Any]:
    """Return the settings by which launchers of several nodes find each other."""
    nodes.choose_interface()
    return nodes.meeting()


def _alone(folder: str) -> Mapping[str, Any]:
    """Return the settings by which a single launcher and its ranks meet, in files of a private folder.

    torchrun itself opens a port on all interfaces, without authentication.
    """
    from weir.trainer.ranks.meeting import RENDEZVOUS

    os.environ[RENDEZVOUS] = f"{folder}/ranks"
    return {
        "min_nodes": 1,
        "max_nodes": 1,
        "run_id": str(uuid.uuid4()),
        "rdzv_endpoint": f"{folder}/launcher",
        # Nobody waits for the signs of life, and each would make the file longer.
        "rdzv_configs": {"store_type": "file", "keep_alive_interval": 86400},
        "local_addr": "127.0.0.1",
    }
