"""Runs learners' code: a process that loads torch once and forks for every question.

Started by `autograder.sandbox` as a script. It loads torch, `autograder.cases`, `autograder.wire`
and `autograder.isolation`: no reference, no expected value and no tolerance ever enters it. It
does not even read the questions: the descriptor of a job is handed on to a fork, and only that
fork reads it, so that what one learner wrote is not in the memory of the next one's process.

Protocol, over the socket whose descriptor is the first argument: the worker says ready. Per job
the grader sends the word run with two descriptors, the job (a file) and the end of a pipe to
report into; later the word end. Then the worker kills the fork and says how it ended and how much
CPU time it took, as a line of JSON. The worker ends when the socket does.
The fork runs the learner's cells in its own working folder, within limits, then `collect`, and
reports one line per event; only the grader reads them, as foreign data.

The second argument holds the settings: limits, package folders, and the empty folder for the root
of an isolated world, or null for child processes with limits only.
"""

import ast
import builtins
import contextlib
import ctypes
import json
import linecache
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
OURS = {"policy_gradients", "toy_models", "llm_trainer", "lectures", "autograder", "solutions"}
REPORT = 3  # the only descriptor a learner's code finds open, besides three that lead nowhere


PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
PR_SET_CHILD_SUBREAPER = 36


def system_call(option, value):
    """prctl; does nothing on systems other than Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


class Refuse:
    """An import hook in front of all others: none of the course's own packages can be loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in OURS:
            raise ImportError(f"{name} is not available to an answer")


def main():
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    sources = {name: (HERE / f"{name}.py").read_text() for name in ("isolation", "cases", "wire")}
    isolation = module("isolation", sources)
    proc = None
    if settings["root"]:
        proc = isolation.enter(settings["root"], settings["packages"])
        if inside := os.fork():  # the worker proper is the first of its pid namespace
            control.close()
            os.waitpid(inside, 0)
            os._exit(0)
    system_call(PR_SET_PDEATHSIG, signal.SIGKILL)
    system_call(PR_SET_CHILD_SUBREAPER, 1)
    shut_in = partial(confine, isolation, proc, settings["limits"])
    if settings["only_try"]:
        control.sendall(b"ready\n" if attempt(isolation, proc, shut_in) else b"failed\n")
        return
    sys.path += settings["packages"]
    sys.meta_path.insert(0, Refuse)
    sys.argv[:] = [""]
    del globals()["__file__"]
    import torch

    with contextlib.suppress(ImportError):
        import einops  # noqa: F401
    cases, wire = module("cases", sources), module("wire", sources)
    torch.set_num_threads(1)
    control.sendall(b"ready\n")
    serve(control, isolation, proc, shut_in, cases, wire)


def module(name, sources):
    """One of our files as a module that does not say where it lies."""
    made = ModuleType(name)
    exec(compile(sources[name], f"<{name}>", "exec"), made.__dict__)
    return made


def attempt(isolation, proc, shut_in) -> bool:
    """Whether a fork can be shut in here; if not, the reason goes to standard error."""
    pid = fork(isolation, proc)
    if pid == 0:
        try:
            shut_in()
            Path("file").touch()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def fork(isolation, proc):
    return os.fork() if proc is None else isolation.fork_apart(proc)


def serve(control, isolation, proc, shut_in, cases, wire):
    """One fork per job, until the grader is gone."""
    while True:
        word, descriptors, *_ = socket.recv_fds(control, 3, 2)
        if word != b"run":
            return
        job, report = descriptors
        folder = None if proc is not None else new_folder()
        pid = fork(isolation, proc)
        if pid == 0:
            try:
                control.detach()
                with open(job, "rb") as file:
                    text = file.read()
                shut_in(folder)
                os.dup2(report, REPORT, inheritable=False)
                os.closerange(REPORT + 1, 4096)
                answer(json.loads(text), cases, wire)
            except BaseException:
                traceback.print_exc()  # before the learner's code: to the log; else to nowhere
            finally:
                os._exit(0)
        os.close(job)
        os.close(report)
        word = control.recv(3)
        kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
        if folder:
            sweep()
            shutil.rmtree(folder, ignore_errors=True)
        if word != b"end":
            return
        end = {"status": status, "cpu_seconds": usage.ru_utime + usage.ru_stime}
        control.sendall(json.dumps(end).encode() + b"\n")


