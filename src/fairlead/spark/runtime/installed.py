"""Checks the packages that Spark needs by their metadata, without importing them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata

from fairlead.errors import SparkNotReady

INSTALL = "pip install 'fairlead[spark]'"

#: The first version that works, and the first that does not, as in pyproject.toml.
NEEDED: Mapping[str, tuple[str, str | None]] = {
    "pyspark": ("4.3", "4.4"),
    "pandas": ("2.2", "3"),
    "hiredis": ("3", None),
    "pyarrow": ("20", None),
}


def found_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def lacking(needed: Mapping[str, tuple[str, str | None]] = NEEDED) -> list[str]:
    """Describe packages that are missing or of an unsupported version; empty if Spark can be used."""
    found = []
    for package, (least, below) in needed.items():
        version = found_version(package)
        wanted = f"{package} {least} or later" + (f", before {below}" if below else "")
        if version is None:
            found.append(f"no {wanted}")
        elif _order(version) < _order(least) or (below is not None and _order(version) >= _order(below)):
            found.append(f"{package} {version} instead of {wanted}")
    return found


def require_packages() -> None:
    """Raises `SparkNotReady` with the command that installs the packages."""
    missing = lacking()
    if missing:
        raise SparkNotReady(
            "the packages of fairlead[spark] for this Python", "; ".join(missing), f"Install them: {INSTALL}"
        )


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
