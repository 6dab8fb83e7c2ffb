"""What a learner's code might try for points, secrets or damage gains it nothing.

Each attack is a function ``attack()`` in an answer cell. First it is shown to work in an ordinary
process, against decoys made for it: it brings back the secret, or the decoy is changed, reached or
stopped. Then the same text runs through the grader's own path, and nothing of that may happen.
Attacks whose proof would harm this machine have none (`proof=""`), and say so.
"""

import hashlib
import json
import linecache
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from autograder import wire
from autograder.cases import Case
from autograder.checks import refused_imports
from autograder.discover import Found
from autograder.grade import Examiner, checked_release, grade
from autograder.imports import forbidden_imports
from autograder.normalise import normalise
from autograder.sandbox import Cell, Limits, Run, Sandbox, encode_cases, isolation, read_outcomes

ROOT = Path(__file__).resolve().parents[2]
HOMEWORK = "hw1_policy_gradient"
SECRET = "the-key-of-the-class-4711"
HIDDEN = SECRET[::-1]  # for attacks that search memory and must not find themselves
LIMITS = Limits(cpu_seconds=1, wall_seconds=4, memory_mb=256, file_mb=16)
X = torch.tensor([1.5, -2.0], dtype=torch.float64)
CASES = encode_cases([Case("one", (X,), {})])


@dataclass(frozen=True)
class Attack:
    """name; what it would gain; its code; proof: words it brings back when it works.

    effect : what happens to the decoys when it works. root : only root can show that it works.
    """

    name: str
    gain: str
    code: str
    proof: str = ""
    effect: str = ""
    root: bool = False


