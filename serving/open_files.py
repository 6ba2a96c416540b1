"""The limit of open files of the process; each connection counts as one."""

import logging
import resource

__all__ = ["allow_files"]

log = logging.getLogger(__name__)


def allow_files(needed: int) -> None:
    """Raise the soft limit of open files as far as needed and allowed; log a warning if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < needed:
        log.warning("%d open files are allowed, serving.max_connections may take %d: raise `ulimit -n`", wanted, needed)
