"""What was found, as text for a terminal. Knows the file's layout (`record`), and measures nothing."""

from collections.abc import Iterator, Sequence
from typing import Any

DRY_RUN = "DRY RUN: Triton's interpreter on a CPU, tiny shapes. No figure below is a measurement."


def report(result: dict[str, Any]) -> str:
    """The whole table."""
    return "\n".join(_lines(result))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    summary, sections = result["summary"], result["sections"]
    yield ""
    if result["dry_run"]:
        yield DRY_RUN
    yield from _machine(sections)
    for name, section in sections.items():
        yield ""
        yield f"{name}: {section['title']}"
        checked = f"{section['checks_passed']} checks passed, {section['checks_failed']} failed"
        yield f"  {section['status']}, {section['seconds']:.1f} s, {checked}, {len(section['not_run'])} cases not run"
        if section["error"]:
            yield f"  broke off: {section['error']['type']}: {_short(section['error']['message'])}"
        yield from (f"  FAILED {line}" for line in _failures(section))
        yield from (f"  {line}" for line in _figures(section))
        yield from (f"  goal {_goal(goal)}" for goal in section["goals"])
        yield from (f"  not run {line}" for line in _not_run(section))
    yield ""
    yield (
        f"{summary['checks_passed']} checks passed, {summary['checks_failed']} failed, {summary['not_run']} cases not "
        f"run, {summary['seconds']:.0f} s" + ("" if summary["finished"] else ", NOT FINISHED")
    )
    if summary["broken"]:
        yield f"broke off: {', '.join(summary['broken'])}"
    if result["dry_run"]:
        yield DRY_RUN


def _machine(sections: dict[str, Any]) -> Iterator[str]:
    facts = sections.get("machine", {}).get("facts", {})
    if "versions" in facts:
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        sm = "".join(map(str, facts["capability"]))
        yield f"{facts['name']}, sm_{sm}; {versions}; commit {facts['commit']}"


def _failures(section: dict[str, Any]) -> Iterator[str]:
    for check in section["checks"]:
        if not check["passed"]:
            if "raised" in check:
                yield f"{check['name']}: {check['raised']['type']}: {_short(check['raised']['message'])}"
            else:
                facts = {k: v for k, v in check.items() if k not in ("name", "passed")}
                yield f"{check['name']}: {facts}"


def _goal(goal: dict[str, Any]) -> str:
    text = f"{goal['state']}: {goal['goal']}"
    if goal["worst"]:
        text += f"; lowest {goal['worst']['value']:.2f} ({goal['worst']['case']})"
    if goal["cases"] < goal["of"]:
        text += f"; {goal['cases']} of {goal['of']} cases ran"
    return text


def _not_run(section: dict[str, Any]) -> Iterator[str]:
    """By reason, since time runs out for many cases at once."""
    by_reason: dict[str, list[str]] = {}
    for case in section["not_run"]:
        by_reason.setdefault(case["why"], []).append(case["name"])
    for why, names in by_reason.items():
        shown = "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"({_short(why)}): {shown}"


def _figures(section: dict[str, Any]) -> Iterator[str]:
    if copy := section["facts"].get("copy"):
        yield f"a large copy moves {copy['bytes_per_s'] / 1e9:,.0f} GB/s, read and written"
    rows = section["measured"]
    kinds = {row["what"]: None for row in rows}
    for kind in kinds:
        yield from _FIGURES.get(kind, lambda rows: iter(()))([row for row in rows if row["what"] == kind])


def _bandwidth(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line a cell: share of the copy's bandwidth by peer."""
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        cells.setdefault(row["case"], {})[row["peer"]] = row
    yield "share of the copy's bandwidth (microseconds a call)"
    yield from table(
        ["query heads/KV heads/dim, sequences x context", *peers],
        [
            [case, *(f"{by[p]['share_of_copy']:.2f} ({by[p]['ms'] * 1e3:,.0f})" if p in by else "-" for p in peers)]
            for case, by in cells.items()
        ],
    )


def _splits(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        tried = ", ".join(f"{splits}: {share:.2f}" for splits, share in row["share_of_copy_by_splits"].items())
        yield f"missed, {row['case']}: {row['chosen']} splits chosen; share by splits {tried}"


def _serving(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "output tokens a second"
    yield from table(
        ["workload", "who", "tokens/s", "ours is", "rounds", "equal to generate"],
        [
            [row["case"], row["peer"], f"{row['tokens_per_s']:,.1f}", _times(row["ours_over"]), str(row["rounds"]),
             "-" if row["sequences_equal_to_generate"] is None else f"{row['sequences_equal_to_generate']:.0%}"]
            for row in rows
        ],
    )  # fmt: skip


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _steps(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield from table(
        ["decode step", "how", "ms", "tokens/s", "engine start, s"],
        [
            [row["case"], row["peer"], f"{row['step_ms']:.2f}", f"{row['tokens_per_s']:,.1f}",
             f"{row['engine_start_s']:.1f}"]
            for row in rows
        ],
    )  # fmt: skip


def _memory(rows: list[dict[str, Any]]) -> Iterator[str]:
    def mib(value: int | str) -> str:
        return f"{value / (1 << 20):,.0f}" if isinstance(value, (int, float)) else value

    keys = ("pool_bytes", "kv_used_peak_bytes", "allocated_peak_bytes", "reserved_peak_bytes", "nvml_used_bytes")
    yield "MiB; peaks are torch's, weights included"
    yield from table(
        ["", "pool", "filled at the peak", "allocated", "reserved", "NVML, whole device"],
        [[row["case"], *(mib(row[key]) for key in keys)] for row in rows],
    )


_FIGURES = {
    "bandwidth": _bandwidth,
    "splits": _splits,
    "serving": _serving,
    "decode step": _steps,
    "memory": _memory,
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they must be, the first one to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    for row in [headings, *rows]:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        yield "  ".join(cells).rstrip()


def _short(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= 160 else first[:157] + "..."