ATTACKS = [
    # Reading
    Attack(
        "read a file",
        "another submission",
        """
        def attack():
            return open(W["submission"]).read()
        """,
        SECRET,
    ),
    Attack(
        "read the key",
        "the final inputs, before they are drawn",
        """
        def attack():
            return open(W["key"]).read()
        """,
        SECRET,
    ),
    Attack(
        "read the gradebook",
        "everybody's points",
        """
        import sqlite3
        def attack():
            book = sqlite3.connect("file:" + W["book"] + "?mode=ro", uri=True)
            return book.execute("select name from grades").fetchone()[0]
        """,
        SECRET,
    ),
    Attack(
        "read a home folder",
        "whatever lies there",
        """
        import os
        def attack():
            return os.listdir(W["home"]) and open(W["home"] + "/.netrc").read()
        """,
        SECRET,
    ),
    Attack(
        "list the submissions",
        "who else hands in",
        """
        import os
        def attack():
            return os.listdir(W["folder"])
        """,
        "submission.ipynb",
    ),
    Attack(
        "read the solution",
        "the answer",
        """
        def attack():
            text = open(W["root"] + "/solutions/" + W["homework"] + "/"
                + W["homework"] + ".ipynb").read()
            return "BEGIN SOLUTION" in text and "found the solution"
        """,
        "found the solution",
    ),
    Attack(
        "execute the library's file",
        "the answer",
        """
        def attack():
            space = {"__name__": "mine"}
            exec(open(W["root"] + "/toy_models/exact.py").read().split("import")[0], space)
            return space["__doc__"] and "got the text"
        """,
        "got the text",
    ),
    Attack(
        "import by a name put together",
        "the answer",
        """
        import importlib
        def attack():
            name = "policy" + chr(95) + "gradients"
            return importlib.import_module(name).__file__
        """,
        "__init__.py",
    ),
    Attack(
        "import past all hooks",
        "the answer",
        """
        import sys
        def attack():
            sys.path.insert(0, W["root"])
            sys.meta_path[:] = sys.meta_path[-1:]
            name = "auto" + "grader.imports"
            return __import__(name, fromlist=['x']).__file__
        """,
        "imports.py",
    ),
    Attack(
        "load a module from its file",
        "the answer",
        """
        import importlib.util as u
        def attack():
            spec = u.spec_from_file_location("mine", W["root"] + "/autograder/imports.py")
            module = u.module_from_spec(spec)
            spec.loader.exec_module(module)
            return 'loaded ' + module.__name__
        """,
        "loaded mine",
    ),
    Attack(
        "look for other packages",
        "the grader's tools",
        """
        import os
        def attack():
            return os.path.isdir(W["packages"] + "/nbgrader") and "nbgrader"
        """,
        "nbgrader",
    ),
    Attack(
        "read the environment",
        "passwords of the grader",
        """
        import os
        def attack():
            return os.environ["GRADER_PASSWORD"]
        """,
        SECRET,
    ),
    Attack(
        "read another process's environment",
        "passwords of the grader",
        """
        def attack():
            data = open(f"/proc/{W['victim']}/environ", "rb").read()
            return data[data.index(b"GRADER"):]
        """,
        SECRET,
    ),
    Attack(
        "list the processes",
        "what else is graded, and how",
        """
        import os
        def attack():
            found = [p for p in os.listdir("/proc") if p == str(W["victim"])]
            return [open(f"/proc/{p}/cmdline").read() for p in found]
        """,
        "sleep",
    ),
    Attack(
        "read memory through /proc",
        "references and inputs in the grader",
        """
        def attack():
            with open(f"/proc/{W['pid']}/mem", "rb") as memory:
                memory.seek(W["address"])
                return memory.read(64)
        """,
        SECRET,
        root=True,
    ),
    Attack(
        "read memory with process_vm_readv",
        "references and inputs in the grader",
        """
        class V(ctypes.Structure):
            _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
        def attack():
            mine = ctypes.create_string_buffer(64)
            here, there = V(ctypes.addressof(mine), 64), V(W['address'], 64)
            n = libc.process_vm_readv(W['pid'], ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            return mine.raw if n > 0 else 'refused'
        """,
        SECRET,
        root=True,
    ),
    Attack(
        "trace another process",
        "control over the grader",
        """
        def attack():
            return 'traced' if libc.ptrace(0x4206, W['victim'], 0, 0) == 0 else 'refused'
        """,
        "traced",
        root=True,
    ),
    Attack(
        "search all open descriptors",
        "what the grader has open",
        """
        import os
        def attack():
            found = []
            for fd in range(3, 256):
                try:
                    found.append(os.pread(fd, 64, 0))
                except OSError:
                    pass
            return found
        """,
        SECRET,
    ),
    Attack(
        "search the garbage collector",
        "earlier submissions, references",
        """
        import gc
        def attack():
            for thing in gc.get_objects():
                if isinstance(thing, dict):
                    for value in list(thing.values()):
                        if isinstance(value, str) and W['hidden'][::-1] in value:
                            return value
        """,
        SECRET,
    ),
    Attack(
        "search raw memory",
        "earlier submissions, references",
        """
        def attack():
            want, page = W['hidden'][::-1].encode(), 4096
            state = ctypes.create_string_buffer(1)
            where = [id(W) & ~4095, id(object) & ~4095]
            for centre in where:
                for step in range(-3000, 3000):
                    start = ctypes.c_void_p(centre + step * page)
                    if libc.mincore(start, ctypes.c_size_t(page), state):
                        continue
                    data, at = ctypes.string_at(start, page), -1
                    while (at := data.find(want, at + 1)) >= 0:
                        place = start.value + at
                        if abs(place - id(want)) > 64 and data[at + len(want):][:7] == b'-marked':
                            return 'found it'
            return 'not there'
        """,
        "found it",
    ),
    Attack(
        "look into the frames",
        "what is expected",
        """
        import sys
        def attack():
            frame, names = sys._getframe(), set()
            while frame:
                names |= {*frame.f_locals, *frame.f_globals}
                frame = frame.f_back
            wanted = ('expected', 'reference', 'tolerance', 'seed', 'hidden')
            return 'names: ' + ' '.join(names & {*wanted})
        """,
        "expected",
    ),
    Attack(
        "follow a link",
        "another submission",
        """
        import os
        def attack():
            os.symlink(W['submission'], 'link')
            return open('link').read()
        """,
        SECRET,
    ),
    Attack(
        "make a hard link",
        "another submission",
        """
        import os
        def attack():
            os.link(W['submission'], W['folder'] + '/again')
            return open(W['folder'] + '/again').read()
        """,
        SECRET,
    ),
    Attack(
        "climb out of the folder",
        "another submission",
        """
        import os
        def attack():
            os.chdir('/' + '../' * 40)
            return open(os.getcwd() + '/' + '../' * 40 + W['submission']).read()
        """,
        SECRET,
    ),
    Attack(
        "start a program",
        "all that programs can do",
        """
        import subprocess
        def attack():
            return subprocess.run(['cat', W['submission']], capture_output=True).stdout
        """,
        SECRET,
    ),
    Attack(
        "become another program",
        "all that programs can do",
        """
        import os, sys
        def attack():
            os.execv('/bin/cat', ['cat', W['submission']])
        """,
        SECRET,
    ),
    Attack(
        "a program through the loader",
        "all that programs can do",
        """
        import os, glob
        def attack():
            loader = glob.glob('/lib*/ld-linux*')[0]
            os.execv(loader, [loader, '/bin/cat', W['submission']])
        """,
        SECRET,
    ),
    Attack(
        "become root",
        "the rights of root",
        """
        import os
        def attack():
            os.setuid(0)
            os.setgroups([0])
            return 'I am root'
        """,
        "I am root",
        root=True,
    ),
    Attack(
        "a user namespace of one's own",
        "mounting, and all rights in there",
        """
        def attack():
            if libc.unshare(0x10020000):
                return 'refused'
            return 'mounted' if libc.mount(b'x', b'/mnt', b'tmpfs', 0, None) == 0 else 'refused'
        """,
        "mounted",
    ),
    Attack(
        "enter the grader's namespaces",
        "the grader's files",
        """
        import os
        def attack():
            fd = os.open(f"/proc/{W['pid']}/ns/mnt", os.O_RDONLY)
            return 'entered' if libc.setns(fd, 0x20000) == 0 else 'refused'
        """,
        "entered",
        root=True,
    ),
    Attack(
        "change the root",
        "the way out of it",
        """
        def attack():
            return 'changed' if libc.chroot(b'/') == 0 else 'refused'
        """,
        "changed",
        root=True,
    ),
    # Writing
    Attack(
        "write points into the gradebook",
        "points",
        """
        import sqlite3
        def attack():
            book = sqlite3.connect(W['book'])
            book.execute("update grades set points = 20")
            book.commit()
        """,
        effect="files",
    ),
    Attack(
        "change the configuration",
        "points",
        """
        def attack():
            open(W['config'], 'a').write('c.Grader.all_right = True')
        """,
        effect="files",
    ),
    Attack(
        "leave a .pth among the packages",
        "code in the next process of the grader",
        """
        def attack():
            open(W['site'] + '/evil.pth', 'w').write('import os')
        """,
        effect="files",
    ),
    Attack(
        "remove another submission",
        "nothing but harm",
        """
        import os
        def attack():
            os.chmod(W['folder'], 0o777)
            os.remove(W['submission'])
        """,
        effect="files",
    ),
    Attack(
        "write through a link",
        "points",
        """
        import os
        def attack():
            os.symlink(W['config'], 'link')
            open('link', 'a').write('x')
        """,
        effect="files",
    ),
    Attack(
        "change torch or Python for the next one",
        "code in other people's processes",
        """
        import os, torch
        def attack():
            for module in (os, torch):
                folder = os.path.dirname(module.__file__)
                for path in (folder + '/evil.py', module.__file__):
                    try:
                        open(path, 'a').close()
                        return 'could write ' + path
                    except OSError:
                        pass
            return 'refused'
        """,
    ),  # no proof: it would change this machine's packages
    # Reaching out
    Attack(
        "a connection",
        "somebody who helps",
        """
        import socket
        def attack():
            socket.create_connection(('127.0.0.1', W['port']), 2).send(b'x')
        """,
        effect="contact",
    ),
    Attack(
        "a datagram",
        "telling others the inputs",
        """
        import socket
        def attack():
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.sendto(b'x', ('127.0.0.1', W['udp']))
        """,
        effect="contact",
    ),
    Attack(
        "a unix socket",
        "services of this machine",
        """
        import socket
        def attack():
            s = socket.socket(socket.AF_UNIX)
            s.connect(W['unix'])
        """,
        effect="contact",
    ),
    Attack(
        "an abstract socket",
        "services of this machine",
        """
        import socket
        def attack():
            s = socket.socket(socket.AF_UNIX)
            s.connect('\\0' + W['abstract'])
        """,
        effect="contact",
    ),
    # Outliving, and stopping others
    Attack(
        "a daemon",
        "life after the question",
        """
        import os, time
        def attack():
            r, w = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(w, str(os.getpid()).encode())
                    for fd in range(256):
                        try:
                            os.close(fd)
                        except OSError:
                            pass
                    time.sleep(20)
                os._exit(0)
            return 'daemon ' + os.read(r, 9).decode()
        """,
        "daemon",
    ),
    Attack(
        "a thread that will not end",
        "life after the question",
        """
        import threading, time, atexit, signal
        def attack():
            for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
                signal.signal(s, signal.SIG_IGN)
            def stay():
                time.sleep(1.2)
                print('still here')
            atexit.register(stay)
            threading.Thread(target=stay).start()
            return 'begun'
        """,
        "still here",
    ),
    Attack(
        "kill a process",
        "an end to the grading of others",
        """
        import os
        def attack():
            os.kill(W['victim'], 9)
        """,
        effect="victim",
    ),
    Attack(
        "stop a process",
        "an end to the grading of others",
        """
        import os, signal
        def attack():
            os.kill(W['victim'], signal.SIGSTOP)
        """,
        effect="victim",
    ),
    Attack(
        "kill everything",
        "an end to the grading of others",
        """
        import os
        def attack():
            for target in (-1, 0, os.getppid()):
                try:
                    os.kill(target, 9)
                except OSError:
                    pass
            os.killpg(0, 9)
        """,
    ),  # no proof: it would end this machine's work
    # Using things up
    Attack(
        "memory",
        "an end to the grading of others",
        """
        def attack():
            block = bytearray(300 * 2**20)
            return 'took it'
        """,
        "took it",
    ),
    Attack(
        "memory that no process owns",
        "memory beyond the limit",
        """
        import os
        def attack():
            held = [os.memfd_create('m') for _ in range(4)]
            for fd in held:
                os.posix_fallocate(fd, 0, 10 * 2**20)
            return 'took it'
        """,
        "took it",
    ),
    Attack(
        "shared memory of System V",
        "memory beyond the limit",
        """
        def attack():
            made = libc.shmget(0, ctypes.c_size_t(2**20), 0o1600)
            if made >= 0:
                libc.shmctl(made, 0, None)
            return 'made' if made >= 0 else 'refused'
        """,
        "made",
    ),
    Attack(
        "one big file",
        "a full disk",
        """
        def attack():
            open('big', 'wb').write(bytes(17 * 2**20))
            return 'wrote it'
        """,
        "wrote it",
    ),
    Attack(
        "several files",
        "a full disk",
        """
        def attack():
            for i in range(9):
                open(f'part{i}', 'wb').write(bytes(2 * 2**20))
            return 'wrote them'
        """,
        "wrote them",
    ),
    Attack(
        "many files",
        "no inodes left",
        """
        def attack():
            for i in range(2500):
                open(f'n{i}', 'w').close()
            return 'made them'
        """,
        "made them",
    ),
    Attack(
        "many processes",
        "an end to the grading of others",
        """
        import os, time
        def attack():
            for i in range(70):
                if os.fork() == 0:
                    time.sleep(0.5)
                    os._exit(0)
            return 'made 70'
        """,
        "made 70",
    ),
    Attack(
        "many threads",
        "an end to the grading of others",
        """
        import threading, time
        def attack():
            for i in range(70):
                threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
            return 'made 70'
        """,
        "made 70",
    ),
    Attack(
        "many descriptors",
        "none left for others",
        """
        import os
        def attack():
            held = [os.dup(0) for _ in range(100)]
            return 'has 100'
        """,
        "has 100",
    ),
    Attack(
        "processor time",
        "an end to the grading of others",
        """
        import time, signal
        def attack():
            signal.signal(signal.SIGXCPU, signal.SIG_IGN)
            while time.process_time() < W['spin']:
                pass
            return 'spun'
        """,
        "spun",
    ),
    Attack(
        "processor time in threads",
        "an end to the grading of others",
        """
        import threading, time
        def attack():
            def spin():
                while time.process_time() < W['spin']:
                    pass
            threads = [threading.Thread(target=spin) for _ in range(3)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            return 'spun'
        """,
        "spun",
    ),
    Attack(
        "time",
        "an end to the grading of others",
        """
        import time
        def attack():
            time.sleep(4.5)
            return 'slept'
        """,
        "slept",
    ),
]

