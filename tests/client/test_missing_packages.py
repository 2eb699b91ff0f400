from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_HIREDIS = "import sys; sys.modules['hiredis'] = None; import fairlead; "


@pytest.mark.parametrize(
    "code",
    [
        "fairlead.connect('127.0.0.1:1')",
        "import asyncio, fairlead.aio; asyncio.run(fairlead.aio.connect('127.0.0.1:1'))",
    ],
)
def test_a_client_without_its_package_says_how_to_get_it(code: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_HIREDIS + code], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert (
        ran.stderr.splitlines()[-1]
        == "ModuleNotFoundError: a client needs hiredis; install it with: pip install 'fairlead[client]'"
    )
