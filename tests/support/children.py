"""Child processes for tests that may crash, hang, are denied system calls, or measure memory."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["forbid_files_and_sockets", "memory", "run_python"]

_TESTS = Path(__file__).resolve().parents[1]
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_KILL_PROCESS, _ALLOW = 0x80000000, 0x7FFF0000
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
# linux/audit.h and the system call tables: open, creat, openat, openat2, socket, connect, bind, execve, io_uring_setup
_CALLS = {
    "x86_64": (0xC000003E, (2, 85, 257, 437, 41, 42, 49, 59, 425)),
    "aarch64": (0xC00000B7, (56, 437, 198, 203, 200, 221, 425)),
}


def run_python(
    code: str, *arguments: str | Path, cwd: Path | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a child that can import telecine and the modules of the tests.

    Args:
        code: Python code; may be indented.
        arguments: ``sys.argv[1:]`` of the child.
        cwd: working folder of the child.
        timeout: seconds.
    """
    source = str(Path(sys.modules["telecine"].__file__ or "").parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, str(_TESTS)]), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def forbid_files_and_sockets() -> None:
    """Make the kernel kill this process if any code in it opens a file or a socket.

    A seccomp filter also catches FFmpeg's own system calls, which no hook of Python sees.
    """
    audit_architecture, calls = _CALLS[platform.machine()]
    rows = [(_LOAD, 0, 0, 4), (_EQUALS, 1, 0, audit_architecture), (_RETURN, 0, 0, _KILL_PROCESS), (_LOAD, 0, 0, 0)]
    rows += [(_EQUALS, len(calls) - i, 0, number) for i, number in enumerate(calls)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _KILL_PROCESS)]
    program = b"".join(struct.pack("HBBI", *row) for row in rows)
    held = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the compiler puts padding between the count and the pointer
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rows), ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, fprog, 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl refuses the filter")


def memory(field: str = "VmRSS") -> int:
    """Return the resident memory of this process, bytes; its peak with ``VmHWM``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
