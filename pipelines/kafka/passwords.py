"""Passwords that are in no setting: a file has them, or an environment variable."""

import os
from pathlib import Path

from weir.pipelines.kafka.errors import KafkaSettingsError

__all__ = ["password_of"]


def password_of(who: str, file: str | None, setting: str, variable: str) -> str:
    """Return the password of `who`, from the file that the `setting` names, or else from the variable.

    Raises
    ------
    KafkaSettingsError
        Where the file cannot be read, or neither is there.
    """
    if file is not None:
        try:
            return Path(file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise KafkaSettingsError(f"{setting}: {error}") from error
    if not (password := os.environ.get(variable)):
        raise KafkaSettingsError(f"{who} has no password: set {setting} or the environment variable {variable}")
    return password
