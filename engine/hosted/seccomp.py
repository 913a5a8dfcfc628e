"""The system calls that code in the sandbox may not make, as a program for the kernel (seccomp, classic BPF).

Refused is memory that no limit of the sandbox counts (memfd, System V), and what widens the kernel's surface without
use to a program (namespaces, mounts, tracing, BPF, io_uring, keys). The caller sees "Operation not permitted".
bubblewrap takes the program by `--seccomp`. Numbers: the kernel's tables for x86_64 and for 64-bit ARM.
"""

import struct
from typing import Final

_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED: Final = {
    # name: (x86_64, aarch64)
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsmount": (432, 432),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
}  # fmt: skip
_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_NEW_NAMESPACES: Final = 0x7E02_0000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_X32: Final = 0x4000_0000  # x86_64's other ABI has the same calls under other numbers

_ALLOW: Final = 0x7FFF_0000
_EPERM: Final = 0x0005_0000 | 1
_ENOSYS: Final = 0x0005_0000 | 38
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUALS: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_NUMBER, _ARCH, _FLAGS = 0, 4, 16  # where struct seccomp_data has them


def seccomp_program(machine: str) -> bytes:
    """The program for `platform.machine()`. Raises LookupError for a machine whose numbers are not known here."""
    column = list(_AUDIT_ARCH).index(machine) if machine in _AUDIT_ARCH else None
    if column is None:
        raise LookupError(f"no sandbox for {machine} machines, only for {' and '.join(_AUDIT_ARCH)}")
    steps = [
        _step(_LOAD, _ARCH),
        *_unless(_EQUALS, _AUDIT_ARCH[machine], _EPERM),
        _step(_LOAD, _NUMBER),
        *_if(_AT_LEAST, _X32, _EPERM),
        # Its flags are behind a pointer, where no program can look; without it the C library uses clone.
        *_if(_EQUALS, _CLONE3[column], _ENOSYS),
    ]
    for numbers in _REFUSED.values():
        steps += _if(_EQUALS, numbers[column], _EPERM)
    steps += [
        _step(_EQUALS, _CLONE[column], 1, 0),
        _step(_RETURN, _ALLOW),
        _step(_LOAD, _FLAGS),
        *_if(_ANY_BIT, _NEW_NAMESPACES, _EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _if(test: int, value: int, verdict: int) -> list[bytes]:
    return [_step(test, value, 0, 1), _step(_RETURN, verdict)]


def _unless(test: int, value: int, verdict: int) -> list[bytes]:
    return [_step(test, value, 1, 0), _step(_RETURN, verdict)]
