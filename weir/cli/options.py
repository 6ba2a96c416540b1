"""Options that several commands share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.session import Session, open_session

__all__ = ["Assign", "ConfigFile", "JsonOutput", "StoreOptions", "Target", "Variant", "Wanted"]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="WEIR_CONFIG",
        help="YAML file of settings; see `weir config show`.",
        show_default="none",
    ),
]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one setting, such as trainer.batch_size=256; may be repeated.",
        show_default="none",
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="HOST:PORT", help="Server to query.", show_default="serving.host:serving.port"),
]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant", metavar="NAME", help="The variant of trainer.variants that is meant.", show_default="main"
    ),
]
Wanted = Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="Number of items to return.")]


@dataclass(frozen=True)
class StoreOptions:
    """The options of every command that uses a store: where it is, and where the settings come from."""

    config: ConfigFile = None
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            help="Folder of windows and bundles: a path or fsspec URL. [env: WEIR_STORE]",
            show_default="weir-data",
        ),
    ] = None
    assign: Assign = None

    def open(self, flags: Mapping[str, Any] | None = None, **ways: Any) -> Session:
        """Return the session of the command; for `flags` and `ways` see `open_session`."""
        return open_session(self.config, self.store, self.assign, flags, **ways)
