"""From a schedule to what the runner takes: sequences laid out as one flat row of tokens.

Knows sequences and their tables. Does not know the model.
"""

from pagedkv_lab.blocks.manager import BlockManager
from pagedkv_lab.engine.runner import StepInput
from pagedkv_lab.engine.scheduler import Schedule


def lay_out(schedule: Schedule, manager: BlockManager, copies: list[tuple[int, int]]) -> StepInput:
    """The step's sequences, one after the other in one flat row of tokens. copies: those of `take_copies`."""
    token_ids: list[int] = []
    positions: list[int] = []
    write_slots: list[int] = []
    write_rows: list[int] = []
    sample_rows: list[int] = []
    for item in schedule.work:
        seq, start = item.seq, item.seq.num_computed_tokens
        row = len(token_ids)
        token_ids += seq.token_ids[start : start + item.num_tokens]
        positions += range(start, start + item.num_tokens)
        write_slots += manager.slots(seq, item.writes)
        write_rows += range(row + item.writes.start - start, row + item.writes.stop - start)
        if item.is_last_chunk:
            sample_rows.append(len(token_ids) - 1)
    return StepInput(
        token_ids=token_ids,
        positions=positions,
        query_lens=[item.num_tokens for item in schedule.work],
        context_lens=[item.seq.num_computed_tokens + item.num_tokens for item in schedule.work],
        block_tables=[manager.block_table(item.seq) for item in schedule.work],
        write_slots=write_slots,
        write_rows=None if len(write_rows) == len(token_ids) else write_rows,
        sample_rows=sample_rows or [len(token_ids) - 1],  # nothing to sample: the logits are thrown away
        copies=copies,
    )
