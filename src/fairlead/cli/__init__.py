"""The command line. One module per group of commands; each acts on a server (`--addr`) or on a data directory
(`--data`).

Arguments, options and help come from the table of verbs (`from_table.py`), exit codes from the table of
errors. Written by hand are views, and the question that a destructive command asks. Start with `app.py`.
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
            # The parent process closed the stream. Take its number at once: a file that is opened later would
            # get the number, and with it the output.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character must not make the command fail.
            stream.reconfigure(errors="backslashreplace")
    # gRPC writes to stderr without a log; for a failed handshake it would print text that the peer chose.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # A command prints its errors itself.
    logging.getLogger("fairlead").addHandler(logging.NullHandler())
    try:
        from fairlead.cli.app import app
    except ModuleNotFoundError as missing:
        sys.exit(missing_package_text(missing))
    except KeyboardInterrupt:
        sys.exit(130)  # The code of the root command, which is not imported yet.
    try:
        app(prog_name="fairlead")
    except KeyboardInterrupt:
        sys.exit(130)


def missing_package_text(package: ModuleNotFoundError) -> str:
    return f"the command line needs {package.name}; install it with: pip install 'fairlead[server]'"