def new_folder():
    os.makedirs(tempfile.gettempdir(), exist_ok=True)  # an answer may have removed it
    return tempfile.mkdtemp(prefix="answer-")


def confine(isolation, proc, limits, folder=None):
    """Resource limits, an empty working folder, no terminal; isolated: nothing else to reach."""
    os.setsid()
    system_call(PR_SET_PDEATHSIG, signal.SIGKILL)
    if proc is not None:
        isolation.close_in(proc, limits["file_mb"])
    elif folder:
        os.chdir(folder)
    megabyte = 2**20
    bounds = [
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * megabyte),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
    ]
    with contextlib.suppress(OSError):  # not on other systems than Linux
        entries = os.open("/proc", os.O_RDONLY) if proc is None else proc
        statm = os.open("self/statm", os.O_RDONLY, dir_fd=entries)
        pages = int(os.read(statm, 100).split()[0])
        memory = pages * resource.getpagesize() + limits["memory_mb"] * megabyte
        bounds.append((resource.RLIMIT_AS, memory))
        # Should the machine run out of memory, then this goes first, and not the grader.
        os.write(os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=entries), b"1000")
    null = os.open(os.devnull, os.O_RDWR)
    for kind, bound in bounds:
        highest = resource.getrlimit(kind)[1]
        if highest != resource.RLIM_INFINITY:
            bound = min(bound, highest)
        with contextlib.suppress(*(() if proc else (ValueError, OSError))):  # not everywhere
            resource.setrlimit(kind, (bound, bound))
    if proc is not None:
        isolation.give_up_rights()
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def kill_group(pid):
    for target in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            target(pid, signal.SIGKILL)


def sweep():
    """End what the learner's code left running; as subreaper we are the parent of its orphans."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.exists() and (pids := children.read_text().split()):
        for pid in map(int, pids):
            kill_group(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def answer(job, cases, wire):
    """In the fork: run the cells in order, take the function, call `collect`, report each step."""

    def report(event):
        write_all(REPORT, json.dumps(event).encode() + b"\n")

    report({"event": "begin"})
    namespace = {"__name__": "__main__", "__builtins__": builtins}
    function = None
    for cell in job["cells"]:
        report({"event": "start", "cell": cell["key"]})
        error = run_cell(cell["source"], f"<{cell['key']}>", namespace)
        if cell["key"] == job["answer"]:
            function = namespace.get(job["function"])
        report({"event": "ran", "cell": cell["key"], "error": error})
    report({"event": "function", "found": function is not None, "callable": callable(function)})
    if not callable(function):
        return
    given = [cases.Case(**fields) for fields in wire.decode(job["cases"])]
    try:
        outcomes = cases.collect(function, given)
    except BaseException as error:  # SystemExit and friends: the learner's, not ours
        report({"event": "stopped", "error": in_words(error)})
        return
    fields = [{name: getattr(o, name) for name in o.__dataclass_fields__} for o in outcomes]
    try:
        report({"event": "outcomes", "outcomes": wire.encode(fields)})
    except wire.WireError as error:
        report({"event": "stopped", "error": f"the returned value cannot be sent: {error}"[:300]})


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def run_cell(source, filename, namespace):
    """Run a cell one statement after another; an error costs that statement only.

    In the learner's notebook a cell may end in a call that does not exist here (a plot, a check);
    the functions defined beside it must still arrive. Returns the first error, or None.
    """
    first = None
    # Where scripted functions and tracebacks look a line up.
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    try:
        statements = ast.parse(source, filename).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return in_words(error)
    future = [s for s in statements if getattr(s, "module", "") == "__future__"]
    for statement in statements:
        try:
            module = ast.Module([*future, statement], type_ignores=[])
            exec(compile(module, filename, "exec"), namespace)
        except BaseException as error:  # also SystemExit: it ends the cell's statement, not us
            line = getattr(statement, "lineno", "?")
            first = first or f"{in_words(error)} (line {line})"
    return first


def in_words(error) -> str:
    """Type and message; a learner's exception may even fail to say what it is."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        return type(error).__name__


if __name__ == "__main__":
    main()
