"""The system calls that a confined hook host may make, and the filter that enforces this.

An allow-list: reading, writing, memory, time and exit. Every other call fails with EPERM, so that a library
that tries something needless can continue; calls that only an intruder makes kill the process. No memory can
become executable, so an intruder is limited to the machine code that is loaded. Pure: the program is a value,
and `confine.py` installs it.
"""

from __future__ import annotations

import errno
import struct
from typing import NamedTuple

#: By `os.uname().machine`: the kernel's AUDIT_ARCH, and the column of the tables below.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Call numbers on x86_64 and aarch64; None where the machine has no such call. Frequent calls first: the
# kernel compares in this order.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "clock_gettime": (228, 113),
    "setitimer": (38, 103),
    "brk": (12, 214),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "futex": (202, 98),
    "rt_sigreturn": (15, 139),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "sched_yield": (24, 124),
    "getrandom": (318, 278),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "clock_getres": (229, 114),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "close": (3, 57),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
#: Allowed unless the third argument has PROT_EXEC.
NEVER_EXECUTABLE: dict[str, tuple[int | None, int | None]] = {"mmap": (9, 222), "mprotect": (10, 226)}
DEADLY: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}

ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
PROT_EXEC = 4

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
# Offsets in the kernel's struct seccomp_data. For an argument, of its lower half, which both machines store
# first.
_NUMBER, _ARCH, _THIRD_ARGUMENT = 0, 4, 32


class Instruction(NamedTuple):
    """One instruction of classic BPF. `yes` and `no`: how many instructions a jump skips."""

    code: int
    yes: int
    no: int
    value: int


def program(machine: str) -> list[Instruction]:
    """Raises `KeyError` for a machine without a column."""
    arch, column = MACHINES[machine]

    def numbers(table: dict[str, tuple[int | None, int | None]]) -> list[int]:
        return [number for row in table.values() if (number := row[column]) is not None]

    checks = [
        *((number, "allow") for number in numbers(ALLOWED)),
        *((number, "memory") for number in numbers(NEVER_EXECUTABLE)),
        *((number, "kill") for number in numbers(DEADLY)),
    ]
    tail = [
        ("refuse", Instruction(_RETURN, 0, 0, REFUSE)),
        ("memory", Instruction(_LOAD, 0, 0, _THIRD_ARGUMENT)),
        ("", Instruction(_JUMP_IF_ANY_BIT, 0, 1, PROT_EXEC)),
        ("", Instruction(_RETURN, 0, 0, REFUSE)),
        ("allow", Instruction(_RETURN, 0, 0, ALLOW)),
        ("kill", Instruction(_RETURN, 0, 0, KILL)),
    ]
    at = {label: len(checks) + place for place, (label, _) in enumerate(tail)}
    return [
        # Another ABI numbers its calls differently, so an allowed number could be any call there.
        Instruction(_LOAD, 0, 0, _ARCH),
        Instruction(_JUMP_IF_EQUAL, 1, 0, arch),
        Instruction(_RETURN, 0, 0, KILL),
        Instruction(_LOAD, 0, 0, _NUMBER),
        *(
            Instruction(_JUMP_IF_EQUAL, at[then] - place - 1, 0, number)
            for place, (number, then) in enumerate(checks)
        ),
        *(instruction for _, instruction in tail),
    ]


def assembled(instructions: list[Instruction]) -> bytes:
    """The program as an array of the kernel's struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
