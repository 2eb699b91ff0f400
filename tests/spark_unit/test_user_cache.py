from __future__ import annotations

import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead.errors import SparkNotReady
from fairlead.spark.runtime import user_cache as module
from fairlead.spark.runtime.user_cache import digest, kept_file, private_directory, user_cache


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_where_caches_are_and_only_for_its_user(tmp_path: Path) -> None:
    found = user_cache({"XDG_CACHE_HOME": str(tmp_path / "x y")})
    assert (found, mode(found)) == (tmp_path / "x y" / "fairlead", 0o700)
    found = user_cache({"HOME": str(tmp_path), "XDG_CACHE_HOME": "relative"})
    assert found == tmp_path / ".cache" / "fairlead"


def test_without_a_home_it_is_among_the_temporary_files_under_the_users_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert user_cache({"HOME": "/nonexistent"}) == tmp_path / f"fairlead-{os.geteuid()}"


def test_one_that_others_could_enter_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "fairlead").mkdir()
    (tmp_path / "fairlead").chmod(0o777)
    assert mode(user_cache({"XDG_CACHE_HOME": str(tmp_path)})) == 0o700


def test_a_link_or_the_directory_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is not a directory"):
        private_directory(tmp_path / "link")
    mine = tmp_path / "elsewhere"
    monkeypatch.setattr(module.os, "geteuid", lambda: mine.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to user"):
        private_directory(mine)


def test_where_none_can_be_made_the_error_names_every_place_and_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(SparkNotReady) as refused:
        user_cache({"XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": "/nonexistent"})
    assert refused.value.found.count(str(tmp_path / "file")) == 2
    assert "XDG_CACHE_HOME" in refused.value.advice


def test_a_kept_file_that_is_right_is_not_written_again(tmp_path: Path) -> None:
    path = kept_file(tmp_path, "settings", "a = 1\n")
    before = path.stat()
    kept_file(tmp_path, "settings", "a = 1\n")
    assert path.stat().st_ino == before.st_ino
    kept_file(tmp_path, "settings", "a = 2\n")
    assert (path.read_text(), mode(path)) == ("a = 2\n", 0o600)
    path.chmod(0o644)
    assert mode(kept_file(tmp_path, "settings", "a = 2\n")) == 0o600


def test_many_at_once_leave_one_whole_file_and_no_drafts(tmp_path: Path) -> None:
    content = "x" * 100_000
    with ThreadPoolExecutor(8) as pool:
        paths = list(
            pool.map(
                lambda _: kept_file(private_directory(tmp_path / "d"), "f", content).read_text() == content,
                range(40),
            )
        )
    assert all(paths)
    assert os.listdir(tmp_path / "d") == ["f"]


def test_a_digest_tells_apart_what_only_differs_in_where_its_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc")
