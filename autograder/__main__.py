"""python -m autograder {check,status,grade,release,catalogue,doctor}; --help says more."""

import argparse
import os
import sys
from pathlib import Path

ELSEWHERE = (
    "error: {} is not installed for {}; start the course's own Python instead: "
    ".venv/bin/python -m autograder …  (`make setup` makes it)"
)

try:
    from autograder.notebooks import HomeworkError
    from autograder.sandbox import NOT_ISOLATED, Limits, WorkerError, available, isolation
except ModuleNotFoundError as missing:
    print(ELSEWHERE.format(missing.name, sys.executable), file=sys.stderr)
    sys.exit(2)


def main(argv=None) -> int:
    """Run one command. 0: done; 1: something is not as it should be; 2: it cannot be done."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name may not fit the terminal's encoding
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (HomeworkError, OSError, WorkerError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        print(ELSEWHERE.format(missing.name, sys.executable), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; what is recorded stays, run it again to finish", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m autograder",
        description="Check, grade and release homework; each command has a --help of its own.",
    )
    commands = top.add_subparsers(
        required=True, metavar="{check,status,grade,release,catalogue,doctor}"
    )

    one = commands.add_parser(
        "check",
        help="for learners: judge a notebook before handing it in",
        description="Judges every answer of a notebook on the visible cases, and finds cells that "
        "were deleted, duplicated or renamed. Exits with 1 when something fails.",
    )
    one.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    one.set_defaults(run=run_check)

    far = commands.add_parser(
        "status",
        help="for learners: what is done, and what to do next",
        description="One line per homework: points on the visible cases, questions answered, "
        "written answers, experiments that were run; then the next thing to do. More on a single "
        "notebook. Reads what is saved and changes nothing.",
    )
    far.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="FOLDER",
        help="folder of notebooks, or one notebook; default: the course's homework/",
    )
    far.set_defaults(run=run_status)

    many = commands.add_parser(
        "grade",
        help="for instructors: grade a folder of submissions",
        description="Grades DIR/<student>/HW.ipynb, DIR/<student>/HW/HW.ipynb and "
        "DIR/<student>.ipynb. Writes gradebook.db, grades.csv, feedback/, class/ and autograded/ "
        "beside DIR, or below --output. What is unchanged since it was graded is not run again, so "
        "a run that was stopped goes on where it ended. Exits with 0 unless the autograder itself "
        "failed.",
    )
    many.add_argument("homework", metavar="HW")
    many.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="default: submissions/")
    many.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="submissions at a time; default: one per processor",
    )
    many.add_argument("--output", type=Path, metavar="DIR", help="where results go")
    many.add_argument(
        "--seconds",
        type=int,
        default=Limits().cpu_seconds,
        metavar="N",
        help="CPU seconds for one question of one learner; default: %(default)s",
    )
    many.add_argument("--again", action="store_true", help="grade also what is unchanged")
    many.add_argument(
        "--due",
        metavar="TIME",
        help="the deadline, such as 2026-12-01T23:59 (this machine's time zone unless one is "
        "given); it is kept in the gradebook; default: the one that is there",
    )
    many.add_argument(
        "--late-penalty",
        type=float,
        metavar="SHARE",
        help="share of the points earned that each started day after the deadline costs, such as "
        "0.1, where a timestamp.txt says when; default: as in the last run, at first 0",
    )
    many.add_argument(
        "--anonymous", action="store_true", help="leave the names out of the class page"
    )
    many.add_argument(
        "--not-isolated",
        action="store_true",
        help="run answers where they can read your files and use your network; for systems "
        "without namespaces, and people you trust",
    )
    many.set_defaults(run=run_grade)

    make = commands.add_parser(
        "release",
        help="for instructors: solutions/HW -> homework/HW",
        description="Generates the learners' notebooks from the solutions. An existing file that "
        "changes is kept in .autograder/backups first.",
    )
    make.add_argument("homework", nargs="*", metavar="HW", help="default: all")
    make.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit with 1 when homework/ is not up to date",
    )
    make.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE.zip",
        help="instead: write the course as learners get it, without solutions, into one file",
    )
    make.set_defaults(run=run_release)

    known = commands.add_parser(
        "catalogue",
        help="for instructors: which mistakes does the judge name?",
        description="Gives the judge every known mistake, and every pair of them that fits "
        "together: how many lose points, how many are named right, how many wrongly, and which no "
        "case tells apart. Exits with 1 below the bars.",
    )
    known.add_argument("names", nargs="*", metavar="ID|HW", help="default: all questions")
    known.set_defaults(run=run_catalogue)

    care = commands.add_parser(
        "doctor",
        help="is everything fit for grading?",
        description="Compares questions, solutions, releases and nbgrader's configuration.",
    )
    care.add_argument("homework", nargs="*", metavar="HW", help="default: all")
    care.set_defaults(run=run_doctor)
    return top


def run_check(arguments) -> int:
    from autograder.self_check import self_check

    return self_check(arguments.notebook)


def run_status(arguments) -> int:
    from autograder.status import DEFAULT, status

    return status(arguments.folder or DEFAULT)


def run_grade(arguments) -> int:
    import torch

    from autograder.discover import not_looked_at
    from autograder.grade import Progress, checked_release, grade
    from autograder.gradebook import parse_due
    from autograder.summary import cpu_seconds, summary

    if problem := available():
        raise HomeworkError(problem)
    release = checked_release(arguments.homework)
    folder = arguments.folder or Path("submissions")
    if not folder.is_dir():
        raise HomeworkError(f"{folder} is not a folder; give the folder that holds the submissions")
    if arguments.jobs < 1 or arguments.seconds < 1:
        raise HomeworkError("--jobs and --seconds must be at least 1")
    output = (arguments.output or folder.resolve().parent).resolve()
    if arguments.late_penalty is not None and not 0 <= arguments.late_penalty <= 1:
        raise HomeworkError("--late-penalty is a share between 0 and 1")
    due = None if arguments.due is None else parse_due(arguments.due)
    isolated = not arguments.not_isolated
    if not isolated:
        print(NOT_ISOLATED, file=sys.stderr)
    elif reason := isolation():
        raise HomeworkError(
            f"{reason}; run it on Linux or in a container, or, for people you trust, with "
            "--not-isolated"
        )
    torch.set_num_threads(1)  # the tensors are tiny and --jobs already uses the processors
    results = grade(
        release,
        folder.resolve(),
        output,
        jobs=arguments.jobs,
        limits=Limits(cpu_seconds=arguments.seconds, wall_seconds=6 * arguments.seconds),
        isolated=isolated,
        again=arguments.again,
        due=due,
        late_penalty=arguments.late_penalty,
        anonymous=arguments.anonymous,
        progress=Progress(),
    )
    ignored = not_looked_at(folder)
    print(
        summary(
            release, results, output, isolated=isolated, cpu_seconds=cpu_seconds(), ignored=ignored
        )
    )
    return 1 if any(result.error for result in results) else 0


def run_release(arguments) -> int:
    from autograder.examples import make
    from autograder.release import homeworks, release

    if arguments.bundle:
        from autograder.bundle import bundle

        names = bundle(arguments.bundle, arguments.homework)
        size = arguments.bundle.stat().st_size / 2**20
        print(f"{arguments.bundle}: {size:.1f} MB, lectures and {', '.join(names)}")
        return 0
    stale = False
    for homework in arguments.homework or homeworks():
        changes = release(homework, check=arguments.check)
        stale |= bool(changes)
        print(f"homework/{homework}: " + ("was out of date" if changes else "up to date"))
        for change in changes:
            print(f"  {change.what}{'' if arguments.check else ', now written'}: {change.path}")
        if changes and not arguments.check:
            print("  What stood there before, answers of yours included: .autograder/backups/")
        if homework == make.HOMEWORK and not arguments.check:
            make.make(make.TARGET)  # the example submissions are made from the release
    if arguments.check and stale:
        print("homework/ is not what solutions/ gives; run: python -m autograder release")
        return 1
    return 0


def run_catalogue(arguments) -> int:
    import torch

    from autograder.catalogue_report import chosen, report

    names = chosen(arguments.names)
    from autograder.catalogue import measure

    torch.set_num_threads(1)
    return report(names, measure)


def run_doctor(arguments) -> int:
    from autograder.doctor import doctor

    return doctor(arguments.homework)


if __name__ == "__main__":
    sys.exit(main())
