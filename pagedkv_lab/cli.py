"""The `pagedkv` command. Thin: each command reads its options and calls into the package, which does the work.

torch and transformers are imported inside the commands that need them, so that `pagedkv --help` answers at once.

Exit status: 0 done; 1 the command ran and its verdict is "no"; 2 bad input, told in one line on stderr;
130 stopped with Ctrl-C. `--debug`, anywhere on the line, shows the traceback as well.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from pagedkv_lab.errors import PagedKVError

# typer carries its own copy of click under a private name, older releases import click: this is the base class of
# every complaint about the command line in both.
_ClickException = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    help="PagedKV Lab: build a paged KV cache, piece by piece, and serve a real model from it.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
course_app = typer.Typer(help="The course's notebooks: built, handed out, swapped and brought up to date.")
app.add_typer(course_app, name="course")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` without the program's name if None) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        status = _run([argument for argument in arguments if argument != "--debug"])
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        message, status = _explain(error)
        print(f"pagedkv: {' '.join(message.split())}", file=sys.stderr)
        return status


def _run(arguments: list[str]) -> int:
    """What typer's own main does, less its error boxes, which take several lines and end in other statuses."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("pagedkv", arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _explain(error: BaseException) -> tuple[str, int]:
    """One sentence for a person, and the exit status."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "stopped", 130
    if isinstance(error, _ClickException):
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context else ""
        return error.format_message().rstrip(".") + where, 2
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("pagedkv_lab"):
        return f"the package {error.name} is not installed here; `pagedkv doctor` says what to do", 2
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, (PagedKVError, ValueError, OSError)):
        return str(error) or type(error).__name__, 2
    return f"this is a bug, {type(error).__name__}: {error} (--debug shows where)", 1


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pagedkv {version('pagedkv_lab')}")
        raise typer.Exit


def _help_if_alone(context: typer.Context) -> None:
    """A group named without a command shows its help; that is a question, not a mistake."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.callback(invoke_without_command=True)
def _pagedkv(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and stop.")
    ] = False,
    # main() takes --debug out of the line, so that it works anywhere on it. It stands here for --help.
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    _help_if_alone(context)


@course_app.callback(invoke_without_command=True)
def _course(context: typer.Context) -> None:
    _help_if_alone(context)


@course_app.command("build")
def _course_build(
    chapters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CHAPTER]...", help="Folders of course/, or their numbers; all if none is named."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Execute nothing: say which built notebooks are not as their source.")
    ] = False,
) -> None:
    """Make notebooks/, solutions/ and exercises/ from course/."""
    from pagedkv_lab.course.builder import console

    run = console.check if check else console.build
    raise typer.Exit(run(chapters or []))


@course_app.command("swap")
def _course_swap(
    chapter: Annotated[str, typer.Argument(metavar="CHAPTER", help="A folder of course/, or its number.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="solution|exercise|mine",
            help="The solved workbook, the workbook with nothing written, or what you wrote last.",
        ),
    ],
) -> None:
    """Put the solution, the empty exercise or your own work into exercises/. What you wrote is kept, with its date."""
    from pagedkv_lab.course.classroom.swap import swap

    for sentence in swap(chapter, to):
        typer.echo(sentence)


@course_app.command("update")
def _course_update(
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="A newer folder that was handed out, or a newer checkout. In a clone git brings what is new.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
) -> None:
    """Bring new lessons and exercises into this copy. Exercises that you have edited stay as they are."""
    from pagedkv_lab.course.classroom.update import update

    update(source, dry_run, say=typer.echo)


@course_app.command("release")
def _course_release(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An empty folder, or a new one.")],
    chapters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CHAPTER]...", help="Folders of course/, or their numbers; all if none is named."),
    ] = None,
) -> None:
    """Make a folder to hand out: lessons, exercises and the package, without solutions, tests and outputs."""
    from pagedkv_lab.course.classroom.release import release

    for sentence in release(folder, chapters or []):
        typer.echo(sentence)


@course_app.command("new")
def _course_new(
    chapter: Annotated[str, typer.Argument(metavar="NN_topic", help="For example 16_speculative_decoding.")],
) -> None:
    """Make a chapter to be filled: a lesson, a workbook, its check and its mutants. It builds as it is."""
    from pagedkv_lab.course.classroom.new_chapter import new_chapter

    for sentence in new_chapter(chapter):
        typer.echo(sentence)


