"""Command line: python -m llm_trainer {train,evaluate,warmstart,fields} …

A configuration that cannot work ends in one message and exit code 2, before anything is written.
transformers and reasoning-gym take seconds to import, so each command does it after that check.
"""

import argparse
import sys
from pathlib import Path

import torch

from llm_trainer.config import CONFIGS, Config, ConfigError, RunError, describe, load, require


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (0 good, 1 stopped, 2 refused, 130 interrupted)."""
    options = parser().parse_args(arguments)
    try:
        return options.command(options)
    except ConfigError as error:
        print(f"configuration error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"the run was stopped: {error}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        # torch.OutOfMemoryError, or the CPU allocator's RuntimeError
        if "allocate memory" not in str(error) and not isinstance(error, torch.OutOfMemoryError):
            raise
        print(
            "out of memory: lower micro_batch, group or max_new_tokens, or set "
            "gradient_checkpointing; the last checkpoint is intact",
            file=sys.stderr,
        )
        return 1
    except OSError as error:
        print(f"cannot read or write: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


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

    one = add("train", run_train, "train a policy by reinforcement learning")
    one.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    one.add_argument("--overwrite", action="store_true", help="discard the run in output_dir")
    one.add_argument("--quiet", action="store_true", help="print nothing but errors")
    two = add("evaluate", run_evaluate, "held-out exact accuracy of a model or of a finished run")
    two.add_argument("folder", nargs="?", type=Path, help="a run or model folder")
    add("warmstart", run_warmstart, "build the tiny model's warm start, or show where it is")
    add("fields", run_fields, "list every field of the configuration")
    return top


def configuration(options: argparse.Namespace, default: Path | None = None) -> Config:
    return load(options.config or default or CONFIGS / "grpo_tiny.yaml", options.set)


def run_train(options: argparse.Namespace) -> int:
    config = configuration(options)
    from llm_trainer.train import train

    result = train(
        config,
        resume=options.resume,
        overwrite=options.overwrite,
        quiet=options.quiet,
    )
    return 0 if result.finished else 130


def run_evaluate(options: argparse.Namespace) -> int:
    own = options.folder / "run.yaml" if options.folder else None
    config = configuration(options, own if own and own.is_file() else None)
    from llm_trainer.checkpoint import check_unseen
    from llm_trainer.evaluate import evaluate
    from llm_trainer.models import load_policy
    from llm_trainer.task import Spelling
    from llm_trainer.train import starting_model

    if options.folder:
        require(options.folder.is_dir(), f"evaluate: no folder {options.folder}")
        finished = (options.folder / "config.json").is_file() or not own.is_file()
        require(finished, f"evaluate: the run in {options.folder} has not finished: use --resume")
    task = Spelling(config.task)
    check_unseen(options.folder or config.model, task)
    policy = load_policy(config, options.folder or starting_model(config))
    words = task.held_out[: config.eval_words]
    result = evaluate(policy, task, words, max_new_tokens=config.max_new_tokens)
    print(f"exact {result.exact:.1%} of {len(words)} held-out words, greedy")
    print(f"partial credit {result.correctness:.3f}")
    for letters, exact in result.by_letters.items():
        print(f"  {letters} letters: {exact:.1%}")
    for word, text, _ in [a for a in result.answers if not a[2]][:5]:
        print(f"  wrong: {word} → {text!r}")
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
