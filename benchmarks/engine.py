"""The suite `engine`: the same requests through PagedKV Lab, vLLM and transformers.

Three workloads, greedy, every output as long as asked. Each peer is a process that has loaded the model and sleeps
until it is asked; one works at a time, and they take turns, round by round. What they generate is compared with
ours, token for token.

Knows who is compared and what the comparison means. Whose turn it is is `lineup`'s business, how each peer serves
is in `peers/`.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.lineup import PAUSE_S, Lineup, Peer
from benchmarks.workers import WorkerDied
from benchmarks.workloads import QUICK_WORKLOADS, WORKLOADS, Workload
from pagedkv_lab.bundled import BUNDLED_MODEL, bundled_gguf, dense_copy_path
from pagedkv_lab.measure.timing import Samples, copy_bandwidth, num_threads

OURS = "pagedkv"
BOUND = "bandwidth bound"
ROUNDS = 3
DTYPES = ("float32", "bfloat16")

Say = Callable[[str], None]
Answers = list[dict[str, Any]]


def peers(vllm_python: Path | None) -> list[Peer]:
    """Ours first. vLLM is among them only where an interpreter that has it is named, by its absolute path."""

    def command(module: str, python: Path | str = sys.executable) -> tuple[str, ...]:
        return (str(python), "-m", f"benchmarks.peers.{module}")

    found = [Peer(OURS, command("engine_pagedkv"))]
    if vllm_python is not None:
        found.append(Peer("vllm", command("engine_vllm", vllm_python), env=_vllm_env(vllm_python)))
    return [
        *found,
        Peer("modules", command("engine_modules")),
        Peer("generate", command("engine_generate"), dtypes=("float32",)),
        Peer("generate_batch", command("engine_generate_batch"), workloads="PD", dtypes=("float32",), rounds=1),
    ]


def _vllm_env(python: Path) -> dict[str, str]:
    """How vLLM wants to be started on a CPU: in one process, and on Intel's OpenMP where its environment has that,
    one thread a core (the settings that it gives worker processes which it starts itself)."""
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    openmp = python.parents[1] / "lib" / "libiomp5.so"
    if openmp.is_file():
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: num_threads()]))
        affinity = f"granularity=fine,explicit,proclist=[{cores}]"
        env |= {"LD_PRELOAD": str(openmp), "KMP_AFFINITY": affinity, "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    return env


def run(*, quick: bool, vllm_python: Path | None = None, say: Say = print) -> dict[str, Any]:
    """Measure everything. quick: one round of smaller workloads, to see that it works.

    Raises WorkerDied where our own engine does not get through; any other peer is left out, and the reason kept.
    """
    workloads, rounds = (QUICK_WORKLOADS, 1) if quick else (WORKLOADS, ROUNDS)
    result = {"model": BUNDLED_MODEL} | measure(peers(vllm_python), workloads, _model_folder(say), rounds, say)
    if vllm_python is None:
        result["not_measured"].append({"peer": "vllm", "why": "no interpreter that has it was named (--vllm-python)"})
    return result


def _model_folder(say: Say) -> Path:
    """The bundled model as a folder that everybody can load."""
    gguf = bundled_gguf()
    if gguf is None or not dense_copy_path(gguf).is_dir():
        from pagedkv_lab.engine import load_model

        say("unpacking the bundled model, once")
        load_model(BUNDLED_MODEL, device="cpu")  # makes the folder, or raises with what to install
    return dense_copy_path(bundled_gguf())


def measure(
    peers: list[Peer],
    workloads: tuple[Workload, ...],
    model_folder: Path,
    rounds: int,
    say: Say,
    *,
    dtypes: tuple[str, ...] = DTYPES,
    pause_s: float = PAUSE_S,
) -> dict[str, Any]:
    """All workloads by all peers in all dtypes. Ctrl-C ends the workers before it goes on."""
    result: dict[str, Any] = {
        "workloads": {workload.name: asdict(workload) for workload in workloads},
        "peers": {},
        "measured": [],
        "bounds": [],
        "not_measured": [],
    }
    for dtype in dtypes:
        say(f"{dtype}: copying memory, for the bound")
        bandwidth = copy_bandwidth()
        try:
            with Lineup(peers, dtype, say, pause_s) as lineup:
                lineup.start(model_folder)
                for workload in workloads:
                    answers = lineup.rounds(workload, rounds)
                    if len(answers.get(OURS, ())) < rounds:
                        why = next(dropped["why"] for dropped in lineup.dropped if dropped["peer"] == OURS)
                        raise WorkerDied(f"our own engine did not get through: {why}")
                    result["measured"] += _summaries(workload, dtype, answers)
        except KeyboardInterrupt:
            say("stopped: the workers have ended, and nothing is written")
            raise
        for name, facts in lineup.facts.items():
            # A peer's options don't change with the dtype, bytes do: those are kept with the bound.
            result["peers"][name] = {key: value for key, value in facts.items() if not key.startswith("bytes")}
        result["not_measured"] += lineup.dropped
        single = next(workload for workload in workloads if workload.requests == 1)
        result["bounds"].append(_bound(single, dtype, bandwidth, **lineup.facts[OURS]["bytes"]))
    result["ratios"] = _ratios(result)
    return result


def _summaries(workload: Workload, dtype: str, answers: dict[str, Answers]) -> list[dict[str, Any]]:
    """What goes into the file for one workload: rates with their spread, TTFT, tokens compared with ours."""
    num_tokens = workload.requests * workload.output_tokens
    summaries = []
    for name, done in answers.items():
        if not done:
            continue
        rates = Samples(tuple(num_tokens / answer["seconds"] for answer in done))
        first = [answer["ttft_s"] for answer in done if answer["ttft_s"] is not None]
        summary = {
            "workload": workload.name,
            "dtype": dtype,
            "peer": name,
            "rounds": len(done),
            "tokens_per_s": rates.as_dict(),
            "ttft_mean_s": Samples(tuple(first)).as_dict() if first else None,
        }
        if name != OURS:
            summary["tokens"] = compare_tokens(answers[OURS], done)
        summaries.append(summary)
    return summaries


def compare_tokens(ours: Answers, theirs: Answers) -> dict[str, Any]:
    """Sequences whose tokens equal ours in the same round, of how many, and where the others part from ours.

    parted_at: the index of the first output token that differs, one for each of the others, lowest first.
    """
    sequences, parted_at = 0, []
    for our_answer, answer in zip(ours, theirs, strict=False):  # who runs fewer rounds runs the first ones
        for expected, tokens in zip(our_answer["token_ids"], answer["token_ids"], strict=True):
            sequences += 1
            if tokens != expected:
                parted_at.append(next(i for i, token in enumerate(tokens) if token != expected[i]))
    return {"sequences": sequences, "equal": sequences - len(parted_at), "parted_at": sorted(parted_at)}


def _bound(workload: Workload, dtype: str, bandwidth: float, weights: int, kv_a_token: int) -> dict[str, Any]:
    """Tokens a second that memory allows one sequence: each step reads all weights and the cache so far, once.

    bandwidth: bytes a second. weights, kv_a_token: bytes.
    """
    mean_context = workload.shared_tokens + workload.own_tokens + workload.output_tokens / 2
    return {
        "workload": workload.name,
        "dtype": dtype,
        "copy_bytes_per_s": bandwidth,
        "weight_bytes": weights,
        "cache_bytes_a_step": kv_a_token * mean_context,
        "tokens_per_s": bandwidth / (weights + kv_a_token * mean_context),
    }


def _ratios(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Our median rate over theirs, and over the bound. Above 1: ours is faster."""
    rates = {(m["workload"], m["dtype"], m["peer"]): m["tokens_per_s"]["median"] for m in result["measured"]}
    for bound in result["bounds"]:
        rates[bound["workload"], bound["dtype"], BOUND] = bound["tokens_per_s"]
    return [
        {"workload": workload, "dtype": dtype, "against": peer, "ratio": rates[workload, dtype, OURS] / rate}
        for (workload, dtype, peer), rate in rates.items()
        if peer != OURS
    ]


