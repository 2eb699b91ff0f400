"""What importing a part of fairlead brings with it, seen in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENGINE = (
    "fairlead.engine",
    "fairlead.records",
    "fairlead.schedule",
    "fairlead.store",
    "fairlead.hooks",
    "fairlead.server",
    "rocksdict",
    "lupa",
)


def loaded_by(module: str) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(told.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "fairlead.verbs",
        "fairlead.surface",
        "fairlead.aio",
        "fairlead.client.flight.bulk",
        "fairlead.client.client",
        "fairlead.client.async_client",
    ],
)
def test_a_client_and_the_table_of_verbs_bring_no_engine(module: str) -> None:
    loaded = loaded_by(module)
    assert module in loaded
    assert [name for name in loaded if name.startswith(ENGINE)] == []
