"""A plan told to people: each number with the arithmetic that gives it, and the verdict in one line.

Knows words. Every number comes from `plan.py`.
"""

import math
import sys
from typing import TextIO

from pagedkv_lab.measure.plan import Plan
from pagedkv_lab.sizing import block_table_bytes, dtype_bytes, human_bytes


def verdict(plan: Plan) -> str:
    """One line: do the users fit, and if not, how many do and what is missing."""
    users = f"{_count(plan.users, 'user')} of {plan.tokens:,} tokens"
    gigabytes = math.ceil(plan.memory_needed_bytes / 1e8) / 10
    enough = f"a device of {gigabytes:,.1f} GB would do for {plan.users:,}"
    if plan.cache_bytes <= 0:
        return (
            f"{users} do not fit: the weights alone take {human_bytes(plan.weight_bytes)} and "
            f"{human_bytes(plan.usable_bytes)} may be used; {enough}."
        )
    if not plan.fits:
        return (
            f"{users} do not fit: {plan.paged_users:,} do (contiguous: {plan.contiguous_users:,}). The cache "
            f"would take {human_bytes(plan.users * plan.paged_bytes_per_user)} and "
            f"{human_bytes(plan.cache_bytes)} are there; {enough}."
        )
    return (
        f"{users} fit, and {human_bytes(plan.left_bytes)} are left: in blocks there is room for "
        f"{plan.paged_users:,}, contiguously for {plan.contiguous_users:,}."
    )


def rows(plan: Plan) -> list[tuple[str, str]]:
    """The plan line by line as (what, arithmetic), in the order in which one would reckon it by hand."""
    token = human_bytes(float(plan.bytes_per_token))
    block = human_bytes(float(plan.block_size * plan.bytes_per_token))
    parts = [layers.arithmetic(plan.cache_dtype) for layers in plan.model.kv_layers]
    data = f"{' + '.join(parts)} = {plan.data_bytes_per_token:,} bytes"
    is_quantized = plan.kv_cache_dtype != "auto"
    arithmetic = [("A token's cache", data + " of data" if is_quantized else f"{data} = {token} a token")]
    if is_quantized:
        arithmetic += _quantized_rows(plan, token)

    if plan.model.num_parameters is None:
        weights = f"{human_bytes(plan.weight_bytes)}, as its files are stored"
    else:
        weights = (
            f"{plan.model.num_parameters:,} parameters x {dtype_bytes(plan.dtype):g} bytes = "
            f"{human_bytes(plan.weight_bytes)} (parameters {plan.model.parameters_from})"
        )
        stored = plan.model.stored_bytes
        if stored and abs(stored - plan.weight_bytes) > 0.01 * plan.weight_bytes:
            weights += f"; stored, in the type of its files, {human_bytes(stored)}"
    arithmetic.append(("Weights", weights))

    free = human_bytes(plan.memory_bytes - plan.usable_bytes)
    tails = f" beside the tails of {_count(plan.users, 'user')}" * bool(plan.tails_per_user)
    of_tails = f" + {human_bytes(plan.tail_bytes_per_user)} of tails" * bool(plan.tails_per_user)
    arithmetic += [
        (
            "Memory to use",
            f"{plan.gpu_memory_utilization:g} x {human_bytes(plan.memory_bytes)} = "
            f"{human_bytes(plan.usable_bytes)}; {free} stay free for all else",
        ),
        (
            "Cache",
            f"{human_bytes(plan.usable_bytes)} - {human_bytes(plan.weight_bytes)} of weights = "
            f"{human_bytes(plan.cache_bytes)}" + (f" = {plan.num_blocks:,} blocks{tails}" * (plan.num_blocks > 0)),
        ),
        (
            "Contiguous",
            f"{plan.longest:,} slots (the longest sequence allowed) x {token} = "
            f"{human_bytes(plan.contiguous_bytes_per_user)} a user; "
            f"x {plan.users:,} = {human_bytes(plan.users * plan.contiguous_bytes_per_user)}",
        ),
        (
            "Paged",
            f"{plan.tokens:,} tokens / {plan.block_size} = {_count(plan.blocks_per_user, 'block')} "
            f"x {block}{of_tails} = {human_bytes(plan.paged_bytes_per_user)} a user; "
            f"x {plan.users:,} = {human_bytes(plan.users * plan.paged_bytes_per_user)}",
        ),
        (
            "Block table",
            f"{_count(plan.blocks_per_user, 'block')} x 4 bytes = "
            f"{human_bytes(block_table_bytes(plan.tokens, plan.block_size))} a user",
        ),
    ]
    if plan.cache_bytes > 0:
        served = _count(min(plan.users, plan.paged_users), "user")
        paged = f"{plan.num_blocks:,} blocks / {plan.blocks_per_user:,}"
        if plan.tails_per_user:
            paged = f"{human_bytes(plan.cache_bytes)} / {human_bytes(plan.paged_bytes_per_user)}"
        arithmetic += [
            (
                "Users that fit",
                f"contiguous {plan.contiguous_users:,} = {human_bytes(plan.cache_bytes)} / "
                f"{human_bytes(plan.contiguous_bytes_per_user)}; paged {plan.paged_users:,} = {paged}",
            ),
            ("Left", f"{human_bytes(plan.left_bytes)} beside {served}, paged"),
        ]
    return arithmetic + [("Note", note) for note in plan.model.notes]


def _quantized_rows(plan: Plan, token: str) -> list[tuple[str, str]]:
    """What a quantized token weighs besides its data, and what that is of a plain one."""
    scales, total, plain = plan.scale_bytes_per_token, plan.bytes_per_token, plan.plain_bytes_per_token
    found = [
        (
            "Its scales",
            f"{float(scales):,g} bytes, blocks of {plan.block_size}: "
            f"{plan.data_bytes_per_token:,} + {float(scales):,g} bytes = {token} a token",
        ),
        (
            f"Beside {plan.dtype}",
            f"{plain:,} bytes a token: the data are {plan.data_bytes_per_token / plain:.3g} of that, "
            f"with scales {float(total / plain):.3g}",
        ),
    ]
    if plan.tails_per_user:
        found.append(
            (
                "Tails",
                f"{plan.tails_per_user} partly filled blocks a user in {plan.dtype} x {plan.block_size} tokens x "
                f"{human_bytes(plain)} = {human_bytes(plan.tail_bytes_per_user)} a user",
            )
        )
    return found


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def print_plan(plan: Plan, file: TextIO | None = None) -> None:
    """Print the plan: with colours and wrapped in a terminal, as plain lines anywhere else."""
    file = file or sys.stdout
    cache = "" if plan.kv_cache_dtype == "auto" else f", cache in {plan.kv_cache_dtype}"
    title = f"{plan.model.name} ({plan.model.attention}, {plan.dtype}{cache}) on {plan.memory_bytes / 1e9:.4g} GB"
    if not file.isatty():
        lines = [title, *(f"{what + ':':<16} {how}" for what, how in rows(plan)), f"Verdict: {verdict(plan)}"]
        print("\n".join(lines), file=file)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file, highlight=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for what, how in rows(plan):
        table.add_row(what, Text(how))
    console.print(Text(title, style="bold"), table, sep="\n")
    console.print(Text(verdict(plan), style="bold green" if plan.fits else "bold red"))
