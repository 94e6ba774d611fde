"""README's table of speed, from the stored results: who was faster, whichever way it went.

    python -m benchmarks.table            write the table into README.md
    python -m benchmarks.table --check    change nothing; exit with 1 where README.md's table is another one

Knows files of results and Markdown. Does not measure: a number that is not in benchmarks/results/ is not in README.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import BOUND, DTYPES
from benchmarks.engine import OURS as PAGEDKV
from benchmarks.peers.view_protocol import NO_VIEW, NOT_SHOWN, SHOWN
from benchmarks.suites import SUITES
from benchmarks.view import BROWSER, KERNEL, by_arm
from pagedkv_lab.measure.timing import Machine

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- benchmarks:start -->", "<!-- benchmarks:end -->"
#: Medians that are closer than this, as a share of the other's, are called even.
EVEN = 0.05

OURS = "PagedKV Lab"
PEERS = {
    "vllm": "vLLM",
    "generate": "transformers `generate`",
    "generate_batch": "transformers `generate_batch`",
    "modules": "ours on transformers' modules",
}


@dataclass(frozen=True)
class Row:
    """One comparison. ratio: how many times as fast as the other ours is; None where nothing is compared.

    peer: who the other is, so that one of the two can be called the faster; "" where the other is no contestant.
    """

    what: str
    ours: str
    other: str = ""
    ratio: float | None = None
    peer: str = ""

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}×"
        return f"| {self.what} | {self.ours} | {self.other} | {ratio} | {self.faster} |"

    @property
    def faster(self) -> str:
        if self.ratio is None or not self.peer:
            return ""
        if abs(self.ratio - 1) <= EVEN:
            return "even"
        return OURS if self.ratio > 1 else self.peer


def block(results: dict[str, dict[str, Any]]) -> str:
    """What stands between the markers. results: files' contents by suite.

    Raises ValueError for results of a quick run, which compare nothing, and for a suite that ROWS doesn't know.
    """
    if not results:
        return "Nothing has been measured yet."
    for suite, result in results.items():
        if result["quick"]:
            raise ValueError(f"the results of {suite} are those of a --quick run: measure it whole, or remove the file")
        if suite not in ROWS:
            raise ValueError(f"no function in ROWS makes rows of the results of {suite}")
    lines = [f"| | {OURS} | the other | times as fast | faster |", "|---|---:|---:|---:|---|"]
    for suite in SUITES:
        if suite in results:
            lines += map(str, ROWS[suite](results[suite]))
    return "\n".join([*lines, "", *_notes(results)])


def engine_rows(result: dict[str, Any]) -> Iterator[Row]:
    """Output tokens a second of a whole run, by workload, against each peer; one sequence also against the bound."""
    rates = {(m["workload"], m["dtype"], m["peer"]): m["tokens_per_s"]["median"] for m in result["measured"]}
    rates |= {(b["workload"], b["dtype"], BOUND): b["tokens_per_s"] for b in result["bounds"]}
    others = [*PEERS, BOUND]
    for ratio in sorted(result["ratios"], key=lambda r: (others.index(r["against"]), DTYPES.index(r["dtype"]))):
        workload, dtype, other = ratio["workload"], ratio["dtype"], ratio["against"]
        yield Row(
            f"{workload}, {dtype}",
            f"{rates[workload, dtype, PAGEDKV]:.1f} tokens/s",
            f"{PEERS.get(other, other)}: {rates[workload, dtype, other]:.1f}",
            ratio["ratio"],
            PEERS.get(other, ""),
        )


def scaling_rows(result: dict[str, Any]) -> Iterator[Row]:
    """Step overhead outside the model, and whether it and the whole time stay in proportion."""
    for row in result["overhead_by_sequences"]:
        if row["sequences"] == 256:
            what = f"step outside the model, 256 sequences, vocabulary {row['vocabulary']:,}"
            yield Row(what, f"{row['ms']['median']:.2f} ms")
    short, *_, long = result["overhead_by_context"]
    yield Row(
        f"step outside the model, {long['sequences']} sequences of {long['context']:,} tokens",
        f"{long['ms']['median']:.2f} ms",
        f"of {short['context']:,} tokens: {short['ms']['median']:.2f} ms",
        short["ms"]["median"] / long["ms"]["median"],
    )
    few = next(row for row in result["requests"] if row["requests"] >= 64)
    many = result["requests"][-1]
    yield Row(
        f"{many['requests']:,} requests to a toy model",
        f"{many['tokens_per_s']:,.0f} tokens/s",
        f"{few['requests']:,} requests: {few['tokens_per_s']:,.0f}",
        many["tokens_per_s"] / few["tokens_per_s"],
    )


def blocks_rows(result: dict[str, Any]) -> Iterator[Row]:
    """Operations of the block layer, against the fastest of the peers in each."""
    for row in result["rows"]:
        times = {name: us for name, us in row["peers"].items() if us is not None}
        ours = f"{row['ours']:.2f} µs"
        if not times:
            yield Row(row["operation"], ours)
            continue
        best = min(times, key=times.__getitem__)
        yield Row(row["operation"], ours, f"{best}: {times[best]:.2f}", times[best] / row["ours"], best)


def attention_rows(result: dict[str, Any]) -> Iterator[Row]:
    """One layer's attention: decode against contiguous tensors, cascade and prompts against our own next best way."""
    against = {
        "decode": ("contiguous", "contiguous tensors"),
        "cascade": ("numba_paged without cascade", "without cascade"),
        "prefill": ("torch_paged", "torch's kernels"),
    }
    for row in result["rows"]:
        name, called = against[row["kind"]]
        ms = {way: samples["median"] for way, samples in row["ms"].items()}
        if "numba_paged" in ms and name in ms:
            what = f"{row['kind']} attention, {row['case']}, {row['dtype']}"
            yield Row(what, f"{ms['numba_paged']:.2f} ms", f"{called}: {ms[name]:.2f}", ms[name] / ms["numba_paged"])


