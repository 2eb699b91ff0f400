"""The root command."""

from __future__ import annotations

import typer

app = typer.Typer(name="fairlead", no_args_is_help=True)
