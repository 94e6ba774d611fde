"""Benchmarks of PagedKV Lab against others doing the same work on the same machine. Never part of the test run.

    pagedkv bench SUITE [--quick] [--json FILE]     SUITE: blocks, attention, engine, scaling
    python -m benchmarks.table [--check]            README's table, from results/*.json

Each suite is a module with a function `run` that measures and returns what it found. `suites` runs one for the
command line; `table` reads what was stored.
"""