def table(result: dict[str, Any]) -> Table:
    """The result for a terminal."""
    ratios = {(r["workload"], r["dtype"], r["against"]): r["ratio"] for r in result["ratios"]}
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"{result['model']}, output tokens a second")
    for heading in ("workload", "peer"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("median", "from-to", "TTFT", "ours is", "equal"):
        shown.add_column(heading, justify="right", no_wrap=True)
    last = ""
    for m in result["measured"]:
        rates, tokens = m["tokens_per_s"], m.get("tokens")
        what = f"{m['workload']} {m['dtype']}"
        ratio = ratios.get((m["workload"], m["dtype"], m["peer"]))
        shown.add_row(
            what if what != last else "",
            m["peer"],
            f"{rates['median']:.1f}",
            f"{min(rates['values']):.1f}-{max(rates['values']):.1f}",
            f"{m['ttft_mean_s']['median']:.2f} s" if m["ttft_mean_s"] else "",
            f"{ratio:.2f}×" if ratio else "",
            f"{tokens['equal']} of {tokens['sequences']}" if tokens else "",
        )
        last = what
    for bound in result["bounds"]:
        ratio = ratios[bound["workload"], bound["dtype"], BOUND]
        copied = f"{bound['copy_bytes_per_s'] / 1e9:.1f} GB/s"
        what = f"{bound['workload']} {bound['dtype']}"
        shown.add_row(what, BOUND, f"{bound['tokens_per_s']:.1f}", copied, "", f"{ratio:.2f}×", "")
    return shown