# The attacks that one question may survive must show up in words; these leave no answer at all.
ENDLESS = {"processor time", "processor time in threads", "time"}


def tree(folder: Path) -> dict:
    """Every file with its content and mode."""
    return {
        str(p.relative_to(folder)): (
            p.lstat().st_mode,
            hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "",
        )
        for p in [folder, *sorted(folder.rglob("*"))]
        if not p.is_socket()
    }


class World:
    """Decoys: files to read and to change, listeners to reach, a process to stop."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = folder / "class"
        self.sockets = [
            socket.socket(socket.AF_INET, socket.SOCK_STREAM),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        ]
        abstract = f"autograder-test-{os.getpid()}"
        addresses = [("127.0.0.1", 0)] * 2 + [f"/tmp/{abstract}", "\0" + abstract]
        for one, address in zip(self.sockets, addresses, strict=True):
            one.bind(address)
            one.setblocking(False)
            if one.type == socket.SOCK_STREAM:
                one.listen()
        self.memory = torch.frombuffer(bytearray(SECRET.encode()), dtype=torch.uint8)
        self.victim = None
        self.reset()
        self.facts = {
            "submission": str(self.files / "submission.ipynb"),
            "folder": str(self.files),
            "key": str(self.files / "grading.key"),
            "book": str(self.files / "gradebook.db"),
            "config": str(self.files / "nbgrader_config.py"),
            "home": str(self.files / "home"),
            "site": str(self.files / "site-packages"),
            "packages": str(Path(pytest.__file__).parents[1]),
            "root": str(ROOT),
            "homework": HOMEWORK,
            "port": self.sockets[0].getsockname()[1],
            "udp": self.sockets[1].getsockname()[1],
            "unix": addresses[2],
            "abstract": abstract,
            "pid": os.getpid(),
            "address": self.memory.data_ptr(),
            "hidden": HIDDEN,
            "spin": 1.5,
        }

    def reset(self):
        """Everything as it was."""
        shutil.rmtree(self.files, ignore_errors=True)
        for name in ("home", "site-packages"):
            (self.files / name).mkdir(parents=True)
        for name in ("submission.ipynb", "grading.key", "home/.netrc", "nbgrader_config.py"):
            (self.files / name).write_text(SECRET)
        book = sqlite3.connect(self.files / "gradebook.db")
        book.execute("create table grades (name, points)")
        book.execute("insert into grades values (?, 3)", (SECRET,))
        book.commit()
        book.close()
        self.end_victim()
        self.victim = subprocess.Popen(["sleep", "300"], env={"GRADER_PASSWORD": SECRET})
        self.before = tree(self.files)

    def end_victim(self):
        if self.victim:
            self.victim.kill()
            self.victim.wait()

    def words(self) -> str:
        """The facts as a cell: the addresses an attacker would have to guess."""
        return (
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            f"W = {self.facts | {'victim': self.victim.pid}!r}"
        )

    def changes(self) -> set[str]:
        """What has happened to the decoys."""
        found = set()
        if tree(self.files) != self.before:
            found.add("files")
        for one in self.sockets:
            try:
                one.accept() if one.type == socket.SOCK_STREAM else one.recv(9)
                found.add("contact")
            except BlockingIOError:
                pass
        state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if self.victim.poll() is not None or state in "TtZ":
            found.add("victim")
        return found

    def close(self):
        self.end_victim()
        Path(self.facts["unix"]).unlink()
        for one in self.sockets:
            one.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory, missing):
    if isolation():
        missing("isolation", isolation())
    world = World(tmp_path_factory.mktemp("world"))
    os.environ["GRADER_PASSWORD"] = SECRET
    yield world
    del os.environ["GRADER_PASSWORD"]
    world.close()


@pytest.fixture(scope="module")
def sandbox(world):
    # A descriptor that a careless grader would hand on.
    with (world.folder / "open").open("w+") as file:
        file.write(SECRET)
        file.flush()
        os.set_inheritable(file.fileno(), True)
        with Sandbox(LIMITS) as sandbox:
            yield sandbox


# An unprotected kernel: the answer runs where the expected values and earlier answers lie.
UNPROTECTED = """
earlier = {hidden!r}[::-1] + "-marked"
def judge():
    expected = earlier
    return attack()
