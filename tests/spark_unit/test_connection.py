from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.errors import InvalidRequest, ServerUnreachable, TlsFailed
from fairlead.spark import connection
from fairlead.spark.connection import client_for, forget_clients, is_loopback
from fairlead.spark.options import SparkOptions, read_options
from fairlead.testing import run_server
from fairlead.testing.server import free_ports
from tests.security.certificates import Files


@pytest.fixture(autouse=True)
def _no_clients_left():
    yield
    forget_clients()


def options(endpoint: str, **given: str) -> SparkOptions:
    return read_options({"endpoint": endpoint, "queue": "orders"} | given)


def test_all_of_a_process_share_a_client_and_ways_that_differ_do_not(tmp_path: Path):
    with run_server(tmp_path) as server:
        first = client_for(options(server.address))
        assert client_for(options(server.address, numPartitions="3")) is first
        assert client_for(options(server.address, timeout="5s")) is not first
        assert first.queues() == []


def test_a_broker_that_cannot_be_reached_is_named_when_the_time_for_it_is_over():
    (port,) = free_ports(1)
    with pytest.raises(ServerUnreachable, match=f"127.0.0.1:{port}"):
        client_for(options(f"127.0.0.1:{port}", timeout="50ms"))


def test_a_key_is_read_where_the_option_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str | None] = []
    monkeypatch.setattr(
        "fairlead.client.client.connect", lambda address, **more: said.append(more["api_key"]) or object()
    )
    file = tmp_path / "key"
    file.write_text("fl_from_a_file\n")
    monkeypatch.setenv("THE_KEY", "fl_from_a_variable")
    client_for(options("127.0.0.1:1", apiKeyFile=str(file)))
    client_for(options("127.0.0.1:1", apiKeyEnv="THE_KEY"))
    client_for(options("127.0.0.1:1"))
    file.write_text("fl_renewed")
    client_for(options("127.0.0.1:1", apiKeyFile=str(file)))
    connection._clients.clear()
    assert said == ["fl_from_a_file", "fl_from_a_variable", None, "fl_renewed"]


def test_a_key_that_is_not_there_is_told_with_the_host_that_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(InvalidRequest, match=r"apiKeyEnv.*host"):
        client_for(options("127.0.0.1:1", apiKeyEnv="NO_KEY"))
    with pytest.raises(InvalidRequest, match=r"apiKeyFile.*host"):
        client_for(options("127.0.0.1:1", apiKeyFile=str(tmp_path / "none")))
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidRequest, match=r"apiKeyFile.*empty"):
        client_for(options("127.0.0.1:1", apiKeyFile=str(tmp_path / "empty")))


def test_certificates_are_shown_and_asked_for_as_the_options_say(tmp_path: Path):
    files = Files(tmp_path / "tls")
    files.server(hosts=["broker.example"])
    files.client()
    given = {"tls.ca": str(files.ca), "tls.serverName": "broker.example"}
    shown = {"tls.cert": str(files.cert("client")), "tls.key": str(files.key("client"))}
    with run_server(tmp_path / "data", settings=files.settings(mutual=True)) as server:
        assert client_for(options(server.address, **given, **shown)).queues() == []
        for lacking in ({}, given, {"tls.ca": given["tls.ca"], **shown}):
            with pytest.raises(TlsFailed):
                client_for(options(server.address, **lacking, timeout="1s"))


@pytest.mark.parametrize(
    ("endpoint", "loopback"),
    [
        ("127.0.0.1:5554", True),
        ("[::1]:5554", True),
        ("localhost:1", True),
        ("10.0.0.7:1", False),
        ("broker:1", False),
    ],
)
def test_loopback_is_told_from_the_rest(endpoint: str, loopback: bool):
    assert is_loopback(endpoint) is loopback


def warnings_of(
    endpoint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    here: str,
    executor: bool,
) -> list[str]:
    caplog.set_level(logging.WARNING, "fairlead.spark")
    given = options(endpoint)
    monkeypatch.setattr(connection.platform, "node", lambda: here)
    monkeypatch.setattr("fairlead.client.client.connect", lambda address, **more: object())
    if executor:
        monkeypatch.setenv("SPARK_EXECUTOR_DIRS", "/tmp/somewhere")
    client_for(given)
    client_for(given)
    connection._clients.clear()
    return [record.getMessage() for record in caplog.records]


def test_a_loopback_endpoint_on_an_executor_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    (warning,) = warnings_of("127.0.0.1:5554", caplog, monkeypatch, here="worker-3", executor=False)
    assert "127.0.0.1:5554" in warning
    assert "worker-3" in warning


def test_a_loopback_endpoint_in_a_cluster_on_one_machine_is_warned_about_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    assert (
        len(warnings_of("localhost:5554", caplog, monkeypatch, here=os.uname().nodename, executor=True)) == 1
    )


@pytest.mark.parametrize(("endpoint", "executor"), [("127.0.0.1:5554", False), ("10.0.0.7:5554", True)])
def test_nothing_is_said_where_the_endpoint_is_right(
    endpoint: str, executor: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    assert warnings_of(endpoint, caplog, monkeypatch, here=os.uname().nodename, executor=executor) == []


def test_a_process_with_a_client_and_a_heartbeat_ends_when_it_wants_to(tmp_path: Path):
    program = """
import sys
from fairlead.spark.connection import client_for
from fairlead.spark.data_source.source import FairleadDataSource
source = FairleadDataSource({"endpoint": sys.argv[1], "queue": "orders", "consumer": "etl"})
client_for(source.checked).create_queue("orders")
print(source.streamReader(source.schema()).initialOffset())
sys.exit(3)
"""
    with run_server(tmp_path) as server:
        ran = subprocess.run(
            [sys.executable, "-c", program, server.address],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout.strip() == "{'consumer': 'etl', 'queue': 'orders', 'number': 0, 'initial': True}"


def test_what_every_session_imports_brings_neither_arrow_nor_a_client_with_it():
    check = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_fairlead; "
        "print(sorted(name for name in set(sys.modules) - before if name.split('.')[0] in ('pyarrow', 'grpc', 'fairlead', 'pandas')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.strip() == "[]"


def test_the_source_that_spark_finds_by_itself_is_the_one_that_is_registered_by_hand():
    from fairlead.spark.data_source.source import FairleadDataSource
    from pyspark_fairlead import DefaultSource

    assert DefaultSource.name() == FairleadDataSource.name() == "fairlead"
    assert isinstance(DefaultSource(options={"view": "dead"}), FairleadDataSource)
