"""Commands that run as several ranks of one training run on this machine."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import os
import signal
import sys

import typer

from weir.cli.command import DEBUGGING
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


def run_in_ranks(ranks: int, restarts: int, command: list[str]) -> None:
    """Run a command of weir in so many processes, as torchrun does: restart all when one fails, stop with them.

    The launcher and the ranks meet in files of a private folder: torchrun itself opens a port on all interfaces,
    without authentication.
    """
    import tempfile
    import uuid

    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from trainer.ranks.workers import RENDEZVOUS

    with tempfile.TemporaryDirectory(prefix="weir-ranks-") as folder:
        os.environ[RENDEZVOUS] = f"{folder}/ranks"
        # The launcher would open a port to share its store with the ranks.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint=f"{folder}/launcher",
            # Nobody waits for the heartbeats, and each would make the file longer.
            rdzv_configs={"store_type": "file", "keep_alive_interval": 86400},
            local_addr="127.0.0.1",
            max_restarts=restarts,
            monitor_interval=0.2,
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
