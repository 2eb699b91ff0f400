"""The host as a process: killed from outside, orphaned, replaced, closed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from fairlead.errors import BrokerClosed, HookHostUnavailable
from fairlead.hooks import Hooks, HookSettings
from fairlead.hooks.process import HostDied, HostProcess
from fairlead.hooks.wire import HostSetup, LoadScript, ResultRows, RunEnqueue
from fairlead.testing import ManualClock
from tests.hooks.scripts import KIND, QUEUE, enqueue, enqueue_calls

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfds")
SLOW = 'function on_enqueue(msg) for i = 1, 20000 do end return { fairness_key = "k-" .. msg.headers.n } end'
STUCK = 'function on_enqueue() string.find(("a"):rep(40), ("a?"):rep(40) .. ("a"):rep(40) .. "b") end'


def test_nothing_is_started_before_the_first_use(hooks: Hooks) -> None:
    hooks.set_script(QUEUE, "on_enqueue", KIND)
    hooks.set_config("a", "1")
    assert hooks.stats(QUEUE)[0].calls == 0
    assert hooks.pids() == []


@pytest.mark.parametrize("after", [0, 1, 100, 700])
def test_a_host_killed_from_outside_in_the_middle_of_a_batch_costs_no_result(
    after: int, hooks: Hooks
) -> None:
    enqueue(hooks, KIND)
    host = hooks._host
    assert host is not None
    killed = threading.Event()

    def kill() -> None:
        seen, number = 0, -1
        while seen < after and not killed.wait(0.0005):
            seen += host.running_call != number
            number = host.running_call
        os.kill(host.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    hooks.set_script(QUEUE, "on_enqueue", SLOW)
    killer.start()
    decisions = hooks.on_enqueue(QUEUE, "orders", enqueue_calls(1000))
    killed.set()
    killer.join()
    assert [(d.outcome, d.fairness_key) for d in decisions] == [("ran", f"k-{n}") for n in range(1000)]
    assert hooks.stats(QUEUE)[0].failures == 0
    assert [d.fairness_key for d in enqueue(hooks, KIND)] == ["k-0"]
    assert host.pid not in hooks.pids()


def test_results_from_before_a_death_count() -> None:
    host = HostProcess(HostSetup(10, 1 << 20, 60_000, 60_000, 1 << 30), kill_after_ms=60_000)
    try:
        host.await_ready()
        host.send(LoadScript(1, "on_enqueue", SLOW, ()))
        headers = [msgspec.msgpack.encode(call.headers) for call in enqueue_calls(5000)]
        answers = host.turn(RunEnqueue(1, "orders", 1, 3, 3, headers, [10] * 5000), {})
        rows = as_rows(next(answers))
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(HostDied):
            rows.extend(row for answer in answers for row in as_rows(answer))
        assert 0 < len(rows) < 5000
        assert [row[1] for row in rows] == [f"k-{n}" for n in range(len(rows))]
        assert host.running_call >= len(rows) - 1
    finally:
        host.close()


def test_the_guilty_call_is_found_and_the_rest_runs_in_another_host(hooks: Hooks) -> None:
    script = f'function on_enqueue(msg) if msg.headers.n == "777" then {STUCK[23:-4]} end return {{ fairness_key = "k-" .. msg.headers.n }} end'
    decisions = enqueue(hooks, script, enqueue_calls(1200))
    expected = [("ran", f"k-{n}") for n in range(1200)]
    expected[777] = ("failed", "default")
    assert [(d.outcome, d.fairness_key) for d in decisions] == expected


def test_scripts_and_configuration_are_restored_after_a_restart_of_the_host(hooks: Hooks) -> None:
    hooks.set_config("who", "acme")
    script = 'function on_enqueue() return { fairness_key = fila.get("who") } end'
    assert enqueue(hooks, script)[0].fairness_key == "acme"
    for _ in range(3):
        assert hooks._host is not None
        os.kill(hooks._host.pid, signal.SIGKILL)
        assert hooks.on_enqueue(QUEUE, "orders", enqueue_calls())[0].fairness_key == "acme"


def test_a_spare_killed_from_outside_is_replaced(hooks: Hooks) -> None:
    enqueue(hooks, KIND)
    for pid in hooks.pids():
        os.kill(pid, signal.SIGKILL)
    assert [d.fairness_key for d in hooks.on_enqueue(QUEUE, "orders", enqueue_calls(2))] == ["k-0", "k-1"]
    assert hooks.stats(QUEUE)[0].failures == 0


def test_more_scripts_than_the_host_keeps_states_for(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.hooks.hooks._MAX_STATES", 3)
    for _ in range(2):
        for queue_id in range(10, 20):
            script = f'function on_enqueue() return {{ fairness_key = "q{queue_id}" }} end'
            assert enqueue(hooks, script, queue_id=queue_id)[0].fairness_key == f"q{queue_id}"
    assert hooks._host is not None
    assert len(hooks._host.loaded) == 3


@linux
def test_the_host_can_open_no_file_and_leaves_no_core(hooks: Hooks) -> None:
    enqueue(hooks, KIND)
    limits = Path(f"/proc/{hooks.pids()[0]}/limits").read_text()
    soft = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()[1:]}
    assert (
        soft["Max open files"],
        soft["Max core file size"],
        soft["Max file size"],
        soft["Max processes"],
    ) == ("0", "0", "0", "0")
    assert soft["Max address space"] != "unlimited"


@linux
def test_close_leaves_nothing_running(hooks: Hooks) -> None:
    enqueue(hooks, KIND)
    watched = [os.pidfd_open(pid) for pid in hooks.pids()]
    hooks.close()
    hooks.close()
    assert hooks.pids() == []
    assert all(has_ended(pidfd, 0) for pidfd in watched)
    with pytest.raises(BrokerClosed):
        hooks.on_enqueue(QUEUE, "orders", enqueue_calls())


def test_close_ends_a_running_batch(clock: ManualClock) -> None:
    hooks = Hooks(HookSettings(kill_after_ms=600_000), clock)
    enqueue(hooks, KIND)
    host = hooks._host
    assert host is not None
    raised: list[BaseException] = []

    def work() -> None:
        try:
            enqueue(hooks, STUCK)
        except BrokerClosed as e:
            raised.append(e)

    thread = threading.Thread(target=work)
    host._mark[0] = -7
    thread.start()
    while host.running_call != 0:
        thread.join(0.001)
    hooks.close()
    thread.join()
    assert len(raised) == 1


ORPHANING = """
import threading
from fairlead.clock import SystemClock
from fairlead.hooks import OnEnqueueCall, Hooks, HookSettings
hooks = Hooks(HookSettings(kill_after_ms=600_000), SystemClock())
hooks.set_script(1, "on_enqueue", "function on_enqueue() return {} end")
hooks.on_enqueue(1, "q", [OnEnqueueCall({}, 1)])
hooks.set_script(1, "on_enqueue", '''%s''')
host = hooks._host
host._mark[0] = -7
threading.Thread(target=hooks.on_enqueue, args=(1, "q", [OnEnqueueCall({}, 1)]), daemon=True).start()
while host.running_call != 0 or len(hooks.pids()) < 2:
    threading.Event().wait(0.001)