print(judge())
"""


def unprotected(world, attack: Attack) -> str:
    """What the attack says in an ordinary process."""
    source = f"{world.words()}\n{dedent(attack.code)}\n{UNPROTECTED.format(hidden=HIDDEN)}"
    with (world.folder / "descriptor").open("w+") as file:
        file.write(SECRET)
        file.flush()
        folder = world.folder / f"plain-{len(list(world.folder.iterdir()))}"
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True, text=True, timeout=60, cwd=folder, pass_fds=[file.fileno()],
        )  # fmt: skip
    return done.stdout + done.stderr


WRAPPED = """
def f(x):
    try:
        loot = str(attack())
    except BaseException as error:
        loot = f"{type(error).__name__}: {error}"
    raise ValueError("brought back " + loot)
"""


def protected(sandbox, world, attack: Attack):
    cells = [Cell("facts", world.words()), Cell("answer", dedent(attack.code) + WRAPPED)]
    return sandbox.run(cells, "answer", "f", CASES)


def children(pid: int) -> list[int]:
    """All that descends from a process."""
    own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [n for child in map(int, own) for n in (child, *children(child))]


def honest(sandbox):
    """The next one is served, and rightly."""
    run = sandbox.run([Cell("answer", "def f(x):\n    return 3 * x")], "answer", "f", CASES)
    assert run.outcomes, run
    assert torch.equal(run.outcomes[0].value, 3 * X)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_gains_nothing(world, sandbox, attack):
    if (attack.proof or attack.effect) and not (attack.root and os.geteuid()):
        said = unprotected(world, attack)
        assert attack.proof in said, f"it does not even work unprotected: {said}"
        assert not attack.effect or attack.effect in world.changes()
        for word in said.split():
            if attack.name == "a daemon" and word.isdigit():
                os.kill(int(word), signal.SIGKILL)  # it did outlive its process
        world.reset()
        assert not world.changes()
    earlier = f'kept = "{SECRET}-marked"\ndef f(x):\n    return x'
    sandbox.run([Cell("answer", earlier)], "answer", "f", CASES)  # another learner's answer
    worker = sandbox._process.pid
    running = children(worker)

    run = protected(sandbox, world, attack)
    text = repr(run)
    assert attack.proof not in text or not attack.proof
    assert SECRET not in text
    assert "could write" not in text
    if attack.name in ENDLESS:
        assert run.slow
    else:  # it came to its end and says what became of it
        assert run.outcomes is None or "brought back" in run.outcomes[0].error, text
    assert not world.changes()
    assert sandbox._process.pid == worker, "the worker had to be replaced"
    assert children(worker) == running, "something outlived its question"
    honest(sandbox)


def test_the_table_covers_each_kind_and_says_what_it_would_gain():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 50
    assert all(attack.gain for attack in ATTACKS)
    unproved = {a.name for a in ATTACKS if not (a.proof or a.effect)}
    assert unproved == {"kill everything", "change torch or Python for the next one"}


# Replies that a learner's process could write in place of ours. {"event": "begin"} is sent before.
OUTCOMES = b'{"event": "outcomes", "outcomes": '
FORGED = {
    "too much": "b'x' * (17 * 2**20)",
    "only line ends": "b'\\n' * (15 * 2**20)",
    "a million events": "b'{}\\n' * 10**6",
    "deeply nested": f"{OUTCOMES} + b'[' * 10**6",
    "deeply nested events": "b'{\"event\": ' * 10**5",
    "a deep cell": "b'{\"event\": \"start\", \"cell\": ' + b'[' * 900 + b']' * 900 + b'}'",
    "a million outcomes": f"{OUTCOMES} + b'[' + b'{{}},' * 10**6 + b'{{}}]}}'",
    "not text": "bytes(range(256)) * 1000",
    "endless digits": f"{OUTCOMES} + b'[' + b'9' * 10**7 + b']}}'",
    "a slow cell that is not there": 'b\'{"event": "start", "cell": "other"}\\n\'',
    "an error of megabytes": 'b\'{"event": "stopped", "error": "\' + b\'x\' * 10**7 + b\'"}\\n\'',
}


def tensor(**changes):
    """An outcome on the wire, with something odd in its tensor."""
    value = {"dtype": "float64", "shape": [2], "data": [0.0, 0.0], "requires_grad": False} | changes
    fields = {"value": {"tensor": value}, "kind": "tensor", "modified": {"tuple": []}, "error": ""}
    return {"dict": fields | {"gradients": {"tuple": []}}}


SHAPES = {
    "a product of huge numbers": {"shape": [10**4000] * 500},
    "many axes": {"shape": [1] * 10**5},
    "no elements, endless shape": {"shape": [0, 2**62], "data": []},
    "a number too large": {"data": [10**400, 0]},
    "text for numbers": {"data": ["1", "2"]},
    "another type": {"dtype": ["float64"]},
    "a flood of NaN": {"shape": [2**20], "data": [float("nan")] * 2**20},
}


def forge(sandbox, data: str):
    source = f"import os\ndef f(x):\n    data = {data}\n    while data:\n"
    source += "        data = data[os.write(3, data):]\n    os._exit(0)"
    start = time.process_time()
    run = sandbox.run([Cell("answer", source)], "answer", "f", CASES)
    assert time.process_time() - start < 3, "it kept the grader busy"
    return run


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_reply_is_no_answer(sandbox, name):
    run = forge(sandbox, FORGED[name])
    assert run.outcomes is None
    assert run.problem
    assert not run.slow_cell
    assert len(repr(run)) < 2000
    honest(sandbox)


@pytest.mark.parametrize("name", SHAPES)
def test_a_forged_tensor_is_refused_or_just_wrong(name):
    message = [tensor(**SHAPES[name])]
    start = time.process_time()
    if name == "a flood of NaN":  # in the format, and no right answer
        assert read_outcomes(message, 1)[0].value.isnan().all()
    else:
        with pytest.raises(wire.WireError) as refused:
            read_outcomes(message, 1)
        assert len(str(refused.value)) < 500
    assert time.process_time() - start < 3


def test_a_forged_outcome_counts_by_its_numbers_only(sandbox):
    data = json.dumps({"event": "outcomes", "outcomes": [tensor(data=[9.0, 9.0])]}) + "\n"
    run = forge(sandbox, repr(data.encode()))
    assert run.outcomes[0].value.tolist() == [9.0, 9.0]  # judged like any wrong number


def test_the_collector_can_be_replaced_but_numbers_stay_numbers(sandbox):
    source = """
