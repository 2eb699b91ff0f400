"""A whole program for Redis Streams in another language, with the client that Debian has for it, unmodified; and the same
program at a real Redis.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead.server.resp.door import RespDoor
from tests.doors.resp.streams_program import redis_server
from tests.doors.resp.wire import Wire

_PROGRAM = Path(__file__).with_name("streams_program.pl")


@pytest.fixture(scope="module")
def perl() -> str:
    found = shutil.which("perl")
    if found is None or subprocess.run([found, "-MRedis", "-e", "1"], capture_output=True).returncode:
        pytest.skip("the Redis client of Perl is not installed (Debian: apt-get install libredis-perl)")
    return found


def test_a_program_in_perl_works_as_it_is(perl: str, door: RespDoor) -> None:
    assert _run(perl, door.address, left=0) == _EXPECTED
    wire = Wire(door.address)
    wire.ask("FL.DELETE_QUEUE", "in-perl")
    wire.close()


def test_the_program_in_perl_works_at_a_redis(perl: str, tmp_path: Path) -> None:
    """Which keeps what is acknowledged."""
    with redis_server(tmp_path) as address:
        assert _run(perl, address, left=100) == _EXPECTED


#: Each entry once, but for the one that is deleted.
_EXPECTED = [*range(99), 100]


def _run(perl: str, address: str, *, left: int) -> list[int]:
    ended = subprocess.run(
        [perl, str(_PROGRAM), address, "in-perl", str(left)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return sorted(map(int, ended.stdout.split()))
