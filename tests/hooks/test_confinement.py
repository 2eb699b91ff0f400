"""What a hook host can reach once Lua no longer confines it: tried in a real host by `escapes.py`."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import HookHostUnavailable
from fairlead.hooks import Hooks, HookSettings, confine, process, seccomp
from fairlead.hooks.process import HostDied, HostProcess
from fairlead.hooks.wire import CheckScript, HostSetup, ScriptChecked
from fairlead.testing import ManualClock
from tests.hooks.scripts import KIND, enqueue

linux = pytest.mark.skipif(sys.platform != "linux", reason="the attempts are Linux system calls")
ALL = [layer.name for layer in confine._LAYERS]
EXIT_CODE = 42
#: As in `escapes.py`, which is imported in the host's process.
LEFT_OPEN = 77
SECRET = "the broker's own"

# The result of an attempt under the filter alone, and under Landlock alone: the version that
# refuses it, and how. None: Landlock does not handle it.
ATTEMPTS: dict[str, tuple[str, tuple[int, str] | None]] = {
    "read_a_file": ("EPERM", (1, "EACCES")),
    "write_a_file": ("EPERM", (1, "EACCES")),
    "list_a_directory": ("EPERM", (1, "EACCES")),
    "ask_whether_a_file_exists": ("EPERM", None),
    "remove_a_file": ("EPERM", (1, "EACCES")),
    "connect_to_loopback": ("SIGSYS", (4, "EACCES")),
    "listen_on_loopback": ("SIGSYS", (4, "EACCES")),
    "send_a_datagram": ("SIGSYS", None),
    "open_a_local_socket": ("SIGSYS", None),
    "ask_the_kernel_about_networks": ("SIGSYS", None),
    "share_memory_with_others": ("EPERM", None),
    "watch_files": ("EPERM", None),
    "copy_a_descriptor": ("EPERM", None),
    "see_where_memory_is": ("EPERM", (1, "EACCES")),
    "find_other_processes": ("EPERM", (1, "EACCES")),
    "become_more_important": ("EPERM", None),
    "choose_a_processor": ("EPERM", None),
    "change_who_it_is": ("EPERM", None),
    "read_anothers_memory": ("EPERM", (1, "EACCES")),
    "read_anothers_environment": ("EPERM", (1, "EACCES")),
    "read_anothers_memory_by_system_call": ("SIGSYS", (1, "EPERM")),
    "make_a_file_in_memory": ("EPERM", None),
    "set_a_limit": ("EPERM", None),
    "outlive_the_broker": ("EPERM", None),
    "map_executable_memory": ("EPERM", None),
    "make_memory_executable": ("EPERM", None),
    "run_machine_code_in_memory_that_was_executable": ("SIGSEGV", None),
    "fork": ("SIGSYS", None),
    "start_a_thread": ("SIGSYS", None),
    "trace_another": ("SIGSYS", (1, "EPERM")),
    "kill_another": ("SIGSYS", (6, "EPERM")),
    "become_another_program": ("SIGSYS", (1, "EACCES")),
    "make_a_namespace": ("SIGSYS", None),
}
BY_FILTER = {attempt: outcome for attempt, (outcome, _) in ATTEMPTS.items()}
VICTIM = """
import ctypes, sys
secret = ctypes.create_string_buffer(sys.argv[1].encode())
allow_any_tracer = ctypes.c_ulong(-1)
ctypes.CDLL(None).prctl(0x59616d61, allow_any_tracer, 0, 0, 0)
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Something to attack: a file, a listening port, and a process that stands for the broker."""
    file = tmp_path / "file"
    file.write_text(SECRET)
    command = [sys.executable, "-c", VICTIM, SECRET]
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"SECRET": SECRET}, text=True
        ) as victim,
    ):
        assert victim.stdout is not None
        yield {
            "file": str(file),
            "port": door.getsockname()[1],
            "pid": victim.pid,
            "address": int(victim.stdout.readline()),
        }
        victim.kill()


@contextmanager
def intruder(layers: list[str] | None) -> Iterator[HostProcess]:
    """A host under these layers only, which tries what it is told. None: under no layer."""
    arming = f"\nsys.path.append({str(Path(__file__).parent)!r})\nimport escapes\nescapes.arm({layers!r})"
    with booted(arming):
        host = HostProcess(HostSetup(10, 1 << 20, 50, 60_000, 1 << 30), kill_after_ms=60_000)
    try:
        host.await_ready()
        yield host
    finally:
        host.close()


@contextmanager
def booted(also: str) -> Iterator[None]:
    """Hosts started in this block also run this code before they begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_BOOT", process._BOOT.replace("\nmain()\n", f"\n{also}\nmain()\n"))
        yield


