"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.errors import show_tracebacks

__all__ = ["Assign", "ConfigFile", "Debug", "JsonOutput", "StoreUrl", "Target", "Wanted"]

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
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        help="Folder of windows and bundles: a path or fsspec URL. [env: WEIR_STORE]",
        show_default="weir-data",
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
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show tracebacks and log at DEBUG level.", callback=show_tracebacks, is_eager=True),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="HOST:PORT", help="The server to ask.", show_default="serving.host:serving.port"),
]
Wanted = Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="Number of items wanted.")]
