"""`python -m fairlead.cli`: the `fairlead` command where its script is not on the path."""

from __future__ import annotations

from fairlead.cli import main

main()
