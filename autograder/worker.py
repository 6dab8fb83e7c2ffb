"""Runs learners' code: a process that loads torch once and forks for every question.

Started by `autograder.sandbox` as a script. It imports torch, `autograder.cases` and
`autograder.wire`: no reference, no expected value and no tolerance ever enters this process.

Protocol: the word ready, then one JSON job per line on standard input and one JSON reply per line
on standard output.
For each job a fork in its own session, with resource limits and its own empty working folder,
runs the learner's cells and then `collect`. It reports over a pipe, one line per event; the
lines are passed on unread, because they come from a learner's process. The reply says how the
fork ended: done, cpu (used up its seconds), wall (took too long), size (reported too much) or
died (with the signal's name).
"""

import ast
import builtins
import contextlib
import ctypes
import json
import linecache
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = {"policy_gradients", "toy_models", "llm_trainer", "lectures", "autograder", "solutions"}


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
    sys.path.insert(0, str(ROOT))
    import torch

    with contextlib.suppress(ImportError):
        import einops  # noqa: F401
    from autograder import cases, wire

    torch.set_num_threads(1)
    system_call(PR_SET_CHILD_SUBREAPER, 1)
    sys.path.remove(str(ROOT))
    for name in [n for n in sys.modules if n.partition(".")[0] in OURS]:
        del sys.modules[name]
    # An editable installation of the course: a folder on the path, or an import hook of its own.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    hooks = [h for h in sys.meta_path if "editable" in str(getattr(h, "__module__", ""))]
    sys.meta_path[:] = [Refuse, *(h for h in sys.meta_path if h not in hooks)]

    jobs, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    replies.write(b"ready\n")
    replies.flush()
    while line := jobs.readline():
        reply = run_in_fork(json.loads(line), jobs.fileno(), cases, wire)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def run_in_fork(job, jobs_fd, cases, wire):
    """Fork, run the job there, and describe what happened."""
    os.makedirs(tempfile.gettempdir(), exist_ok=True)  # an answer may have removed it
    folder = tempfile.mkdtemp(prefix="answer-")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            confine(folder, job["limits"])
            # Only the pipe survives: the learner's code cannot speak to the grader.
            os.dup2(writer, 3, inheritable=False)
            os.closerange(4, 4096)
            serve(job, cases, wire)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        data, ending = listen(reader, jobs_fd, job["limits"])
    finally:
        os.close(reader)
        kill_group(pid)
        status, usage = reap(pid)
        sweep()
        shutil.rmtree(folder, ignore_errors=True)
    if ending == "closed":
        ending = describe(status, usage, job["limits"])
    return {"ending": ending, "events": data.decode("ascii", "replace").split("\n")}


def confine(folder, limits):
    """Resource limits, an empty working folder, no terminal; die with the grader."""
    system_call(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    bounds = [
        (resource.RLIMIT_CPU, limits["cpu_seconds"], limits["cpu_seconds"] + 1),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * 2**20, limits["file_mb"] * 2**20),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
    ]
    if os.path.exists("/proc/self/statm"):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory = pages * resource.getpagesize() + limits["memory_mb"] * 2**20
        bounds.append((resource.RLIMIT_AS, memory, memory))
    for kind, soft, hard in bounds:
        with contextlib.suppress(ValueError, OSError):  # already lower, or not offered here
            resource.setrlimit(kind, (soft, hard))


def listen(reader, jobs_fd, limits):
    """Everything the fork writes until it closes the pipe, and why we stopped listening."""
    deadline = time.monotonic() + limits["wall_seconds"]
    data = bytearray()
    with selectors.DefaultSelector() as ready:
        ready.register(reader, selectors.EVENT_READ)
        ready.register(jobs_fd, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in ready.select(left):
                if key.fd == jobs_fd:
                    sys.exit(0)  # the grader is gone: nothing else is ever sent during a job
                chunk = os.read(reader, 2**16)
                if not chunk:
                    return data, "closed"
                data += chunk
                if len(data) > limits["reply_mb"] * 2**20:
                    return data[:0], "size"
    return data, "wall"


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


def reap(pid):
    _, status, usage = os.wait4(pid, 0)
    return status, usage


def describe(status, usage, limits):
    if not os.WIFSIGNALED(status):
        return "done"
    number = os.WTERMSIG(status)
    used = usage.ru_utime + usage.ru_stime
    if number == signal.SIGXCPU or used >= limits["cpu_seconds"]:
        return "cpu"
    return f"died {signal.Signals(number).name}"


def serve(job, cases, wire):
    """In the fork: run the cells in order, take the function, call `collect`, report each step."""

    def report(event):
        write_all(3, json.dumps(event).encode() + b"\n")

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