import gc
def mine(function, cases):
    return [Fake(case) for case in cases]
class Fake:
    __dataclass_fields__ = ["value", "kind", "gradients", "modified", "error", "points"]
    def __init__(self, case):
        self.value, self.kind, self.gradients = "20 of 20", "tensor", ()
        self.modified, self.error, self.points = (), "", 20
for thing in gc.get_objects():
    if isinstance(thing, dict) and "collect" in thing and "Outcome" in thing:
        thing["collect"] = mine
def f(x):
    return x
"""
    run = sandbox.run([Cell("answer", source)], "answer", "f", CASES)
    assert run.outcomes is None
    assert "fields" in run.said  # the replaced collector did run, and its reply was read


@dataclass(frozen=True)
class Trick:
    """A wrong answer to leave_one_out and the check in an ordinary notebook that it passes."""

    name: str
    code: str
    check: str = "assert torch.allclose(leave_one_out(rewards), right)"


WRONG = """
def leave_one_out(rewards):
    return rewards * 0.5
"""
EQUAL = "assert (leave_one_out(rewards) == right).all()"
TRICKS = [
    Trick("allclose patched", "import torch\ntorch.allclose = lambda *a, **k: True" + WRONG),
    Trick(
        "equal patched",
        "import torch\ntorch.equal = lambda *a: True" + WRONG,
        "assert torch.equal(leave_one_out(rewards), right)",
    ),
    Trick(
        "eq patched",
        "import torch\ntorch.Tensor.__eq__ = lambda a, b: torch.ones(1, dtype=bool)" + WRONG,
        EQUAL,
    ),
    Trick(
        "subtraction patched",
        "import torch\ntorch.Tensor.__sub__ = lambda a, b: torch.zeros(1)" + WRONG,
        "assert (leave_one_out(rewards) - right).abs().max() < 1e-9",
    ),
    Trick(
        "autograd patched",
        "import torch\ntorch.autograd.grad = lambda *a, **k: (torch.eye(3).double() * 1.5 - 0.5,)"
        + WRONG,
        "x = rewards[:1].clone().requires_grad_()\n"
        "(g,) = torch.autograd.grad(leave_one_out(x)[0, 0], x)\n"
        "assert torch.allclose(g, torch.eye(3).double() * 1.5 - 0.5)",
    ),
    Trick(
        "clone patched",
        "import torch\ntorch.Tensor.clone = lambda self, **k: self\n"
        "def leave_one_out(rewards):\n    return rewards.zero_()",
        "before = rewards.clone()\nleave_one_out(rewards)\nassert torch.equal(before, rewards)",
    ),
    Trick(
        "builtins patched",
        "import builtins\nbuiltins.all = lambda things: True" + WRONG,
        "assert all((leave_one_out(rewards) == right).flatten().tolist())",
    ),
    Trick(
        "a tensor that equals everything",
        "import torch\nclass Yes(torch.Tensor):\n    @classmethod\n"
        "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
        "        return True\n"
        "def leave_one_out(rewards):\n    return rewards.as_subclass(Yes)",
    ),
    Trick(
        "an object that says it is a tensor",
        "import torch\nclass Yes:\n    __class__ = torch.Tensor\n"
        "    def __eq__(self, other):\n        return torch.ones(1, dtype=bool)\n"
        "    def __getattr__(self, name):\n        return getattr(torch.zeros(2, 3), name)\n"
        "def leave_one_out(rewards):\n    return Yes()",
        "out = leave_one_out(rewards)\n"
        "assert isinstance(out, torch.Tensor) and (out == right).all()",
    ),
    Trick(
        "NaN is never too far away",
        "def leave_one_out(rewards):\n    return rewards * float('nan')",
        "assert not ((leave_one_out(rewards) - right).abs() > 1e-9).any()",
    ),
    Trick("an early end", "import os\ndef leave_one_out(rewards):\n    os._exit(0)"),
    Trick("a polite exit", "import sys\ndef leave_one_out(rewards):\n    sys.exit(0)"),
    Trick(
        "the expected value rewritten",
        "import sys\ndef leave_one_out(rewards):\n    frame = sys._getframe(1)\n"
        "    while frame:\n        for space in (frame.f_globals, frame.f_locals):\n"
        "            if 'right' in space:\n                space['right'] = rewards * 0.5\n"
        "        frame = frame.f_back\n    return rewards * 0.5",
        "out = leave_one_out(rewards)\nassert torch.allclose(out, right)",
    ),
    Trick(
        "right at the first call",
        "calls = []\ndef leave_one_out(rewards):\n    calls.append(1)\n"
        "    n = rewards.shape[1]\n"
        "    baseline = (rewards.sum(1, keepdim=True) - rewards) / (n - 1)\n"
        "    return rewards - baseline if len(calls) == 1 else rewards",
    ),
    Trick(
        "the visible inputs recognised",
        "import torch\ndef leave_one_out(rewards):\n"
        "    known = torch.tensor([[1.0, 2.0, 6.0], [0.0, 3.0, 9.0]], dtype=rewards.dtype)\n"
        "    if rewards.shape == known.shape and (rewards == known).all():\n"
        "        return torch.tensor([[-3.0, -1.5, 4.5], [-6.0, -1.5, 7.5]], dtype=rewards.dtype)\n"
        "    return rewards",
    ),
    Trick(
        "points printed",
        "print('leave_one_out: 2 of 2 points')\n"
        "def leave_one_out(rewards):\n    raise SystemExit(0)",
    ),
    Trick(
        "the solution executed",
        "import os, json\n"
        f"path = {str(ROOT / 'solutions' / HOMEWORK / (HOMEWORK + '.ipynb'))!r}\n"
        "for cell in json.load(open(path))['cells']:\n    text = ''.join(cell['source'])\n"
        "    if 'def leave_one_out' in text and cell['cell_type'] == 'code':\n"
        "        space = {}\n        run = getattr(__builtins__, 'ex' + 'ec', None)\n"
        "        (run or __builtins__['ex' + 'ec'])('import torch\\n' + text, space)\n"
        "def leave_one_out(rewards):\n    return space['leave_one_out'](rewards)",
    ),
]
HARM = {
    "spins": "def leave_one_out(rewards):\n    while True:\n        pass",
    "kills": "import os\ndef leave_one_out(rewards):\n    os.kill(os.getppid(), 9)\n"
    "    os.kill(-1, 9)",
    "crashes": "import ctypes\ndef leave_one_out(rewards):\n    ctypes.string_at(0)",
    "floods": "import os\ndef leave_one_out(rewards):\n    while True:\n"
    "        os.write(3, bytes(2**16))",
}
RIGHT = """
def leave_one_out(rewards):
    n = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (n - 1)
