"""The runner is given, step after step, what a fresh look at every sequence would give.

The layout keeps the block tables from step to step; whatever happens between two steps, no row may be out of date.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_token_equality import MAX_MODEL_LEN, busy_scenario, scenarios
from tiny_models import random_prompt, tiny_model

from pagedkv_lab.engine import ContiguousEngine, Engine, SamplingParams
from pagedkv_lab.engine.batch import BatchLayout


def expected_rows(schedule, manager) -> list[tuple]:
    """For each sequence: its tokens, positions, slots to write, length and table, worked out from scratch."""
    rows = []
    for seq, num_tokens, writes in schedule.work:
        start = seq.num_computed_tokens
        table = manager.block_table(seq)
        slots = [table[p // manager.block_size] * manager.block_size + p % manager.block_size for p in writes]
        rows.append((seq.token_ids[start : start + num_tokens], start, slots, list(writes), list(table)))
    return rows


class CheckedLayout(BatchLayout):
    def __init__(self, seen: Counter):
        super().__init__()
        self.seen = seen

    def lay_out(self, schedule, manager, copies):
        step = super().lay_out(schedule, manager, copies)
        row = written = sampled = 0
        for s, (tokens, start, slots, writes, table) in enumerate(expected_rows(schedule, manager)):
            end = start + len(tokens)
            assert step.token_ids[row : row + len(tokens)].tolist() == tokens
            assert step.positions[row : row + len(tokens)].tolist() == list(range(start, end))
            assert (step.query_lens[s], step.context_lens[s]) == (len(tokens), end)
            assert step.block_tables[s, : len(table)].tolist() == table
            assert step.write_slots[written : written + len(slots)].tolist() == slots
            if step.write_rows is not None:
                rows = step.write_rows[written : written + len(slots)].tolist()
                assert rows == [row + position - start for position in writes]
            if end == len(schedule.work[s].seq.token_ids):
                assert step.sample_rows[sampled] == row + len(tokens) - 1
                sampled += 1
            row += len(tokens)
            written += len(slots)
        assert (len(step.token_ids), len(step.write_slots)) == (row, written)
        assert len(step.sample_rows) == max(1, sampled)
        assert step.block_tables.dtype == np.int32
        writes_less = step.write_rows is not None
        self.seen.update(steps=1, copies=bool(copies), nothing_sampled=not sampled, writes_less=writes_less)
        return step


def run(scenario) -> Counter:
    seen: Counter = Counter()
    engine = (ContiguousEngine if scenario.contiguous else Engine)(tiny_model("toy"), **scenario.options)
    engine._batch = CheckedLayout(seen)
    requests = list(scenario.requests)
    for request in requests[: len(requests) - scenario.late]:
        engine.add_request(*request)
    late = requests[len(requests) - scenario.late :]
    aborted = False
    while engine.has_unfinished_requests() or late:
        if late:
            engine.add_request(*late.pop())
        engine.step()
        if seen["steps"] == 5 and engine.requests() and not aborted:  # the rows behind it move up
            engine.abort(next(iter(engine.requests())))
            aborted = True
    return seen


@settings(max_examples=60)
@given(scenarios())
def test_every_step_is_laid_out_as_if_it_were_the_first(scenario):
    assert run(scenario)["steps"] > 0


@settings(max_examples=20)
@given(scenarios(contiguous=True))
def test_rows_of_the_contiguous_engine_too(scenario):
    run(scenario)


def test_copies_chunks_and_preemptions_are_among_what_was_looked_at():
    seen = run(busy_scenario())
    assert seen["copies"], seen
    assert seen["nothing_sampled"], seen


def test_a_full_hit_writes_nothing_and_samples_all_the_same():
    seen: Counter = Counter()
    engine = Engine(tiny_model("toy"), block_size=4, num_gpu_blocks=12, max_model_len=MAX_MODEL_LEN)
    engine._batch = CheckedLayout(seen)
    for _ in range(2):
        engine.generate([random_prompt(8)], SamplingParams(max_tokens=1), use_tqdm=False)
    assert seen["writes_less"] == 1, seen


@pytest.mark.parametrize("lengths", [[1, 40, 3], [40, 1, 40]])
@settings(max_examples=20)
@given(st.data())
def test_tables_of_any_length_stand_side_by_side(lengths, data):
    """The array grows when a longer table comes, and what stood in it stays."""
    layout = BatchLayout()
    tables = [data.draw(st.lists(st.integers(0, 999), min_size=n, max_size=n)) for n in lengths]
    for _ in range(data.draw(st.integers(1, 6))):
        array = layout._in_one_array(tables, [])
        assert [row[: len(table)].tolist() for row, table in zip(array, tables, strict=True)] == tables
        grown = data.draw(st.sampled_from(tables))
        grown.append(data.draw(st.integers(0, 999)))
        if data.draw(st.booleans()):
            tables = list(data.draw(st.permutations(tables)))
        if data.draw(st.booleans()):
            tables = [*tables[1:], list(tables[0])]  # another list: admitted anew