def view_rows(result: dict[str, Any]) -> Iterator[Row]:
    """The engine's speed with a live view against its speed without one, and what a frame takes."""
    pool = f"{result['size']['num_blocks']:,} blocks"
    for place, where in ((KERNEL, ""), (BROWSER, ", drawn by a browser on the same cores")):
        arms = by_arm(result, place)
        for arm in (NOT_SHOWN, SHOWN):
            if arm in arms:
                with_it, without = arms[arm], arms[NO_VIEW]
                how = "not shown" if arm == NOT_SHOWN else f"{with_it['frames_per_s']:.1f} frames a second{where}"
                yield Row(
                    f"live view, {pool}, {how}",
                    f"{with_it['tokens_per_s']:.1f} tokens/s",
                    f"no view: {without['tokens_per_s']:.1f}",
                    with_it["ratio"],
                )
    for row in result["frames"]:
        yield Row(f"a frame of the live view, {row['num_blocks']:,} blocks", f"{row['us']['median'] / 1e3:.2f} ms")


def perplexity_rows(result: dict[str, Any]) -> Iterator[Row]:
    """What a quantized cache costs in quality and saves in bytes, against the model's own type."""
    exact, *quantized = result["rows"]
    for row in quantized:
        yield Row(
            f"perplexity, keys and values in {row['cache']}: {_token_bytes(row)}",
            f"{row['perplexity']:.3f} ({row['increase']:+.3f} ± {row['standard_error']:.3f})",
            f"{result['dtype']}, {_token_bytes(exact)}: {exact['perplexity']:.3f}",
        )


def _token_bytes(row: dict[str, Any]) -> str:
    data, scales = row["data_bytes_per_token"], row["scale_bytes_per_token"]
    return f"{data:,.0f}{f' + {scales:,.0f}' * bool(scales)} bytes a token"


#: A suite's rows from its file.
ROWS = {
    "blocks": blocks_rows,
    "attention": attention_rows,
    "engine": engine_rows,
    "scaling": scaling_rows,
    "view": view_rows,
    "perplexity": perplexity_rows,
}