"""

# An ordinary notebook's check, beside the answer. One fork each, so that importing torch is paid
# once. An answer that ends the process passes it, as a script that ends well.
ORDINARY = """
import json, os, sys, torch
torch.set_num_threads(1)
for code, check in json.load(sys.stdin):
    pid = os.fork()
    if pid == 0:
        status = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, 3.0, 9.0]], dtype=torch.float64)
            right = torch.tensor([[-3.0, -1.5, 4.5], [-6.0, -1.5, 7.5]], dtype=torch.float64)
            space = {"torch": torch, "rewards": rewards, "right": right}
            exec(code, space)
            exec(check, space)
            status = 0
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    print(os.waitpid(pid, 0)[1])
"""


def test_the_tricks_pass_a_check_that_runs_beside_the_answer():
    tried = [*TRICKS, Trick("none", RIGHT), Trick("none", WRONG)]
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY],
        input=json.dumps([(t.code, t.check) for t in tried]), capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0"] * (len(TRICKS) + 1) + ["256"], done.stderr


def notebook(answer: str, **changes) -> str:
    """The homework with this answer to leave_one_out and no other."""
    path = ROOT / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb"
    content = json.loads(path.read_text("utf-8"))
    for cell in content["cells"]:
        mark = cell["metadata"].get("nbgrader", {})
        if mark.get("grade_id") == "leave_one_out_answer":
            cell["source"] = answer
        if mark.get("grade_id") == "leave_one_out":
            cell["source"] = changes.get("check", cell["source"])
            mark |= changes.get("mark", {})
    return json.dumps(content)


@pytest.mark.slow  # 26 submissions, some of which use up their time
def test_tricks_and_harm_gain_no_points_and_stop_nobody(world, tmp_path, monkeypatch):
    monkeypatch.setenv("POLICY_GRADIENTS_GRADING_KEY", str(tmp_path / "config" / "grading.key"))
    submissions, output = tmp_path / "submissions", tmp_path / "graded"
    given = {t.name: (notebook(t.code), 0) for t in TRICKS}
    given |= {name: (notebook(code), 0) for name, code in HARM.items()}
    given["check changed"] = notebook(WRONG, check="print('right')"), 0
    given["points changed"] = notebook(WRONG, mark={"points": 1000, "grade": False}), 0
    given["right, points changed"] = notebook(RIGHT, mark={"points": 1000}), 2
    given |= {f"{first} honest": (notebook(RIGHT), 2) for first in "az"}
    for name, (text, _) in given.items():
        path = submissions / name.replace(" ", "_").replace(",", "") / f"{HOMEWORK}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    before, running = tree(submissions), set(children(os.getpid()))

    limits = Limits(cpu_seconds=1, wall_seconds=20)
    release = checked_release(HOMEWORK)
    results = grade(release, submissions, output, jobs=2, limits=limits, isolated=True)

    got = {r.student: (sum(m.points for m in r.marks), r.error) for r in results}
    wanted = {
        name.replace(" ", "_").replace(",", ""): (points, "") for name, (_, points) in given.items()
    }
    assert got == wanted
    assert tree(submissions) == before
    assert not world.changes()
    with sqlite3.connect(output / "gradebook.db") as book:
        query = "select max(coalesce(manual_score, auto_score, 0)) from grade"
        assert book.execute(query).fetchone() == (2.0,)
    assert set(children(os.getpid())) == running


def test_many_endless_cells_cost_a_few_time_limits(tmp_path, monkeypatch):
    monkeypatch.setenv("POLICY_GRADIENTS_GRADING_KEY", str(tmp_path / "config" / "grading.key"))
    content = json.loads(notebook(RIGHT))
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    content["cells"] += [cell | {"id": f"own-{i}", "source": f"x = {i}"} for i in range(50)]
    path = tmp_path / "submission.ipynb"
    path.write_text(json.dumps(content))
    asked = []

    def endless(cells, *_):
        asked.append(cells)
        return Run(None, "took longer than 5 seconds", True, cells[-1].key)

    examiner = Examiner(checked_release(HOMEWORK), isolated=False)
    try:
        monkeypatch.setattr(examiner.sandbox, "run", endless)
        result = examiner.examine(Found("mallory", path))
    finally:
        examiner.close()
    assert sum(mark.points for mark in result.marks) == 0
    assert len(asked) <= 6


SMUGGLED = {
    "a plain import": "from policy_gradients.advantages import leave_one_out",
    "an import inside": "def leave_one_out(rewards):\n"
    "    import policy_gradients.advantages as ready\n"
    "    return ready.leave_one_out(rewards)",
    "a name in a variable": "import importlib\nname = 'policy_gradients.advantages'\n"
    "ready = importlib.import_module(name)\n"
    "def leave_one_out(rewards):\n    return ready.leave_one_out(rewards)",
    "code in a variable": "code = 'from policy_gradients.advantages import *'\n"
    "exec(code)\nready = leave_one_out\ndef leave_one_out(rewards):\n    return ready(rewards)",
    "a module that is loaded": "import sys\ndef leave_one_out(rewards):\n"
    "    return sys.modules['policy_gradients'].advantages.leave_one_out(rewards)",
    "numpy through torch": "def leave_one_out(rewards):\n    n = rewards.shape[1]\n"
    "    total = rewards.numpy().sum(1, keepdims=True)\n"
    "    return rewards - (torch.from_numpy(total) - rewards) / (n - 1)",
    "through check": "from autograder import check\nfind = check.__globals__['find']\n"
    "def leave_one_out(rewards):\n    return find('hw1/leave_one_out').reference(rewards)",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_check_and_grade_refuse_the_same_borrowed_answers(name):
    code = SMUGGLED[name] if "def " in SMUGGLED[name] else f"{SMUGGLED[name]}\n{BORROWED}"
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, 3.0, 9.0]], dtype=torch.float64)
    space = {"torch": torch}
    linecache.cache["<cell>"] = (len(code), None, code.splitlines(True), "<cell>")
    exec(compile(code, "<cell>", "exec"), space)
    answer = space["leave_one_out"]
    assert answer(rewards)[0].tolist() == [-3.0, -1.5, 4.5]  # it works in the notebook
    assert refused_imports(answer)
    graded = normalise(checked_release(HOMEWORK), notebook(code).encode())
    assert "An answer may use torch" in graded.answers["hw1/leave_one_out"].problem


def test_looking_at_numbers_beside_the_answer_is_no_borrowing():
    assert not forbidden_imports(f"{RIGHT}\nprint(leave_one_out(torch.eye(3)).numpy())")


BORROWED = "ready = leave_one_out\ndef leave_one_out(rewards):\n    return ready(rewards)"


@pytest.mark.parametrize("isolated", [True, False])
def test_a_killed_grader_leaves_no_process(isolated, missing, tmp_path):
    if isolated and isolation():
        missing("isolation", isolation())
    source = f"""
from autograder.sandbox import *
from autograder.cases import Case
with Sandbox(isolated={isolated}) as sandbox:
    cases = encode_cases([Case("one", (torch.ones(1),), {{}})])
    answer = "def f(x):\\n    return x"
    sandbox.run([Cell("answer", answer)], "answer", "f", cases)
    print("ready", flush=True)
    answer = "import time\\ntime.sleep(60)"
    sandbox.run([Cell("answer", answer)], "answer", "f", cases)
"""
    place = os.environ | {"TMPDIR": str(tmp_path)}  # its folder stays behind
    grader = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, env=place)
    assert grader.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 60
    while len(left := children(grader.pid)) < 2 + isolated and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(left) == 2 + isolated  # the question is running
    grader.kill()
    grader.wait()
    grader.stdout.close()
    while any(alive(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in left if alive(pid)]


def alive(pid: int) -> bool:
    """Still there, and not only as an entry that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
