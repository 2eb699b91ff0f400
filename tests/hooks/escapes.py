"""What an intruder would try who runs code of his own in a hook host. Imported in the host's process, not in
the tests'.

Nothing here uses Lua: the attempts assume that the sandbox is already broken. `arm` leaves open what a
careless broker might (a descriptor, a secret in the environment, executable memory), and makes the host try
what it is told.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from fairlead.hooks import confine, host
from fairlead.hooks.wire import CheckScript, ScriptChecked

SUCCEEDED, REFUSED = 0, 1
EXIT_CODE = 42
#: The lowest number that a descriptor left open in the host may have.
LEFT_OPEN = 77
_RETURN_42 = bytes.fromhex({"x86_64": "b82a000000c3", "aarch64": "40058052c0035fd6"}[os.uname().machine])
_RWX = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC

_libc = ctypes.CDLL(None, use_errno=True)
_executable = mmap.mmap(-1, mmap.PAGESIZE, prot=_RWX)


def arm(layers: list[str] | None) -> None:
    """With these layers of confinement and no others. None: descriptors and environment are not cleaned up
    either.
    """
    os.environ["SECRET"] = "in the environment"
    # A free descriptor: the page that is shared with the broker may have any number.
    fcntl.fcntl(os.open("/dev/null", os.O_RDWR), fcntl.F_DUPFD, LEFT_OPEN)
    if layers is None:
        host.confine = lambda mode, more: confine.Confinement()  # type: ignore[assignment]
    else:
        confine._LAYERS = tuple(layer for layer in confine._LAYERS if layer.name in layers)
    host.Host.serve = _serve  # type: ignore[method-assign]


def _serve(self: host.Host) -> None:
    while True:
        asked = host._read()
        assert isinstance(asked, CheckScript)
        given = json.loads(asked.script)
        try:
            host._write(ScriptChecked(SUCCEEDED, str(ATTEMPTS[given["attempt"]](given))))
        except (OSError, ValueError, RuntimeError) as e:
            host._write(
                ScriptChecked(
                    REFUSED, errno.errorcode[e.errno] if isinstance(e, OSError) and e.errno else str(e)
                )
            )


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _read(path: str, at: int = 0) -> str:
    fd = os.open(path, os.O_RDONLY)
    return os.pread(fd, 4096, at).decode(errors="replace")


def read_a_file(given: dict[str, Any]) -> str:
    return _read(given["file"])


def write_a_file(given: dict[str, Any]) -> int:
    return os.open(given["file"] + ".new", os.O_WRONLY | os.O_CREAT)


def remove_a_file(given: dict[str, Any]) -> None:
    os.unlink(given["file"])


def list_a_directory(given: dict[str, Any]) -> list[str]:
    return os.listdir("/")


def ask_whether_a_file_exists(given: dict[str, Any]) -> os.stat_result:
    return os.stat(given["file"])


def connect_to_loopback(given: dict[str, Any]) -> None:
    socket.socket().connect(("127.0.0.1", given["port"]))


def listen_on_loopback(given: dict[str, Any]) -> None:
    socket.socket().bind(("127.0.0.1", 0))


def send_a_datagram(given: dict[str, Any]) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", given["port"]))


def open_a_local_socket(given: dict[str, Any]) -> None:
    socket.socket(socket.AF_UNIX).bind(f"\0fairlead-escape-{os.getpid()}")


def ask_the_kernel_about_networks(given: dict[str, Any]) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))


def share_memory_with_others(given: dict[str, Any]) -> None:
    private, create, remove = 0, 0o1600, 0
    segment = _checked(_libc.shmget(private, ctypes.c_size_t(mmap.PAGESIZE), create))
    _checked(_libc.shmctl(segment, remove, None))


def watch_files(given: dict[str, Any]) -> None:
    os.close(_checked(_libc.inotify_init()))


def copy_a_descriptor(given: dict[str, Any]) -> None:
    os.close(os.dup(1))


def see_where_memory_is(given: dict[str, Any]) -> str:
    return _read("/proc/self/maps")


def find_other_processes(given: dict[str, Any]) -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def become_more_important(given: dict[str, Any]) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, 5)


def choose_a_processor(given: dict[str, Any]) -> None:
    os.sched_setaffinity(0, os.sched_getaffinity(0))


def change_who_it_is(given: dict[str, Any]) -> None:
    os.setuid(os.getuid())


def make_a_namespace(given: dict[str, Any]) -> int:
    """A user namespace, which needs no rights."""
    new_users = 0x10000000
    return _checked(_libc.unshare(new_users))


def read_anothers_memory(given: dict[str, Any]) -> str:
    return _read(f"/proc/{given['pid']}/mem", given["address"])


def read_anothers_environment(given: dict[str, Any]) -> str:
    return _read(f"/proc/{given['pid']}/environ")


def read_anothers_memory_by_system_call(given: dict[str, Any]) -> str:
    buffer = ctypes.create_string_buffer(64)
    here = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
    there = (ctypes.c_void_p * 2)(given["address"], 64)
    _checked(
        _libc.process_vm_readv(
            given["pid"], here, ctypes.c_ulong(1), there, ctypes.c_ulong(1), ctypes.c_ulong(0)
        )
    )
    return buffer.value.decode()


def trace_another(given: dict[str, Any]) -> int:
    seize = 0x4206
    return _checked(_libc.ptrace(ctypes.c_long(seize), ctypes.c_long(given["pid"]), None, None))


def kill_another(given: dict[str, Any]) -> None:
    os.kill(given["pid"], 9)


def fork(given: dict[str, Any]) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def become_another_program(given: dict[str, Any]) -> None:
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", f"import os; os._exit({EXIT_CODE})"])


def start_a_thread(given: dict[str, Any]) -> None:
    thread = threading.Thread(target=len, args=("",))
    thread.start()
    thread.join()


def make_a_file_in_memory(given: dict[str, Any]) -> int:
    return os.memfd_create("sneaky")


def set_a_limit(given: dict[str, Any]) -> None:
    _checked(_libc.setrlimit(resource.RLIMIT_NOFILE, (ctypes.c_ulong * 2)(64, 64)))


def outlive_the_broker(given: dict[str, Any]) -> int:
    set_parent_death_signal = 1
    return _checked(_libc.prctl(ctypes.c_int(set_parent_death_signal), *[ctypes.c_ulong(0)] * 4))


def map_executable_memory(given: dict[str, Any]) -> None:
    mmap.mmap(-1, mmap.PAGESIZE, prot=_RWX)


def make_memory_executable(given: dict[str, Any]) -> None:
    _libc.mmap.restype = ctypes.c_void_p
    size, rights, kind = (
        ctypes.c_size_t(mmap.PAGESIZE),
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
    )
    page = _libc.mmap(None, size, rights, kind, -1, ctypes.c_long(0))
    _checked(_libc.mprotect(ctypes.c_void_p(page), size, mmap.PROT_READ | mmap.PROT_EXEC))


def run_machine_code_in_memory_that_was_executable(given: dict[str, Any]) -> int:
    _executable[: len(_RETURN_42)] = _RETURN_42
    code = ctypes.addressof(ctypes.c_char.from_buffer(_executable))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(code)())


def make_system_calls(given: dict[str, Any]) -> str:
    """By number, with invalid arguments. Returns the calls that were not refused, with their errors."""
    said = {}
    for number in given["numbers"]:
        ctypes.set_errno(0)
        if (
            _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) != -1
            or ctypes.get_errno() != errno.EPERM
        ):
            said[number] = errno.errorcode.get(ctypes.get_errno(), "done")
    return json.dumps(said)


def compute_for_ever(given: dict[str, Any]) -> None:
    while True:
        pass


def see_environment(given: dict[str, Any]) -> str:
    _libc.getenv.restype = ctypes.c_char_p
    return json.dumps([dict(os.environ), str(_libc.getenv(b"SECRET"))])


def see_descriptors(given: dict[str, Any]) -> str:
    """By reading or writing nothing: these calls are always allowed."""

    def is_open(fd: int) -> bool:
        for use in (lambda: os.read(fd, 0), lambda: os.write(fd, b"")):
            try:
                use()
                return True
            except OSError as e:
                if e.errno != errno.EBADF:
                    raise
        return False

    return json.dumps([fd for fd in range(1024) if is_open(fd)])


ATTEMPTS: dict[str, Callable[[dict[str, Any]], object]] = {
    attempt.__name__: attempt
    for attempt in (
        read_a_file,
        write_a_file,
        remove_a_file,
        list_a_directory,
        ask_whether_a_file_exists,
        connect_to_loopback,
        listen_on_loopback,
        read_anothers_memory,
        read_anothers_environment,
        read_anothers_memory_by_system_call,
        trace_another,
        kill_another,
        fork,
        become_another_program,
        start_a_thread,
        make_a_file_in_memory,
        set_a_limit,
        outlive_the_broker,
        map_executable_memory,
        make_memory_executable,
        run_machine_code_in_memory_that_was_executable,
        see_environment,
        see_descriptors,
        send_a_datagram,
        open_a_local_socket,
        ask_the_kernel_about_networks,
        share_memory_with_others,
        watch_files,
        copy_a_descriptor,
        see_where_memory_is,
        find_other_processes,
        become_more_important,
        choose_a_processor,
        change_who_it_is,
        make_a_namespace,
        make_system_calls,
        compute_for_ever,
    )
}