def tried(host: HostProcess, attempt: str, target: dict[str, Any] | None = None) -> tuple[str, str]:
    """How the attempt ended, "done" or the name of an error or signal, and its result."""
    try:
        answer = next(
            host.turn(CheckScript("on_enqueue", json.dumps({**(target or {}), "attempt": attempt})), {})
        )
    except HostDied:
        code = host._process.returncode
        return ("done" if code == EXIT_CODE else signal.Signals(-code).name), ""
    assert isinstance(answer, ScriptChecked)
    return ("done", answer.detail) if answer.status == 0 else (answer.detail, "")


def all_tried(layers: list[str] | None, target: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """How each attempt ended, and its result. After an attempt that ends the host, another host continues."""
    ended, came = {}, {}
    left = list(ATTEMPTS)
    while left:
        with intruder(layers) as host:
            while left and host.alive:
                attempt = left.pop(0)
                ended[attempt], came[attempt] = tried(host, attempt, target)
    return ended, came


def held_by(layers: list[str] | None) -> confine.Confinement:
    with intruder(layers) as host:
        return host.confinement


@linux
def test_every_attempt_succeeds_in_an_unconfined_host(target: dict[str, Any]) -> None:
    ended, came = all_tried(None, target)
    assert ended == dict.fromkeys(ATTEMPTS, "done")
    assert all(SECRET in came[attempt] for attempt in ATTEMPTS if attempt.startswith("read_"))
    assert came["run_machine_code_in_memory_that_was_executable"] == "42"


@linux
def test_no_attempt_succeeds_in_a_confined_host(target: dict[str, Any]) -> None:
    held = held_by(ALL)
    assert held == confine.available()
    if held.filtered:
        assert all_tried(ALL, target)[0] == BY_FILTER
        os.kill(target["pid"], 0)
    else:
        assert held.missing[0].startswith("seccomp (")


@linux
def test_the_filter_of_system_calls_is_enough(target: dict[str, Any]) -> None:
    layers = ["seccomp", "no-new-privs"]
    if confine.available().filtered:
        assert all_tried(layers, target)[0] == BY_FILTER
    else:
        assert [missing.partition(" (")[0] for missing in held_by(layers).missing] == ["seccomp"]


@linux
def test_landlock_alone_keeps_files_and_other_processes_out_of_reach(target: dict[str, Any]) -> None:
    layers = ["landlock", "no-new-privs"]
    if "landlock" in confine.available().by:
        version = confine._ask_landlock()
        expected = {
            attempt: how
            for attempt, (_, landlock) in ATTEMPTS.items()
            if landlock
            for since, how in [landlock]
            if version >= since
        }
        assert "read_a_file" in expected
        ended, _ = all_tried(layers, target)
        assert {attempt: ended[attempt] for attempt in expected} == expected
    else:
        assert [missing.partition(" (")[0] for missing in held_by(layers).missing] == ["landlock"]


@linux
def test_a_host_has_its_two_pipes_and_an_empty_environment_and_nothing_else() -> None:
    with intruder(ALL) as host:
        assert json.loads(tried(host, "see_descriptors")[1]) == [0, 1, 2]
        assert json.loads(tried(host, "see_environment")[1]) == [{}, "None"]
    with intruder(None) as host:
        assert max(json.loads(tried(host, "see_descriptors")[1])) >= LEFT_OPEN
        assert json.loads(tried(host, "see_environment")[1])[0]["SECRET"] == "in the environment"


@linux
def test_a_host_starts_whatever_descriptors_the_broker_has_open() -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    opened = [null]
    try:
        while opened[-1] < LEFT_OPEN - 1:
            opened.append(os.dup(null))
        with intruder(ALL) as host:
            assert json.loads(tried(host, "see_descriptors")[1]) == [0, 1, 2]
    finally:
        for descriptor in opened:
            os.close(descriptor)


#: uretprobe and uprobe on x86_64, which new kernels let through any filter: they work only for a
#: debugger's own traps.
_NEVER_FILTERED = {335, 336} if os.uname().machine == "x86_64" else set()


@linux
def test_every_system_call_that_is_not_needed_is_refused_by_the_kernel_itself() -> None:
    if not confine.available().filtered:
        assert held_by(ALL).missing[0].startswith("seccomp (")
        return
    column = seccomp.MACHINES[os.uname().machine][1]
    named = {
        row[column]
        for table in (seccomp.ALLOWED, seccomp.NEVER_EXECUTABLE, seccomp.DEADLY)
        for row in table.values()
    }
    with intruder(ALL) as host:
        numbers = [number for number in range(600) if number not in named | _NEVER_FILTERED]
        assert json.loads(tried(host, "make_system_calls", {"numbers": numbers})[1]) == {}
    for name, row in seccomp.DEADLY.items():
        if row[column] is not None:
            with intruder(ALL) as host:
                assert tried(host, "make_system_calls", {"numbers": [row[column]]})[0] == "SIGSYS", name


@linux
def test_a_host_that_only_computes_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle host is not watched."""
    with booted("from fairlead.hooks import confine\nconfine.MAX_CPU_SECONDS = 1"), intruder(ALL) as host:
        assert tried(host, "compute_for_ever")[0] in ("SIGXCPU", "SIGKILL")


@linux
def test_a_host_cannot_lift_its_limits_even_where_the_broker_is_root() -> None:
    with intruder(["limits", "no-capabilities"]) as host:
        assert host.confinement == confine.Confinement(("limits", "no-capabilities"))
        assert tried(host, "set_a_limit")[0] == "EPERM"
    with intruder(["limits"]) as host:
        # CAP_SYS_RESOURCE may be missing in a container even for root.
        may_lift = int(process_status("self")["CapEff"], 16) >> 24 & 1
        assert tried(host, "set_a_limit")[0] == ("done" if may_lift else "EPERM")


@linux
def test_limits_alone_keep_a_host_from_opening_files(target: dict[str, Any]) -> None:
    with intruder(["limits"]) as host:
        for attempt in ("read_a_file", "write_a_file", "connect_to_loopback", "make_a_file_in_memory"):
            assert tried(host, attempt, target)[0] == "EMFILE"


@linux
def test_a_host_cannot_truncate_the_shared_page() -> None:
    page = process._shared_page()
    try:
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(page, size)
    finally:
        os.close(page)


@linux
def test_available_changes_nothing_about_the_calling_process() -> None:
    watched = ("NoNewPrivs", "Seccomp", "CapEff")
    before = {name: process_status("self")[name] for name in watched}
    confine.available()
    assert {name: process_status("self")[name] for name in watched} == before


@linux
def test_the_confinement_that_a_host_reports_is_what_the_kernel_reports(hooks: Hooks) -> None:
    enqueue(hooks, KIND)
    assert hooks._host is not None
    held, status = hooks._host.confinement, process_status(str(hooks._host.pid))
    assert held == confine.available()
    assert status["Seccomp"] == ("2" if held.filtered else process_status("self")["Seccomp"])
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) == 0


def test_the_confinement_of_the_first_host_is_logged_once(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairlead.hooks")
    enqueue(hooks, KIND)
    assert hooks._host is not None
    os.kill(hooks._host.pid, signal.SIGKILL)
    enqueue(hooks, KIND)
    available = confine.available()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO" if available.filtered else "WARNING", f"hook host confined by: {available}")
    ]


@contextmanager
def hooks_on_a_lesser_kernel(confinement: Any, boot: str) -> Iterator[Hooks]:
    with booted(f"from fairlead.hooks import confine\n{boot}"):
        hooks = Hooks(HookSettings(confinement=confinement), ManualClock())
        yield hooks
        hooks.close()


NO_SUCH_CALL = 9999
NO_SECCOMP = "confine._SECCOMP_MODE_FILTER = 99"
NO_LANDLOCK = f"confine._LANDLOCK_CREATE_RULESET = {NO_SUCH_CALL}"
NO_TABLE = "confine.seccomp.MACHINES.clear()"
NO_EFFECT = "confine.seccomp.ALLOWED['getppid'] = (110, 173)"
NO_LINUX = "sys.platform = 'darwin'"


@linux
@pytest.mark.parametrize(
    ("boot", "missing"),
    [
        (NO_SECCOMP, ["seccomp (EINVAL)"]),
        (NO_LANDLOCK, ["landlock (ENOSYS)"]),
        (f"{NO_SECCOMP}; {NO_LANDLOCK}", ["seccomp (EINVAL)", "landlock (ENOSYS)"]),
        (NO_TABLE, [f"seccomp (no table of system calls for {os.uname().machine}, 64 bits)"]),
        (NO_EFFECT, ["seccomp (the kernel accepted the filter and does not use it)"]),
        (
            NO_LINUX,
            [
                "seccomp (only Linux has it)",
                "memory-limit (the memory in use is not known)",
                "landlock (only Linux has it)",
                "no-capabilities (only Linux has it)",
                "no-new-privs (only Linux has it)",
                "no-dump (only Linux has it)",
            ],
        ),
    ],
)
def test_missing_layers_of_a_kernel_are_logged_and_hooks_run(
    boot: str, missing: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairlead.hooks")
    with hooks_on_a_lesser_kernel("best", boot) as hooks:
        assert enqueue(hooks, KIND)[0].fairness_key == "k-0"
        assert hooks._host is not None
        held = hooks._host.confinement
    names = {layer.partition(" ")[0] for layer in missing}
    assert names <= {layer.partition(" ")[0] for layer in held.missing}
    assert not names & set(held.by)
    if confine.available().filtered:
        assert set(missing) <= set(held.missing)
    (told,) = caplog.records
    assert all(layer in told.getMessage() for layer in held.missing)
    assert told.levelname == ("INFO" if held.filtered else "WARNING")


@linux
def test_available_reports_the_same_missing_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "_SECCOMP_MODE_FILTER", 99)
    monkeypatch.setattr(confine, "_LANDLOCK_CREATE_RULESET", NO_SUCH_CALL)
    assert confine.available() == confine.Confinement(
        ("limits", "memory-limit", "no-capabilities", "no-new-privs", "no-dump"),
        ("seccomp (EINVAL)", "landlock (ENOSYS)"),
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    assert confine.available().by == ("limits",)


@linux
def test_where_confinement_is_required_no_hook_runs_without_a_filter() -> None:
    with hooks_on_a_lesser_kernel("require", NO_SECCOMP) as hooks:
        with pytest.raises(HookHostUnavailable, match=r'lua.confinement is "require".*seccomp \(EINVAL\)'):
            hooks.check(KIND, "on_enqueue")
        assert enqueue(hooks, KIND)[0].outcome == "failed"


def test_where_confinement_is_required_hooks_run_exactly_if_there_is_a_filter() -> None:
    with hooks_on_a_lesser_kernel("require", "") as hooks:
        assert enqueue(hooks, KIND)[0].outcome == ("ran" if confine.available().filtered else "failed")


def test_confinement_can_be_switched_off_and_the_limits_stay(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fairlead.hooks")
    with hooks_on_a_lesser_kernel("off", "") as hooks:
        assert enqueue(hooks, KIND)[0].outcome == "ran"
        assert hooks._host is not None
        held = hooks._host.confinement
    assert "limits" in held.by
    assert set(held.missing) >= {
        "seccomp (switched off)",
        "landlock (switched off)",
        "no-capabilities (switched off)",
    }
    assert [record.levelname for record in caplog.records] == ["INFO"]


def process_status(pid: str) -> dict[str, str]:
    return {
        name: value.strip()
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        for name, _, value in [line.partition(":")]
    }


def test_the_page_about_hooks_names_every_attempt() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/hooks.md").read_text()
    for attempt in (*ATTEMPTS, "see_environment", "see_descriptors"):
        assert attempt.replace("_", " ") in page, attempt
