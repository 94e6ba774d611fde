"""From a schedule to what the runner takes: sequences laid out as one flat row of tokens.

Knows sequences and their tables. Does not know the model.

A decode step adds one token to each sequence, and so does the work here: the block tables stay from step to step in
one array, to which a step adds the blocks that are new. Nothing in a step costs more because a context is longer.
"""

from operator import is_not

import numpy as np

from pagedkv_lab.blocks.manager import BlockManager
from pagedkv_lab.engine.runner import StepInput
from pagedkv_lab.engine.scheduler import Schedule


class BatchLayout:
    """Lays out one step after the other. One for an engine."""

    def __init__(self) -> None:
        self._array = np.zeros((0, 0), np.int32)
        self._tables: list[list[int]] = []  # the tables whose blocks stand in the array's rows
        self._lengths: list[int] = []  # and how many of each do

    def lay_out(self, schedule: Schedule, manager: BlockManager, copies: list[tuple[int, int]]) -> StepInput:
        """The step's sequences, one after the other in one flat row of tokens. copies: those of `take_copies`."""
        token_ids: list[int] = []
        positions: list[int] = []
        context_lens: list[int] = []
        query_lens: list[int] = []
        write_slots: list[int] = []
        write_rows: list[int] = []
        sample_rows: list[int] = []
        tables: list[list[int]] = []
        for seq, num_tokens, writes in schedule.work:
            start = seq.num_computed_tokens
            end = start + num_tokens
            row = len(token_ids)
            if num_tokens == 1:  # decode, the commonest: no slice, no range
                token_ids.append(seq.token_ids[start])
                positions.append(start)
            else:
                token_ids += seq.token_ids[start:end]
                positions += range(start, end)
            context_lens.append(end)
            query_lens.append(num_tokens)
            write_slots += manager.slots(seq, writes)
            write_rows += range(row + writes.start - start, row + writes.stop - start)
            if end == len(seq.token_ids):
                sample_rows.append(row + num_tokens - 1)
            tables.append(manager.block_table(seq))
        # Whoever copied a block has another one now where it writes next.
        moved = [(i, w.writes.start // manager.block_size) for i, w in enumerate(schedule.work) if w.writes and copies]
        return StepInput(
            token_ids=np.array(token_ids, np.int64),
            positions=np.array(positions, np.int64),
            query_lens=np.array(query_lens, np.int32),
            context_lens=np.array(context_lens, np.int32),
            block_tables=self._in_one_array(tables, moved),
            write_slots=np.array(write_slots, np.int64),
            write_rows=None if len(write_rows) == len(token_ids) else np.array(write_rows, np.int64),
            # Where nothing is sampled, one row's logits are computed and thrown away.
            sample_rows=np.array(sample_rows or [len(token_ids) - 1], np.int64),
            copies=copies,
        )

    def _in_one_array(self, tables: list[list[int]], moved: list[tuple[int, int]]) -> np.ndarray:
        """(S, longest) int32: the tables, row by row. moved: (row, logical block) of entries that are others now.

        A sequence keeps its list of blocks from admission until it is freed, so the list itself says whether a row
        of the array is still its own.
        """
        if len(tables) != len(self._tables) or any(map(is_not, tables, self._tables)):
            self._rearrange(tables)
        lengths = list(map(len, tables))
        longest = max(lengths)
        if longest > self._array.shape[1]:
            self._array = np.pad(self._array, ((0, 0), (0, 2 * longest - self._array.shape[1])))
        for row, (done, length) in enumerate(zip(self._lengths, lengths, strict=True)):
            if done != length:
                begin = min(done, length)
                self._array[row, begin:length] = tables[row][begin:]
        for row, logical in moved:
            self._array[row, logical] = tables[row][logical]
        self._lengths = lengths
        return self._array[:, :longest]

    def _rearrange(self, tables: list[list[int]]) -> None:
        """Sequences came, went or changed places: move the rows that are known, leave the others empty."""
        known = {id(table): row for row, table in enumerate(self._tables)}
        come_from = [known.get(id(table)) for table in tables]
        array = np.zeros((len(tables), self._array.shape[1]), np.int32)
        stay = [(row, before) for row, before in enumerate(come_from) if before is not None]
        if stay:
            to, before = map(list, zip(*stay, strict=True))
            array[to] = self._array[before]
        self._array = array
        self._lengths = [0 if before is None else self._lengths[before] for before in come_from]
        self._tables = tables
