"""Command line: python -m llm_trainer {train,actor-learner,evaluate,noise,estimate,report,…} …

A configuration that cannot work ends in one message and exit code 2, before anything is written.
transformers and reasoning-gym take seconds to import, so each command does it after that check.
"""

import argparse
import io
import math
import os
import sys
from pathlib import Path

from llm_trainer.config import (
    CONFIGS,
    Config,
    ConfigError,
    RunError,
    describe,
    first_line,
    load,
    require,
    with_values,
)

FOLDER = "a run or model folder (without one: the model that --config starts from)"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (0 good, 1 stopped, 2 refused, 130 interrupted)."""
    prepare_output()
    options = parser().parse_args(arguments)
    try:
        return options.command(options)
    except ConfigError as error:
        print(f"configuration error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"the run was stopped: {error}", file=sys.stderr)
        return 1
    except RuntimeError as error:  # sampling and training passes have tried smaller pieces before
        from llm_trainer.oom import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        print(
            f"out of memory ({first_line(error)}); `estimate` shows what a run needs, part by part",
            file=sys.stderr,
        )
        return 1
    except OSError as error:
        print(f"cannot read or write: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def prepare_output() -> None:
    """What a terminal cannot spell, or an output that was closed (`>&-`), stops no command."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m llm_trainer", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")

    def add(name: str, function, about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(command=function)
        command.add_argument("--config", type=Path, help="YAML file of the run")
        command.add_argument(
            "--set", nargs="+", action="extend", default=[], metavar="key=value", help="override"
        )
        return command

    about = "train a policy by reinforcement learning"
    own_loss(train_options(add("train", run_train, about)))
    about = "the same in two processes: one samples while the other learns (see max_staleness)"
    train_options(add("actor-learner", run_actor_learner, about))
    evaluate_options(
        add("evaluate", run_evaluate, "held-out exact accuracy of a model or of a finished run")
    )
    noise_options(
        add("noise", run_noise, "gradient noise scale: beyond how many prompts a step gains little")
    )
    three = add("estimate", run_estimate, "memory of a run by part, before anything is loaded")
    three.add_argument("--memory", type=float, help="GB of the GPU (default: this one's, or 24)")
    three.add_argument("--prompt-tokens", type=int, default=128, help="length of prompts (128)")
    about = "draw the metrics of a run, or of several compared, and print what they reached"
    four = commands.add_parser("report", help=about, description=about)
    four.set_defaults(command=run_report)
    four.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    four.add_argument("--out", type=Path, default=Path("report.png"), help="(report.png)")
    add("warmstart", run_warmstart, "build the tiny model's warm start, or show where it is")
    add("fields", run_fields, "list every field of the configuration")
    return top


def train_options(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="RUN",
        help="go on from the last checkpoint: of this run's folder, or of the run configured",
    )
    command.add_argument("--overwrite", action="store_true", help="discard the run in output_dir")
    command.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return command


def own_loss(command: argparse.ArgumentParser) -> None:
    command.add_argument("--loss", metavar="FILE.py:FUNCTION", help="your own loss, for the row's")


def evaluate_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", type=Path, help=FOLDER)
    command.add_argument("--samples", type=int, default=0, help="also sample so many per question")
    command.add_argument("--k", type=int, nargs="+", help="pass@k for these k (1 and all samples)")
    command.add_argument("--temperature", type=float, help="of these samples (default: the run's)")
    command.add_argument("--top-p", type=float, default=1.0, help="of these samples (default: 1)")


def noise_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", type=Path, help=FOLDER)
    command.add_argument(
        "--prompts", type=int, default=256, help="to measure with, in whole steps of the run (256)"
    )


def configuration(options: argparse.Namespace, default: Path | None = None) -> Config:
    return load(options.config or default or CONFIGS / "grpo_tiny.yaml", options.set)


def run_train(options: argparse.Namespace) -> int:
    folder_given = isinstance(options.resume, str)
    config = run_to_resume(options) if folder_given else configuration(options)
    from llm_trainer.loss_file import load_loss
    from llm_trainer.train import train

    result = train(
        config,
        load_loss(options.loss) if options.loss else None,
        resume=options.resume is not None,
        overwrite=options.overwrite,
        quiet=options.quiet,
    )
    return 0 if result.finished else 130


def run_actor_learner(options: argparse.Namespace) -> int:
    folder_given = isinstance(options.resume, str)
    shipped = CONFIGS / "actor_learner_tiny.yaml"
    config = run_to_resume(options) if folder_given else configuration(options, shipped)
    from llm_trainer.actor_learner import train_in_two_processes

    result = train_in_two_processes(
        config,
        max_staleness=config.max_staleness,
        resume=options.resume is not None,
        overwrite=options.overwrite,
        quiet=options.quiet,
    )
    return 0 if result.finished else 130


def run_to_resume(options: argparse.Namespace) -> Config:
    """The configuration that the run in `--resume RUN` was started with, and --set."""
    folder = Path(options.resume)
    require(options.config is None, "--resume RUN has its configuration; leave --config out")
    require((folder / "run.yaml").is_file(), f"--resume: {folder} holds no run (no run.yaml)")
    return with_values(load(folder / "run.yaml", options.set), output_dir=str(folder))


def run_evaluate(options: argparse.Namespace) -> int:
    ks = sampling(options)
    config = of_folder(options)
    from llm_trainer.checkpoint import check_unseen
    from llm_trainer.evaluate import evaluate
    from llm_trainer.models import load_policy
    from llm_trainer.task import load_task
    from llm_trainer.train import starting_model

    task = load_task(config.task)
    check_unseen(options.folder or config.model, task)
    policy = load_policy(config, options.folder or starting_model(config))
    words = task.held_out[: config.eval_words]
    kind, unit = ("questions", "characters")
    if list(task.tasks) == ["spell_backward"]:
        kind, unit = "words", "letters"
    result = evaluate(policy, task, words, max_new_tokens=config.max_new_tokens)
    error = f" (standard error {result.standard_error:.1%})" if len(words) > 1 else ""
    print(f"exact {result.exact:.1%} of {len(words)} held-out {kind}, greedy{error}")
    print(f"partial credit {result.correctness:.3f}")
    if len(task.tasks) > 1:
        print_shares({f"{name}:": exact for name, exact in result.by_task.items()})
    print_shares({f"{n} {unit}:": exact for n, exact in result.by_letters.items()})
    for word, text, _ in [a for a in result.answers if not a[2]][:5]:
        print(f"  wrong: {word} → {text!r}")
    if options.samples:
        print_pass_at(options, config, policy, task, ks, kind, unit)
    return 0


def of_folder(options: argparse.Namespace) -> Config:
    """The configuration of the run in `folder`, if there is one; ConfigError for half a run."""
    folder = options.folder
    own = folder / "run.yaml" if folder else None
    if folder:
        require(
            folder.is_dir(),
            f"no folder {folder}; give a finished run (`train` makes one) or a model's folder. For "
            "the model that a run starts from, also one by name, leave the folder out and give "
            "that run's --config FILE",
        )
        finished = (folder / "config.json").is_file() or not own.is_file()
        require(finished, f"the run in {folder} has not finished: use --resume")
    return configuration(options, own if own and own.is_file() else None)


def run_noise(options: argparse.Namespace) -> int:
    config = of_folder(options)
    from llm_trainer.models import load_policy
    from llm_trainer.noise_scale import noise_scale
    from llm_trainer.task import load_task
    from llm_trainer.train import starting_model

    task = load_task(config.task)
    policy = load_policy(config, options.folder or starting_model(config))
    if options.prompts % config.prompts:
        print(f"{options.prompts} prompts asked for; measured in whole steps of {config.prompts}")
    print(noise_scale(policy, task, config, prompts=options.prompts, seed=config.seed))
    return 0


def print_shares(shares: dict[str, float]) -> None:
    for name, share in shares.items():
        print(f"  {name} {share:.1%}")


def print_pass_at(options, config: Config, policy, task, ks: list[int], kind, unit) -> None:
    """pass@k over the same held-out items, from `--samples` responses to each."""
    from llm_trainer.evaluate import evaluate_samples

    words = task.held_out[: config.eval_words]
    hot = options.temperature or config.temperature
    sampled = evaluate_samples(
        policy,
        task,
        words,
        samples=options.samples,
        max_new_tokens=config.max_new_tokens,
        seed=config.seed,
        temperature=hot,
        top_p=options.top_p,
    )
    print(
        f"{options.samples} samples each at temperature {hot:g}, top-p {options.top_p:g}; "
        f"standard errors over the {len(words)} {kind}"
    )
    for k in ks:
        mean, error = sampled.pass_at(k)
        print(f"pass@{k} {mean:.1%} (standard error {error:.1%})")
        print_shares({f"{n} {unit}:": share for n, share in sampled.pass_at_by_letters(k).items()})


def sampling(options: argparse.Namespace) -> list[int]:
    """The k of pass@k; ConfigError for options of `evaluate` that cannot work together."""
    n, ks = options.samples, options.k or []
    require(0 <= n <= 65536, f"--samples {n}: 1 to 65536, or leave it out")
    require(n > 0 or not ks, "--k needs --samples, the number of responses to each question")
    for k in ks:
        require(1 <= k <= n, f"--k {k}: pass@{k} needs 1 to --samples {n}")
    hot = options.temperature
    require(hot is None or 1e-3 <= hot < math.inf, f"--temperature {hot}: 0.001 or more")
    require(0 < options.top_p <= 1, f"--top-p {options.top_p}: above 0, to 1")
    return sorted(set(ks or [1, n]))


def run_estimate(options: argparse.Namespace) -> int:
    config = configuration(options)
    given, prompt = options.memory, options.prompt_tokens
    require(given is None or 0 < given < 1e6, f"--memory {given}: GB of the GPU, above 0")
    require(prompt >= 1, f"--prompt-tokens {prompt}: 1 or more")
    from llm_trainer.memory import memory_of_this_machine, report

    text, fits = report(config, memory=given or memory_of_this_machine(), prompt=prompt)
    print(text)
    return 0 if fits else 1


def run_report(options: argparse.Namespace) -> int:
    from llm_trainer.report import figure, load_runs, save, table

    runs = load_runs(options.folders)
    save(figure(runs), options.out)
    print(f"{table(runs)}\n\nfigure: {options.out}")
    return 0


def run_warmstart(options: argparse.Namespace) -> int:
    config = configuration(options)
    from llm_trainer.tiny import warm_start

    print(warm_start(config.task, config.warmstart))
    return 0


def run_fields(options: argparse.Namespace) -> int:
    print(describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
