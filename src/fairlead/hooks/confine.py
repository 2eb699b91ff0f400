"""Takes from a hook host, once it is ready, all it does not need: files, sockets, processes, rights, most
system calls.

What a machine does not offer is left out and told, never passed over: a `Confinement` names what is in force
and what is missing. None of it needs root. Linux has all layers; elsewhere there are resource limits and
closed descriptors only.
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
#: A call is watched, a host with nothing to do is not: one that was taken over could compute for somebody
#: else for ever. An honest one that has done this much work ends too, and the spare takes over.
MAX_CPU_SECONDS = 3600
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF, _LANDLOCK_VERSION = 444, 446, 1
#: How many kinds of access to files Landlock knows, by its version.
_LANDLOCK_FILES = {1: 13, 2: 14, 3: 15, 4: 15}
_LANDLOCK_FILES_NOW = 16


class Confinement(msgspec.Struct, frozen=True, array_like=True):
    """`by` is what holds a host, the strongest first; `missing` what does not, each with the reason in
    brackets.
    """

    by: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{', '.join(self.by) or 'nothing'}{'; missing: ' if self.missing else ''}{', '.join(self.missing)}"

    @property
    def filtered(self) -> bool:
        """Whether the kernel refuses the system calls it does not need."""
        return "seccomp" in self.by


class NotOffered(Exception):
    """By this kernel, machine or system; the text says what."""


def available() -> Confinement:
    """What would hold a host on this machine. Asks the kernel, and changes nothing about this process."""
    return _each((layer.name, layer.ask) for layer in _LAYERS)


def confine(mode: Mode, more_address_space: int) -> Confinement:
    """Close this process in, for good. Open pipes stay; from here on nothing can be opened, imported or
    started.

    `off` leaves out the layers that only Linux has; `require` raises NotOffered where system calls cannot be
    filtered.
    """
    os.environ.clear()
    _close_inherited()
    layers = [layer for layer in _LAYERS if mode != "off" or layer.portable]
    # The strongest last: it would refuse the others.
    held = _each([(layer.name, layer.prepare(more_address_space)) for layer in layers][::-1])
    off = [f"{layer.name} (switched off)" for layer in _LAYERS if layer not in layers]
    held = Confinement(held.by[::-1], (*off, *held.missing[::-1]))
    if mode == "require" and not held.filtered:
        raise NotOffered(
            f'lua.confinement is "require", and system calls cannot be filtered here; missing: {", ".join(held.missing)}'
        )
    return held


class Layer(NamedTuple):
    """`ask` finds out whether there is such a thing; `prepare` does what still needs files, and returns what
    puts it in force.

    Both raise NotOffered or OSError when it is not to be had.
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
        # A kernel that can filter comes as far as reading the program, which is nowhere.
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
    # An emulated kernel may take a filter and forget it. This call is not on the list, and fails for no other
    # reason.
    if os.getppid() != -1:
        raise NotOffered("the kernel took the filter and does not use it")


def _prepare_seccomp(_: int) -> Callable[[], object]:
    """The filter lets no memory become executable; what is writable and executable already stops being
    executable.

    That is an old libffi's memory for callbacks, of which a host has none.
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
    """Everything this Landlock can rule is ruled, by no rule at all: files, TCP from version 4, signals to
    others from 6.
    """
    version = _ask_landlock()
    files = (1 << _LANDLOCK_FILES.get(version, _LANDLOCK_FILES_NOW)) - 1
    ruled = (ctypes.c_uint64 * 3)(files, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
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
    """A broker that is run by root would else leave its host the right to lift its own limits."""
    _checked(_libc().capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()))


def _address_space() -> int:
    if sys.platform != "linux":
        raise NotOffered("no telling how much is in use")
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
    """All but the pipes and stderr. A mapped file keeps a descriptor of its own, and whoever has one can
    change its size.
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


#: The strongest first. Limits come after Landlock when they are put in force: its rules need a descriptor for
#: a moment.
_LAYERS = (
    Layer("seccomp", _ask_seccomp, _prepare_seccomp),
    Layer("limits", lambda: None, lambda _: _set_limits, portable=True),
    Layer("memory-limit", _address_space, _prepare_memory_limit, portable=True),
    Layer("landlock", _ask_landlock, lambda _: _take_away_files),
    Layer("no-capabilities", _libc, lambda _: _drop_capabilities),
    Layer("no-new-privs", _libc, lambda _: lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1), portable=True),
    Layer("no-dump", _libc, lambda _: lambda: _prctl(_PR_SET_DUMPABLE, 0), portable=True),
)
