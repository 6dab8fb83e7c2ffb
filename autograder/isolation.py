"""Linux namespaces, read-only root, limits and rights of a process that runs foreign code.

`enter` takes a process into a world that holds Python, torch and nothing else; `fork_apart` forks
a child that is the first process of a pid namespace of its own; `close_in` shuts that child in:
its own user, mount, network, ipc and uts namespaces, a small private folder as its only writable
place, no capabilities, no way to new rights, no new processes and no sockets.

Works for root and for ordinary users, on Linux 5.12 or newer, x86_64 or aarch64, wherever user
namespaces may be made. Every step that fails raises OSError with the name of the step. Imports the
standard library only, and nothing of ours.

Left out: a defence against holes in the kernel itself. What a filter would cost in upkeep if it
listed all allowed calls is not paid; it lists the calls that other measures do not already stop.
"""

import contextlib
import ctypes
import os
import platform
import struct
import sysconfig
from pathlib import Path

# What torch and einops need; the last three only in builds for GPUs.
PACKAGES = (
    "torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
    "filelock", "fsspec", "typing_extensions.py", "einops", "nvidia", "triton", "cuda",
)  # fmt: skip
# Read by torch to choose its fast kernels, and by the C library to find libraries.
FILES = (
    "/dev/null", "/dev/zero", "/dev/urandom", "/etc/ld.so.cache", "/proc/cpuinfo",
    "/sys/devices/system/cpu",
)  # fmt: skip
FOLDER = "/answer"  # the only writable place
NOBODY = 65534

# Constants of Linux: unshare and setns, mount, mount_setattr, prctl.
NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
NO_SUID, NO_DEV, NO_EXEC, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
DETACH = 2
SYS_MOUNT_SETATTR, AT_RECURSIVE, ATTR_READ_ONLY, ATTR_NO_SUID = 442, 0x8000, 1, 2
DEATH_SIGNAL, DUMPABLE, NO_NEW_RIGHTS, SECCOMP = 1, 4, 38, 22

# Refused inside, by number on x86_64 and aarch64 (None: not there). No new process can be made, so
# all memory and CPU time is that of one process, which the limits count. The rest are ways to
# memory that no limit counts, to other processes, or to parts of the kernel an answer never needs.
CALLS = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "unshare": (272, 97), "setns": (308, 268), "socket": (41, 198),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "personality": (135, 92),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "syslog": (103, 116),
}  # fmt: skip
# architecture in the filter's eyes, column above, clone
MACHINES = {"x86_64": (0xC000003E, 0, 56), "aarch64": (0xC00000B7, 1, 220)}
CLONE3, CLONE_THREAD = 435, 0x10000
EPERM, ENOSYS = 1, 38

LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments):
    """A function of the C library. Raises OSError that names it when it fails."""
    converted = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if getattr(LIBC, name)(*converted) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter(place: str, roots: list[str]) -> int:
    """Move into a read-only root at `place`, an empty folder; returns a descriptor of /proc.

    roots : folders with installed packages; of them only `PACKAGES` can be seen inside.
    The calling process has one thread. When it comes back it holds no right over anything outside
    (root becomes nobody), and what it forks is in pid, network, ipc and uts namespaces of its own.
    """
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    root, ids = os.geteuid() == 0 and has_nobody(), (os.geteuid(), os.getegid())
    if root:
        call("unshare", NEW_NS)
    else:
        call("unshare", NEW_USER | NEW_NS)
        name_user(proc, *ids)
    call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    build(place, roots)
    os.chdir(place)
    call("pivot_root", b".", b".")
    call("umount2", b".", DETACH)
    os.chdir("/")
    if root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        call("prctl", DUMPABLE, 1, 0, 0, 0)  # or our own entry of /proc would stay root's
        call("unshare", NEW_USER)
        name_user(proc, NOBODY, NOBODY)
    call("unshare", NEW_PID | NEW_NET | NEW_IPC | NEW_UTS)
    return proc


def has_nobody() -> bool:
    """Whether root can become nobody here; in a user namespace there may be no such user."""
    rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(first) <= NOBODY < int(first) + int(count) for first, _, count in rows)


