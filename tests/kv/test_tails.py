"""Tails: which row a partly filled block lies in, who gets one back, and how many are enough."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedkv_lab.errors import PagedKVError
from pagedkv_lab.kv.tails import TailRows, touched_blocks
from pagedkv_lab.sizing import KVQuantization

BLOCK_SIZE = 4


def make_tails(num_tails=3, num_blocks=8, is_in_use=None):
    tails = TailRows(num_blocks, num_tails, BLOCK_SIZE)
    if is_in_use:
        tails.is_in_use = is_in_use
    return tails


def write(tails, *runs, copies=()):
    """One step that writes runs (block, first, count). Returns each run's tail row, and the copies of rows."""
    slots = [block * BLOCK_SIZE + first + i for block, first, count in runs for i in range(count)]
    touched, row_copies = tails.begin_step(list(copies), touched_blocks(np.array(slots, np.int64), BLOCK_SIZE))
    return touched.tail_row.tolist(), row_copies


# What a step touches


def test_a_steps_writes_are_told_by_block():
    slots = np.array([6, 7, 20, 21, 22, 23, 0, 13])
    block, tail_row, first, count, row = touched_blocks(slots, BLOCK_SIZE)
    assert block.tolist() == [1, 5, 0, 3]
    assert first.tolist() == [2, 0, 0, 1]
    assert count.tolist() == [2, 4, 1, 1]
    assert row.tolist() == [0, 2, 6, 7]
    assert tail_row.tolist() == [-1] * 4
    assert {field.dtype for field in (block, tail_row, first, count, row)} == {np.dtype(np.int32)}


def test_a_step_that_writes_nothing_touches_nothing():
    assert [len(field) for field in touched_blocks(np.array([], np.int64), BLOCK_SIZE)] == [0] * 5


# Rows


def test_a_block_keeps_its_row_until_it_is_full():
    tails = make_tails()
    (row,), _ = write(tails, (5, 0, 1))
    assert write(tails, (5, 1, 2))[0] == [row]
    assert tails.row_of[5] == row
    assert write(tails, (5, 3, 1))[0] == [row], "the step that fills it reads the row"
    assert tails.row_of[5] == -1


def test_a_block_that_is_written_whole_needs_no_row():
    assert write(make_tails(num_tails=0), (5, 0, 4), (6, 0, 4))[0] == [-1, -1]


def test_the_row_of_a_block_that_fills_is_nobody_elses_in_that_step_and_free_in_the_next():
    tails = make_tails(num_tails=2)
    (row,), _ = write(tails, (0, 0, 3))
    (filled, begun), _ = write(tails, (0, 3, 1), (1, 0, 2))
    assert filled == row != begun
    assert write(tails, (1, 2, 1), (2, 0, 1))[0] == [begun, row]


def test_a_block_that_is_written_anew_has_no_past():
    tails = make_tails(num_tails=1)
    write(tails, (0, 0, 3))
    write(tails, (0, 0, 4))
    assert tails.row_of[0] == -1
    assert write(tails, (1, 0, 1))[0] == [0]


def test_rows_of_blocks_that_nobody_holds_are_found_again_when_rows_run_out():
    asked = []
    tails = make_tails(num_tails=2, is_in_use=lambda block: asked.append(block) or block != 3)
    write(tails, (3, 0, 1), (4, 0, 1))
    assert asked == []
    write(tails, (5, 0, 1))
    assert asked == [3, 4]
    assert tails.row_of[[3, 4, 5]].tolist() == [-1, tails.row_of[4], 1 - tails.row_of[4]]
    assert tails.row_of[4] >= 0


def test_where_all_rows_are_needed_the_numbers_are_said():
    tails = make_tails(num_tails=2)
    with pytest.raises(PagedKVError, match=r"than the 2 tails hold .* max_num_seqs"):
        write(tails, (0, 0, 1), (1, 0, 1), (2, 0, 1))


def test_a_pool_that_starts_anew_has_all_its_rows():
    tails = make_tails(num_tails=2)
    write(tails, (0, 0, 3), (1, 0, 1))
    write(tails, (0, 3, 1), (1, 1, 1))
    tails.forget()
    assert (tails.row_of == -1).all()
    assert sorted(write(tails, (4, 0, 1), (5, 0, 1))[0]) == [0, 1]


@pytest.mark.parametrize("first", [1, 3])
def test_a_block_that_is_written_on_without_a_beginning_is_a_mistake_and_found(first):
    with pytest.raises(AssertionError, match="lie in no tail"):
        write(make_tails(), (2, first, 1))


# Copies


def test_a_copied_block_has_a_row_of_its_own():
    tails = make_tails()
    (row,), _ = write(tails, (0, 0, 2))
    (copied,), row_copies = write(tails, (1, 2, 1), copies=[(0, 1)])
    assert row_copies == [(row, copied)]
    assert row != copied
    assert tails.row_of[0] == row, "the original is still there"


def test_a_block_that_is_copied_into_has_no_past():
    tails = make_tails(num_tails=3)
    write(tails, (0, 0, 2))
    for _ in range(5):  # more often than there are rows
        write(tails, (1, 2, 1), copies=[(0, 1)])
    assert sorted(tails.row_of[[0, 1]]) == sorted({*tails.row_of[[0, 1]]})