def _notes(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Under the table: what the names mean, where and when it was measured, and what was not."""
    yield f"Medians. More than 1× is faster, also where times are shown; closer than {EVEN:.0%} is called even."
    if engine := results.get("engine"):
        yield f"Output tokens a second of whole runs of {engine['model']}, greedy:"
        for workload in engine["workloads"].values():
            shared = f"{workload['shared_tokens']:,} shared + " if workload["shared_tokens"] else ""
            prompts = f"{shared}{workload['own_tokens']:,} tokens in"
            requests = f"{workload['requests']} request{'s' * (workload['requests'] != 1)}"
            yield f"{workload['name']} is {requests}, {prompts}, {workload['output_tokens']:,} out;"
        yield f"the same tokens as ours in {_equal_tokens(engine)}."
    if view := results.get("view"):
        size = view["size"]
        sequences = f"{size['num_seqs']} sequences of {size['prompt_tokens']:,} tokens and more"
        yield f"The live view is that of {size['model']}, {sequences}, which decode."
        yield from view["notes"]
    if perplexity := results.get("perplexity"):
        text = f"{perplexity['predicted_tokens']:,} predicted tokens of `benchmarks/{perplexity['text']}`"
        yield f"Perplexity is that of {perplexity['model']} on {text}, computed in pieces of one block of"
        yield f"{perplexity['block_size']} tokens; ± is one standard error; bytes are those of data + scales."
    yield ""
    for machine in dict.fromkeys(map(_machine, results.values())):
        here = [_when(suite, result) for suite, result in results.items() if _machine(result) == machine]
        yield f"Measured on {machine}: {', '.join(here)}."
    yield f"Versions: {_versions(results)}."
    yield from _not_measured(results)


def _machine(result: dict[str, Any]) -> str:
    return f"{Machine(**result['machine'])}, {result['threads']} threads"


def _when(suite: str, result: dict[str, Any]) -> str:
    return f"{suite} on {result['date']}" + (f" at {result['commit']}" if result["commit"] else "")


def _equal_tokens(engine: dict[str, Any]) -> str:
    """How many sequences of each peer were the same as ours, by dtype."""
    counts: dict[str, list[int]] = {}
    for m in engine["measured"]:
        if "tokens" in m:
            count = counts.setdefault(f"{PEERS[m['peer']]} {m['dtype']}", [0, 0])
            count[0] += m["tokens"]["equal"]
            count[1] += m["tokens"]["sequences"]
    return ", ".join(f"{equal} of {sequences} sequences of {who}" for who, (equal, sequences) in counts.items())


def _versions(results: dict[str, dict[str, Any]]) -> str:
    """Every package of every suite and peer, once."""
    found = [result["versions"] for result in results.values()]
    found += [facts.get("versions", {}) for result in results.values() for facts in result.get("peers", {}).values()]
    return ", ".join(dict.fromkeys(f"{name} {number}" for packages in found for name, number in packages.items()))


def _not_measured(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    lines = []
    for suite, result in results.items():
        for missing in result.get("not_measured", ()):
            where = "".join(f", {missing[key]}" for key in ("dtype", "workload") if missing.get(key))
            peer = PEERS.get(missing["peer"], missing["peer"])
            lines.append(f"Not measured in {suite}{where}: {peer}, {missing['why']}.")
    yield from dict.fromkeys(lines)


def updated(readme: str, results: dict[str, dict[str, Any]]) -> str:
    """README's text with the table of these results. Raises ValueError where the markers are missing."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"README.md has no place for the table: put the lines {START} and {END} there")
    return f"{before}{START}\n{block(results)}\n{END}{after}"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The contents of results/*.json, by suite, in the suites' order."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return {suite: result for suite in SUITES for result in found if result["suite"] == suite}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 where README.md's table is another one")
    check = parser.parse_args(arguments).check
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    try:
        new = updated(text, read_results(root / "benchmarks" / "results"))
    except ValueError as error:
        print(f"benchmarks.table: {error}", file=sys.stderr)
        return 2
    if not check:
        readme.write_text(new, encoding="utf-8")
    elif new != text:
        print("README.md's table is not what benchmarks/results/ says: run python -m benchmarks.table", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