def name_user(proc: int, user: int, group: int):
    """In a new user namespace: be who we were, and nobody else."""
    entries = (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"))
    for name, text in (*entries, ("gid_map", f"{group} {group} 1")):
        file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def build(place: str, roots: list[str]):
    """A file system at `place` with Python, its libraries and `PACKAGES`, all read-only."""
    empty(place)
    for link in ("/lib", "/lib64"):
        if os.path.islink(link):
            os.symlink(os.readlink(link), place + link)
    libraries = library_folders()
    for path in libraries:
        bind(path, place)
        for other in Path(path).glob("python*/"):  # other people's packages are no libraries
            empty(f"{place}{other}")
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        bind(path, place)
        for name in ("site-packages", "dist-packages"):
            if os.path.isdir(f"{path}/{name}"):
                empty(f"{place}{path}/{name}")
    for path in [f"{root}/{name}" for root in roots for name in PACKAGES] + list(FILES):
        if os.path.exists(path):
            bind(path, place)
    os.mkdir(place + FOLDER)
    read_only(place)


def library_folders() -> list[str]:
    """Where the C library and all others that this process uses lie."""
    standard = sysconfig.get_path("platstdlib")
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if ".so" in line}
    folders = {os.path.dirname(path) for path in paths if not path.startswith(standard)}
    return sorted(folder for folder in folders if folder.startswith("/"))


def empty(path: str):
    """A new, empty file system at `path`."""
    call("mount", b"none", path.encode(), b"tmpfs", NO_SUID | NO_DEV, b"size=1m,mode=755")


def bind(path: str, place: str):
    """Show `path` at the same path below `place`, read-only from the start."""
    target = place + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL))
    call("mount", path.encode(), target.encode(), None, BIND | RECURSIVE, None)
    read_only(target)


def read_only(path: str):
    """No writing and no set-user-id below `path`."""
    attributes = struct.pack("QQQQ", ATTR_READ_ONLY | ATTR_NO_SUID, 0, 0, 0)
    try:
        call(
            "syscall", SYS_MOUNT_SETATTR, -1, path.encode(), AT_RECURSIVE, attributes,
            len(attributes),
        )  # fmt: skip
    except OSError as error:
        raise OSError(error.errno, f"mount_setattr (Linux 5.12 or newer): {error}") from None


def fork_apart(proc: int) -> int:
    """os.fork whose child is the first of a pid namespace: when it ends, all in there ends."""
    home = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
    call("unshare", NEW_PID)
    pid = os.fork()
    if pid:
        call("setns", home, NEW_PID)
    os.close(home)
    return pid


def close_in(proc: int, megabytes: int):
    """In the child of `fork_apart`: own namespaces, a writable folder; the working folder now."""
    user, group = os.getuid(), os.getgid()
    call("unshare", NEW_USER | NEW_NS | NEW_NET | NEW_IPC | NEW_UTS)
    name_user(proc, user, group)
    options = f"size={megabytes}m,nr_inodes=2048,mode=700".encode()
    call("mount", b"none", FOLDER.encode(), b"tmpfs", NO_SUID | NO_DEV | NO_EXEC, options)
    os.chdir(FOLDER)
    call("sethostname", b"answer", 6)


def give_up_rights():
    """For good: no capability, none to be gained, none of `CALLS`, and no dump after a crash."""
    call("prctl", DUMPABLE, 0, 0, 0, 0)
    call("prctl", NO_NEW_RIGHTS, 1, 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)  # version 3 of capset, this process
    call("capset", header, bytes(24))
    rules = filter_program(platform.machine())
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(buffer))
    call("prctl", SECCOMP, 2, program, 0, 0)


def filter_program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as instructions (code, jump if true, jump if false, operand)."""
    if machine not in MACHINES:
        raise OSError(ENOSYS, f"isolation is written for {' and '.join(MACHINES)}, not {machine}")
    architecture, column, clone = MACHINES[machine]
    load, equal, at_least, bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, error, kill = 0x7FFF0000, 0x50000, 0x80000000
    refused = sorted(row[column] for row in CALLS.values() if row[column] is not None)
    return [
        (load, 0, 0, 4), (equal, 1, 0, architecture), (answer, 0, 0, kill),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000), (answer, 0, 0, error | EPERM),  # the x32 numbers
        (equal, 0, 1, CLONE3), (answer, 0, 0, error | ENOSYS),  # the C library then uses clone
        *(rule for n in refused for rule in ((equal, 0, 1, n), (answer, 0, 0, error | EPERM))),
        (equal, 1, 0, clone), (answer, 0, 0, allow),
        (load, 0, 0, 16), (bits, 1, 0, CLONE_THREAD), (answer, 0, 0, error | EPERM),
        (answer, 0, 0, allow),
    ]  # fmt: skip