def test_a_full_block_is_copied_without_a_row():
    tails = make_tails()
    write(tails, (0, 0, 4))
    assert write(tails, copies=[(0, 1)]) == ([], [])
    assert tails.row_of[1] == -1


def test_a_source_that_is_given_up_and_written_anew_in_the_same_step_is_read_first():
    tails = make_tails(num_tails=2)
    (row,), _ = write(tails, (0, 0, 2))
    rows, row_copies = write(tails, (1, 2, 1), (0, 0, 1), copies=[(0, 1)])
    assert row_copies == [(row, rows[0])]
    assert rows[0] != rows[1]


# Last blocks


def test_a_sequence_reads_the_tail_of_its_last_block_where_that_is_partly_filled():
    tails = make_tails()
    (row,), _ = write(tails, (7, 0, 3))
    tables = np.array([[2, 7], [2, 3], [0, 0]], np.int32)
    assert tails.of_last_blocks(tables, np.array([7, 8, 0])).tolist() == [row, -1, -1]


def test_a_partly_filled_block_without_a_tail_is_a_mistake_and_found():
    with pytest.raises(AssertionError, match="has no tail"):
        make_tails().of_last_blocks(np.array([[2]], np.int32), np.array([3]))


# How many are enough


def test_where_every_sequence_fills_a_block_and_begins_one_two_rows_for_each_are_needed_and_enough():
    num_tails = KVQuantization(4, "channel").num_tails(4)
    tails = make_tails(num_tails)
    write(tails, *((block, 0, 3) for block in range(4)))
    runs = [run for block in range(4) for run in ((block, 3, 1), (4 + block, 0, 1))]
    assert sorted(write(tails, *runs)[0]) == list(range(num_tails))


class ManySequences(RuleBasedStateMachine):
    """As an engine uses a pool: sequences that grow by as many tokens as they like, share, copy and give up their
    blocks, never more than four at once. Rows must last, and never be two blocks' in a step."""

    MAX_NUM_SEQS, NUM_BLOCKS = 4, 12

    def __init__(self):
        super().__init__()
        self.sequences = []  # (blocks, length)
        num_tails = KVQuantization(4, "channel").num_tails(self.MAX_NUM_SEQS)
        self.tails = make_tails(num_tails, self.NUM_BLOCKS, lambda block: self.holders(block) > 0)

    def holders(self, block):
        return sum(block in blocks for blocks, _ in self.sequences)

    def allocate(self):
        """Any free block, the one that was used last before all others: it is the likeliest to have a past."""
        free = [block for block in range(self.NUM_BLOCKS) if not self.holders(block)]
        return max(free, key=lambda block: self.tails.row_of[block]) if free else None

    @rule(draw=st.data())
    def step(self, draw):
        copies, runs = [], []
        for i in range(self.MAX_NUM_SEQS):
            if i >= len(self.sequences):
                self.sequences.append(([], 0))
            elif draw.draw(st.integers(0, 4)) == 0:
                self.sequences[i] = ([], 0)  # given up within the step, and others may take its blocks in it
            blocks, length = self.sequences[i]
            for _ in range(draw.draw(st.integers(1, 6))):
                offset = length % BLOCK_SIZE
                if offset == 0:
                    block = self.allocate()
                    if block is None:
                        break
                    blocks = [*blocks, block]
                elif self.holders(blocks[-1]) > 1:
                    copy = self.allocate()
                    if copy is None:
                        break
                    copies.append((blocks[-1], copy))
                    blocks = [*blocks[:-1], copy]
                if runs and runs[-1][:2] == (i, blocks[-1]):
                    runs[-1] = (*runs[-1][:3], runs[-1][3] + 1)
                else:
                    runs.append((i, blocks[-1], offset, 1))
                length += 1
                self.sequences[i] = (blocks, length)
        rows, row_copies = write(self.tails, *(run[1:] for run in runs), copies=copies)
        held = [row for row in rows if row >= 0]
        assert len(held) == len(set(held)), "two blocks of a step have the same row"
        destinations = [row for _, row in row_copies]
        assert len(destinations) == len(set(destinations))

    @precondition(lambda self: 0 < len(self.sequences) < self.MAX_NUM_SEQS)
    @rule(draw=st.data())
    def fork(self, draw):
        self.sequences.append(draw.draw(st.sampled_from(self.sequences)))

    @precondition(lambda self: self.sequences)
    @rule(draw=st.data())
    def finish(self, draw):
        self.sequences.pop(draw.draw(st.integers(0, len(self.sequences) - 1)))

    @precondition(lambda self: self.sequences)
    @rule()
    def fail(self):
        """The step fails: everybody's blocks are given up."""
        self.sequences.clear()

    @invariant()
    def each_partly_filled_block_has_a_row_of_its_own(self):
        partial = {blocks[-1] for blocks, length in self.sequences if length % BLOCK_SIZE}
        rows = [int(self.tails.row_of[block]) for block in partial]
        assert all(row >= 0 for row in rows)
        assert len(rows) == len(set(rows))
        full = {block for blocks, length in self.sequences for block in blocks[: length // BLOCK_SIZE]}
        assert all(self.tails.row_of[block] == -1 for block in full - partial)


TestManySequences = ManySequences.TestCase
TestManySequences.settings = settings(max_examples=60, stateful_step_count=25)
