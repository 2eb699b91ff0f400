"""A server in this process, with doors that note what is done to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fairlead
from fairlead import Broker
from fairlead.config import LimitSettings, ServerSettings
from fairlead.errors import AddressUnavailable, BrokerClosed, HookHostUnavailable
from fairlead.server.doors import Door
from fairlead.server.limits import Limits
from fairlead.server.serve import Server


def nothing() -> None: ...


class NotingDoor:
    def __init__(
        self,
        name: str,
        notes: list[str],
        *,
        on_start: Callable[[], None] = nothing,
        on_stop: Callable[[], None] = nothing,
    ) -> None:
        self.name = name
        self.address = f"{name}:0"
        self._notes = notes
        self._on_start = on_start
        self._on_stop = on_stop

    def start(self) -> None:
        self._notes.append(f"start {self.name}")
        self._on_start()
        self.address = f"{self.name}:1"

    def drain(self) -> None:
        self._notes.append(f"drain {self.name}")

    def stop(self) -> None:
        self._notes.append(f"stop {self.name}")
        self._on_stop()


class Setting:
    """A server whose doors the test chooses, and what was done to them."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.notes: list[str] = []
        self.doors: list[Door] = []
        self.broker: Broker | None = None

    def server(self) -> Server:
        off = {"resp": "off", "flight": "127.0.0.1:0", "grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
        settings = ServerSettings(
            data=self.data, durability="os", limits=LimitSettings(drain_grace_ms=0), **off
        )  # type: ignore[arg-type]
        return Server(settings, self._make)

    def _make(self, broker: Broker, settings: ServerSettings, limits: Limits) -> list[Door]:
        self.broker = broker
        return self.doors

    def assert_closed(self) -> None:
        """The directory is free again: this process could not open it twice."""
        assert self.broker is not None
        with pytest.raises(BrokerClosed):
            self.broker.intents()
        fairlead.open(self.data).close()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path / "data")


def test_all_doors_drain_before_the_first_is_stopped_and_the_broker_outlives_them(setting: Setting) -> None:
    def look() -> None:
        assert setting.broker is not None
        setting.broker.intents()
        setting.notes.append("the broker works")

    setting.doors = [NotingDoor(name, setting.notes, on_stop=look) for name in ("flight", "http")]
    server = setting.server()
    server.start()
    assert server.addresses == {"flight": "flight:1", "http": "http:1"}
    server.tell_to_stop()
    server.wait()
    server.stop()
    assert setting.notes == [
        "start flight",
        "start http",
        "drain flight",
        "drain http",
        "stop flight",
        "the broker works",
        "stop http",
        "the broker works",
    ]
    setting.assert_closed()


@pytest.mark.parametrize(
    ("raised", "expected", "what"),
    [
        (
            RuntimeError("no more room"),
            AddressUnavailable,
            r"expected to listen on grpc:0 \(grpc\), got: no more room",
        ),
        (HookHostUnavailable("no hosts"), HookHostUnavailable, "no hosts"),
    ],
)
def test_a_door_that_does_not_open_leaves_nothing_running(
    setting: Setting, raised: Exception, expected: type[Exception], what: str
) -> None:
    def fail() -> None:
        raise raised

    setting.doors = [
        NotingDoor("flight", setting.notes),
        NotingDoor("grpc", setting.notes, on_start=fail),
        NotingDoor("http", setting.notes),
    ]
    with pytest.raises(expected, match=what):
        setting.server().start()
    assert setting.notes == ["start flight", "start grpc", "stop flight"]
    setting.assert_closed()


def test_a_door_that_fails_to_stop_keeps_neither_the_others_nor_the_broker_open(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError

    never = threading.Event()
    setting.doors = [
        NotingDoor("flight", setting.notes, on_stop=fail),
        NotingDoor("grpc", setting.notes, on_stop=lambda: never.wait() and None),
        NotingDoor("http", setting.notes),
    ]
    server = setting.server()
    server.start()
    with caplog.at_level(logging.WARNING):
        server.stop()
    never.set()
    assert setting.notes[-3:] == ["stop flight", "stop grpc", "stop http"]
    assert [record.message for record in caplog.records] == [
        "a door did not stop cleanly",
        "a door is left behind",
    ]
    setting.assert_closed()


def test_waiting_ends_with_what_has_stopped_the_broker(setting: Setting) -> None:
    setting.doors = [NotingDoor("flight", setting.notes)]
    server = setting.server()
    server.start()
    assert setting.broker is not None
    setting.broker.close()
    with pytest.raises(BrokerClosed):
        server.wait()
    server.stop()


def test_a_signal_that_means_nothing_here_wakes_the_server_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.server.serve.HEALTH_CHECK_S", 3600.0)
    setting.doors = [NotingDoor("flight", setting.notes)]
    server = setting.server()
    server.start()
    assert setting.broker is not None
    looks, ask = threading.Semaphore(0), setting.broker.intents
    monkeypatch.setattr(setting.broker, "intents", lambda: (looks.release(), ask())[1])
    server.wakes.send(b"\x1f")
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    assert looks.acquire(timeout=60)
    assert looks.acquire(timeout=60)
    server.tell_to_stop()
    waiting.join()
    server.stop()
    assert not looks.acquire(blocking=False)
