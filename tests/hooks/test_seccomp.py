"""The filter of system calls as a program: read as the kernel reads it, for both machines."""

from __future__ import annotations

import pytest

from fairlead.hooks import seccomp
from fairlead.hooks.seccomp import ALLOW, KILL, REFUSE

X86_64, AARCH64 = 0xC000003E, 0xC00000B7
ARCHES = {"x86_64": X86_64, "aarch64": AARCH64}
LOAD, JUMP_IF_EQUAL, JUMP_IF_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
RWX, RW = 7, 3

# Calls that open files, the network, processes and the kernel, listed by hand and not derived from the tables
# under test.
DOORS = {
    "x86_64": {
        "open": 2,
        "stat": 4,
        "ioctl": 16,
        "dup": 32,
        "socket": 41,
        "connect": 42,
        "sendmsg": 46,
        "clone": 56,
        "fork": 57,
        "vfork": 58,
        "execve": 59,
        "kill": 62,
        "fcntl": 72,
        "unlink": 87,
        "ptrace": 101,
        "prctl": 157,
        "setrlimit": 160,
        "mount": 165,
        "openat": 257,
        "prlimit64": 302,
        "process_vm_readv": 310,
        "seccomp": 317,
        "memfd_create": 319,
        "bpf": 321,
        "execveat": 322,
        "pkey_mprotect": 329,
        "io_uring_setup": 425,
        "pidfd_getfd": 438,
        "openat2": 437,
        "clone3": 435,
    },
    "aarch64": {
        "dup": 23,
        "fcntl": 25,
        "ioctl": 29,
        "unlinkat": 35,
        "mount": 40,
        "openat": 56,
        "newfstatat": 79,
        "unshare": 97,
        "ptrace": 117,
        "kill": 129,
        "setrlimit": 164,
        "prctl": 167,
        "socket": 198,
        "connect": 203,
        "sendmsg": 211,
        "clone": 220,
        "execve": 221,
        "prlimit64": 261,
        "process_vm_readv": 270,
        "seccomp": 277,
        "memfd_create": 279,
        "bpf": 280,
        "execveat": 281,
        "pkey_mprotect": 288,
        "io_uring_setup": 425,
        "pidfd_getfd": 438,
        "openat2": 437,
        "clone3": 435,
    },
}
NEEDED = {
    "x86_64": {
        "read": 0,
        "write": 1,
        "munmap": 11,
        "brk": 12,
        "setitimer": 38,
        "clock_gettime": 228,
        "exit_group": 231,
    },
    "aarch64": {
        "read": 63,
        "write": 64,
        "munmap": 215,
        "brk": 214,
        "setitimer": 103,
        "clock_gettime": 113,
        "exit_group": 94,
    },
}


def verdict(machine: str, number: int, *, arch: int | None = None, third: int = 0) -> int:
    """The kernel's verdict on a call. Jumps only go forward, so this ends."""
    data = {0: number, 4: ARCHES[machine] if arch is None else arch, 32: third & 0xFFFFFFFF}
    program = seccomp.program(machine)
    accumulator = at = 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == RETURN:
            return value
        if code == LOAD:
            accumulator = data[value]
        else:
            holds = accumulator == value if code == JUMP_IF_EQUAL else bool(accumulator & value)
            assert code in (JUMP_IF_EQUAL, JUMP_IF_ANY_BIT)
            at += yes if holds else no


@pytest.mark.parametrize("machine", ARCHES)
def test_every_call_gets_the_verdict_of_its_table_and_all_others_are_refused(machine: str) -> None:
    column = seccomp.MACHINES[machine][1]
    tables = ((seccomp.ALLOWED, ALLOW), (seccomp.NEVER_EXECUTABLE, ALLOW), (seccomp.DEADLY, KILL))
    rows = [
        (row[column], what) for table, what in tables for row in table.values() if row[column] is not None
    ]
    expected = dict(rows)
    assert len(expected) == len(rows)
    for number in range(1024):
        assert verdict(machine, number) == expected.get(number, REFUSE), number


@pytest.mark.parametrize(
    ("machine", "name"), [(machine, name) for machine, doors in DOORS.items() for name in doors]
)
def test_no_call_that_opens_anything_is_allowed(machine: str, name: str) -> None:
    assert verdict(machine, DOORS[machine][name]) in (REFUSE, KILL)


@pytest.mark.parametrize(
    ("machine", "name"), [(machine, name) for machine, needed in NEEDED.items() for name in needed]
)
def test_the_calls_that_a_host_needs_are_allowed(machine: str, name: str) -> None:
    assert verdict(machine, NEEDED[machine][name]) == ALLOW


@pytest.mark.parametrize(
    ("machine", "number"), [("x86_64", 9), ("x86_64", 10), ("aarch64", 222), ("aarch64", 226)]
)
def test_memory_can_be_allocated_and_never_made_executable(machine: str, number: int) -> None:
    assert [verdict(machine, number, third=rights) for rights in (0, RW, 4, RWX, 0x10000000 | RWX)] == [
        ALLOW,
        ALLOW,
        REFUSE,
        REFUSE,
        REFUSE,
    ]


@pytest.mark.parametrize(
    ("machine", "arch"),
    [("x86_64", AARCH64), ("x86_64", 0x40000003), ("aarch64", X86_64), ("aarch64", 0x40000028)],
)
def test_calls_of_another_abi_kill_the_process(machine: str, arch: int) -> None:
    assert {verdict(machine, number, arch=arch) for number in range(512)} == {KILL}


def test_calls_of_the_x32_abi_are_not_allowed_by_their_number() -> None:
    x32 = 0x40000000
    assert {verdict("x86_64", x32 | number) for number in range(1024)} == {REFUSE}


@pytest.mark.parametrize("machine", ARCHES)
def test_the_program_is_laid_out_as_the_kernel_reads_it(machine: str) -> None:
    program = seccomp.program(machine)
    raw = seccomp.assembled(program)
    assert len(raw) == 8 * len(program)
    assert raw[:8] == bytes.fromhex("20 00 00 00 04 00 00 00")
