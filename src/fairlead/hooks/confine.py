"""Takes from a hook host, once it is ready, all that it does not need: files, sockets, processes, rights,
system calls.

A layer that a machine does not offer is left out and reported: a `Confinement` names the layers in force and
those that are missing. None of them needs root. Linux has all layers; other systems have only resource limits
and closed descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from fairlead.hooks import seccomp

Mode = Literal["require", "best", "off"]

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
#: A running call is watched, an idle host is not: code that has taken over a host could compute for ever. An
#: honest host that has used this much CPU time ends too, and the spare takes over.
MAX_CPU_SECONDS = 3600
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF, _LANDLOCK_VERSION = 444, 446, 1
#: The number of access rights to files that Landlock knows, by its version.
_LANDLOCK_FILES = {1: 13, 2: 14, 3: 15, 4: 15}
_LANDLOCK_FILES_NOW = 16


class Confinement(msgspec.Struct, frozen=True, array_like=True):
    """`by`: the layers in force, strongest first. `missing`: the other layers, each with the reason in
    brackets.
    """

    by: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = ", ".join(self.by) or "nothing"
        return f"{text}; missing: {', '.join(self.missing)}" if self.missing else text

    @property
    def filtered(self) -> bool:
        """Whether the kernel refuses system calls that the host does not need."""
        return "seccomp" in self.by


class NotOffered(Exception):
    """This kernel, machine or system does not offer a layer; the text says why."""


def available() -> Confinement:
    """The layers that this machine offers. Asks the kernel and changes nothing about this process."""
    return _each((layer.name, layer.ask) for layer in _LAYERS)


def confine(mode: Mode, more_address_space: int) -> Confinement:
    """Confine this process for good. Open pipes stay; nothing can be opened, imported or started any more.

    `off` leaves out the layers that only Linux has. `require` raises `NotOffered` where system calls cannot
    be filtered.
    """
    os.environ.clear()
    _close_inherited()
    layers = [layer for layer in _LAYERS if mode != "off" or layer.portable]
    # The strongest layer last: it would refuse the others.
    held = _each([(layer.name, layer.prepare(more_address_space)) for layer in layers][::-1])
    off = [f"{layer.name} (switched off)" for layer in _LAYERS if layer not in layers]
    held = Confinement(held.by[::-1], (*off, *held.missing[::-1]))
    if mode == "require" and not held.filtered:
        raise NotOffered(
            f'lua.confinement is "require", and system calls cannot be filtered here; missing: {", ".join(held.missing)}'
        )
    return held


class Layer(NamedTuple):
    """`ask` finds out whether the layer is offered. `prepare` does what needs files, and returns what
    enforces the layer.

    Both raise `NotOffered` or `OSError` if the layer is not offered.
    """

    name: str
    ask: Callable[[], object]
    prepare: Callable[[int], Callable[[], object]]
    portable: bool = False


def _each(layers: Iterable[tuple[str, Callable[[], object]]]) -> Confinement:
    by, missing = [], []
    for name, attempt in layers:
        try:
            attempt()
            by.append(name)
        except NotOffered as e:
            missing.append(f"{name} ({e})")
        except OSError as e:
            missing.append(f"{name} ({errno.errorcode.get(e.errno or 0, str(e))})")
    return Confinement(tuple(by), tuple(missing))


def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise NotOffered("only Linux has it")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _checked(result: int) -> int:
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _prctl(option: int, second: int, third: Any = 0) -> None:
    third = ctypes.c_ulong(third) if isinstance(third, int) else third
    _checked(
        _libc().prctl(
            ctypes.c_int(option), ctypes.c_ulong(second), third, ctypes.c_ulong(0), ctypes.c_ulong(0)
        )
    )


def _filter_program() -> list[seccomp.Instruction]:
    _libc()
    machine = os.uname().machine
    if machine not in seccomp.MACHINES or sys.maxsize < 1 << 32:
        raise NotOffered(f"no table of system calls for {machine}, {ctypes.sizeof(ctypes.c_void_p) * 8} bits")
    return seccomp.program(machine)


def _ask_seccomp() -> None:
    _filter_program()
    try:
        # A kernel that can filter fails only when it reads the program, whose address is null.
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER)
    except OSError as e:
        if e.errno != errno.EFAULT:
            raise


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter_system_calls() -> None:
    instructions = _filter_program()
    _prctl(
        _PR_SET_SECCOMP,
        _SECCOMP_MODE_FILTER,
        ctypes.byref(_Program(len(instructions), seccomp.assembled(instructions))),
    )
    # An emulated kernel may accept a filter and ignore it. This call is not allowed, and only a filter makes
    # it fail.
    if os.getppid() != -1:
        raise NotOffered("the kernel accepted the filter and does not use it")


def _prepare_seccomp(_: int) -> Callable[[], object]:
    """Also remove the right to execute from memory that is writable, which the filter cannot undo.

    Only an old libffi has such memory, for callbacks, and a host has no callbacks.
    """
    with contextlib.suppress(OSError, NotOffered):
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights, *_rest = line.split()
            if rights.startswith("rwx"):
                start, end = (int(address, 16) for address in place.split("-"))
                _libc().mprotect(
                    ctypes.c_void_p(start),
                    ctypes.c_size_t(end - start),
                    ctypes.c_int(mmap.PROT_READ | mmap.PROT_WRITE),
                )
    return _filter_system_calls


def _ask_landlock() -> int:
    return _checked(
        _libc().syscall(
            ctypes.c_long(_LANDLOCK_CREATE_RULESET),
            None,
            ctypes.c_size_t(0),
            ctypes.c_uint32(_LANDLOCK_VERSION),
        )
    )


def _take_away_files() -> None:
    """Deny everything that this version of Landlock handles: files, from version 4 TCP, from 6 signals to
    others.
    """
    version = _ask_landlock()
    files = (1 << _LANDLOCK_FILES.get(version, _LANDLOCK_FILES_NOW)) - 1
    tcp = 0b11 if version >= 4 else 0
    signals = 0b11 if version >= 6 else 0
    ruled = (ctypes.c_uint64 * 3)(files, tcp, signals)
    syscall = _libc().syscall
    rules = _checked(
        syscall(
            ctypes.c_long(_LANDLOCK_CREATE_RULESET),
            ruled,
            ctypes.c_size_t(ctypes.sizeof(ruled)),
            ctypes.c_uint32(0),
        )
    )
    try:
        _checked(syscall(ctypes.c_long(_LANDLOCK_RESTRICT_SELF), ctypes.c_int(rules), ctypes.c_uint32(0)))
    finally:
        os.close(rules)


def _drop_capabilities() -> None:
    """Otherwise the host of a broker that root runs could lift its own limits."""
    _checked(_libc().capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()))


def _address_space() -> int:
    if sys.platform != "linux":
        raise NotOffered("the memory in use is not known")
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def _prepare_memory_limit(more: int) -> Callable[[], object]:
    try:
        most = _address_space() + more
    except (NotOffered, OSError):
        return _address_space
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))


def _close_inherited() -> None:
    """Close all descriptors but the pipes and stderr: with the one of the shared page, its size could be
    changed.
    """
    for directory in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            open_ones: Iterable[int] = [int(name) for name in os.listdir(directory)]
            break
    else:
        open_ones = range(4096)
    for fd in open_ones:
        if fd > 2:
            with contextlib.suppress(OSError):
                os.close(fd)


#: The strongest first. Landlock is enforced before the limits, because its rules need a descriptor for a
#: moment.
_LAYERS = (
    Layer("seccomp", _ask_seccomp, _prepare_seccomp),
    Layer("limits", lambda: None, lambda _: _set_limits, portable=True),
    Layer("memory-limit", _address_space, _prepare_memory_limit, portable=True),
    Layer("landlock", _ask_landlock, lambda _: _take_away_files),
    Layer("no-capabilities", _libc, lambda _: _drop_capabilities),
    Layer("no-new-privs", _libc, lambda _: lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1), portable=True),
    Layer("no-dump", _libc, lambda _: lambda: _prctl(_PR_SET_DUMPABLE, 0), portable=True),
)