@app.command("bench")
def _bench(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="engine, attention, blocks, scaling, view or perplexity.")
    ],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to this file, too.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, once: to see that it works, not to compare.")
    ] = False,
    vllm_python: Annotated[
        Path | None,
        typer.Option("--vllm-python", metavar="PATH", help="A Python that has vLLM: its own environment's."),
    ] = None,
    nano_vllm: Annotated[
        Path | None, typer.Option("--nano-vllm", metavar="PATH", help="A checkout of nano-vllm.")
    ] = None,
) -> None:
    """Measure the package against others that do the same work, on this machine."""
    # The benchmarks lie beside the package in the repository, and are no part of what pip installs.
    root = Path(__file__).resolve().parents[1]
    if not (root / "benchmarks" / "suites.py").is_file():
        raise PagedKVError(
            f"there is no benchmarks/ beside the package in {root}: it comes with the course's repository, not with "
            "pip. Run this from a checkout that is installed with `make` or `pip install -e .`"
        )
    sys.path.insert(0, str(root))
    from benchmarks.suites import run_suite

    raise typer.Exit(run_suite(suite, json_file=json_file, quick=quick, vllm_python=vllm_python, nano_vllm=nano_vllm))


@app.command("demo")
def _demo(
    model: Annotated[
        str | None, typer.Option(help="A folder or a hub id; the course's own model if not given.", show_default=False)
    ] = None,
    same_memory: Annotated[
        bool,
        typer.Option(
            "--same-memory/--same-concurrency",
            help="Give all engines memory for two contiguous requests, or for all of them.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers to this file, too.")
    ] = None,
) -> None:
    """Eight requests with one system prompt, served contiguously, paged, and paged with a prefix cache."""
    from pagedkv_lab.show.terminal import demo

    raise typer.Exit(demo(model, "same-memory" if same_memory else "same-concurrency", json_file))


@app.command("plan")
def _plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_CONFIG",
            help="Llama-2-13B, Llama-3-8B, TinyLlama, SmolLM2-135M; or a config.json, or its folder.",
        ),
    ],
    memory: Annotated[str, typer.Option(help="All of the device's memory: 24GB, 24GiB, 512MB.")],
    users: Annotated[int, typer.Option(help="Sequences at once.")],
    tokens: Annotated[int, typer.Option(help="Tokens of each sequence, prompt and output together.")],
    dtype: Annotated[str, typer.Option(help="Type of weights and cache, for example bfloat16.")] = "float16",
    block_size: Annotated[int, typer.Option(help="Tokens a block.")] = 16,
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            help="What keys and values are kept in: auto (--dtype), int8 or int4 (half and a quarter of 16 bits, "
            "apart from scales)."
        ),
    ] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Tokens that contiguous allocation reserves a user.", show_default="the model's own"),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the memory for weights and cache; the rest stays free.")
    ] = 0.9,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers to this file, too.")
    ] = None,
) -> None:
    """How many users fit: weights, and the cache reserved contiguously or in blocks, as arithmetic."""
    from pagedkv_lab.measure.plan import Plan
    from pagedkv_lab.measure.plan_report import print_plan, verdict
    from pagedkv_lab.measure.read_model import read_model_size
    from pagedkv_lab.sizing import parse_bytes

    plan = Plan(
        model=read_model_size(model),
        memory_bytes=parse_bytes(memory),
        users=users,
        tokens=tokens,
        dtype=dtype,
        block_size=block_size,
        gpu_memory_utilization=gpu_memory_utilization,
        max_model_len=max_model_len,
        kv_cache_dtype=kv_cache_dtype,
    )
    if json_file:
        numbers = plan.as_dict() | {"verdict": verdict(plan)}
        json_file.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    print_plan(plan)


@app.command("progress")
def _progress(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the same to this file.")
    ] = None,
) -> None:
    """Exercises passed, by chapter, the parts of the engine that are yours, and what comes next."""
    from pagedkv_lab.course.progress import home, progress

    where = progress()
    if json_file:
        json_file.write_text(json.dumps(where.as_dict(), indent=2) + "\n", encoding="utf-8")
    typer.echo(where)
    typer.echo(f"Remembered in {home()}, on this machine only.")


@app.command("doctor")
def _doctor(
    hub: Annotated[bool, typer.Option("--hub", help="Try to reach the Hugging Face hub, too.")] = False,
) -> None:
    """Can the course run here? A line for each thing that it needs: ok, or what to do."""
    from pagedkv_lab.course.doctor import doctor

    raise typer.Exit(doctor(hub))


if __name__ == "__main__":
    sys.exit(main())