print(*hooks.pids(), flush=True)
threading.Event().wait()
"""


@linux
def test_hosts_die_with_a_killed_broker_even_in_an_endless_call() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANING % STUCK], stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in broker.stdout.readline().split()]
        assert len(watched) == 2
        assert not any(has_ended(pidfd, 0) for pidfd in watched)
        broker.kill()
    assert all(has_ended(pidfd, 60_000) for pidfd in watched)


def test_hosts_survive_the_thread_that_first_used_them(hooks: Hooks) -> None:
    thread = threading.Thread(target=enqueue, args=(hooks, KIND))
    thread.start()
    thread.join()
    before = hooks._host
    enqueue(hooks, KIND)
    assert hooks._host is before


def test_a_host_that_does_not_start_means_defaults_and_is_tried_again(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("fairlead.hooks.process._BOOT", "raise SystemExit(3)")
        with pytest.raises(HookHostUnavailable):
            hooks.check(KIND, "on_enqueue")
        decisions = enqueue(hooks, KIND, enqueue_calls(4))
        assert [d.outcome for d in decisions] == ["failed"] * 3 + ["bypassed"]
        assert "does not start" in decisions[0].error
    clock.advance(ms=10_000)
    assert hooks.on_enqueue(QUEUE, "orders", enqueue_calls())[0].outcome == "ran"


def as_rows(answer: object) -> list[list[object]]:
    assert isinstance(answer, ResultRows)
    return answer.rows


def has_ended(pidfd: int, timeout_ms: int) -> bool:
    """True once the process is dead, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = bool(poll.poll(timeout_ms))
    if ended:
        os.close(pidfd)
    return ended
