"""The command line: one file per group of commands, against a server (`--addr`) or a data directory
(`--data`).

Arguments, options and help come from the table of verbs (`from_table.py`), exit codes from the table of errors;
by hand are only views, and what a destructive command says it will touch before it asks. Start with `app.py`.
"""

from __future__ import annotations


def main() -> None:
    """The `fairlead` command."""
    import logging
    import os
    import sys
    from io import TextIOWrapper

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Closed by whoever started us. Taken at once, or a file that is opened later gets its number, and
            # what is printed.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal that cannot show a character is no reason to fail
    # gRPC writes to stderr past every log, in its own words and, of a failed handshake, in those of a
    # stranger.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logging.getLogger("fairlead").addHandler(logging.NullHandler())  # a command says for itself what is wrong
    try:
        from fairlead.cli.app import app
    except ModuleNotFoundError as missing:
        sys.exit(missing_package_text(missing))
    except KeyboardInterrupt:
        sys.exit(130)  # as the root command would, once it is there
    try:
        app(prog_name="fairlead")
    except KeyboardInterrupt:
        sys.exit(130)


def missing_package_text(package: ModuleNotFoundError) -> str:
    return f"the command line needs {package.name}; install it with: pip install 'fairlead[server]'"
