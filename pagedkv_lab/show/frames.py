"""What a live view has to show: one engine, looked at from outside, as frames.

Knows the engine's reports and snapshots and the manager's events. Does not know who draws: a widget, a file. What
happens to blocks is noted as it happens, in a few lines of Python an event; everything dear is done in `frame`, and
only when somebody asks for one.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from pagedkv_lab.blocks.events import BlockEvent
from pagedkv_lab.blocks.snapshot import CACHED, FREE, USED, PoolSnapshot
from pagedkv_lab.engine import Engine
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.engine.request import Sequence
from pagedkv_lab.show import words

#: Rows of `Frame.pool`, and values of its row EVENT.
ROWS = STATE, REFS, FILLED, OWNER, LAST_USE, EVENT, EVENT_STEP = range(7)
ALLOCATED, HIT, COPIED, EVICTED = 1, 2, 3, 4

LOG_LINES = 60
#: Points of the history; when it is full, every other one is dropped.
HISTORY_POINTS = 600
#: Cards: at most so many unfinished sequences, and the last so many that are done.
MAX_SEQUENCES, MAX_DONE = 64, 8
#: Output tokens, from the end, whose text a card shows.
TEXT_TOKENS = 64
#: Steps over which tokens a second are counted.
RATE_STEPS = 32

#: What `details` says of a block whose contents were not seen: no key, no text.
NOTHING_KNOWN = (None, "")

#: Over all engines of a kernel: a view may be given another one, and must see that a frame is new.
_serials = count(1)

LogLine = tuple[int, str, tuple[int, ...]]  # step, what happened, the blocks that it names


@dataclass(frozen=True)
class Frame:
    """One engine at one moment.

    numbers: counts and rates by name. sequences: a dict each, in the order of the cards. tables: by sequence id,
    int32. pool: int32, shape (7, num_blocks), rows as in `ROWS`. history: int32, shape (4, points): step, slots
    filled, slots reserved, slots that contiguous reservation would hold. log: the last lines; new_lines: how many of
    them came since the frame before. details: (short key or None, text) of the blocks whose contents changed since.
    baseline: the contiguous engine beside it, if there is one.
    """

    serial: int
    step: int
    phase: str
    numbers: dict[str, Any]
    sequences: list[dict[str, Any]]
    tables: dict[int, np.ndarray]
    pool: np.ndarray
    history: np.ndarray
    log: list[LogLine]
    new_lines: int
    details: dict[int, tuple[str | None, str]]
    baseline: dict[str, Any] | None


class FrameSource:
    """Follows an engine from now on, until `close`. Several may follow one engine."""

    def __init__(self, engine: Engine):
        self.engine = engine
        #: Asked at each frame for the engine beside this one; see `Frame.baseline`.
        self.baseline: Callable[[], dict[str, Any] | None] = lambda: None
        self.log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self._step = engine.stats().steps
        self._unstamped: list[tuple[str, tuple[int, ...]]] = []
        self._new_lines = 0
        self._seen: dict[int, Sequence] = {}
        self._done: deque[Sequence] = deque(maxlen=MAX_DONE)
        self._described: dict[int, int] = {}
        self._details: dict[int, tuple[str | None, str]] = {}
        self._changed_details: dict[int, tuple[str | None, str]] = {}
        self._left_behind: dict[int, tuple[Sequence, int]] = {}  # block -> whose it was, and its place in the table
        self._prompts: dict[int, str] = {}
        self._rates: deque[tuple[int, float]] = deque(maxlen=RATE_STEPS)
        self._history: list[tuple[int, int, int, int]] = []
        self._latest: tuple[int, int, int, int] | None = None
        self._history_stride = 1
        self._evictions = 0
        self._manager: Any = None
        self._attach()
        engine.listeners.append(self._on_step)

    def close(self) -> None:
        """Stop following. A second call does nothing."""
        if self._on_step in self.engine.listeners:
            self.engine.listeners.remove(self._on_step)
        if self._on_event in self._manager.listeners:
            self._manager.listeners.remove(self._on_event)

    def frame(self, phase: str = "idle") -> Frame:
        """The engine as it is now. To be called between steps."""
        if self.engine.manager is not self._manager:
            self._attach()
        snapshot = self.engine.snapshot()
        sequences = self._sequences(snapshot)
        self._describe(snapshot, sequences)
        self._stamp(self._step)
        details, self._changed_details = self._changed_details, {}
        new_lines, self._new_lines = self._new_lines, 0
        return Frame(
            serial=next(_serials),
            step=self._step,
            phase=phase,
            numbers=self._numbers(snapshot),
            sequences=[self._row(seq, snapshot) for seq in sequences],
            tables={seq.seq_id: snapshot.tables[seq.seq_id] for seq in sequences if seq.seq_id in snapshot.tables},
            pool=self._pool(snapshot),
            history=self._points(),
            log=list(self.log),
            new_lines=min(new_lines, len(self.log)),
            details=details,
            baseline=self.baseline(),
        )

    def details(self, block: int) -> tuple[str | None, str]:
        """(short key or None, text) of what lies in a block, as far as it was seen."""
        return self._details.get(block, NOTHING_KNOWN)

    def say(self, text: str, blocks: Iterable[int] = ()) -> None:
        """Add a line to the log."""
        self._unstamped.append((text, tuple(blocks)))

    # What the engine and its manager tell

    def _on_event(self, event: BlockEvent) -> None:
        if self.engine.manager is not self._manager:
            self._attach()
        seq, blocks = event.seq, event.blocks
        if seq is not None and seq.seq_id not in self._seen:
            self._seen[seq.seq_id] = seq
        if event.kind == "allocate":
            self._note_allocated(seq, blocks)
        elif event.kind == "hit":
            self._mark(blocks, HIT)
            self.say(words.hit(blocks, seq.name, event.num_tokens), blocks)
        elif event.kind == "copy":
            self._mark(blocks[1:], COPIED)
            self.say(words.copied(*blocks, seq.name), blocks)
        elif event.kind == "fork":
            self.say(words.forked(seq.name, len(blocks)))
        elif event.kind == "findable":
            self._findable.update(blocks)
        elif event.kind == "forget":
            self._findable.difference_update(blocks)
        elif event.kind == "free":
            self._note_given_back(seq, blocks)

    def _note_allocated(self, seq: Sequence, blocks: tuple[int, ...]) -> None:
        evicted = [block for block in blocks if block in self._findable]
        self._mark(blocks, ALLOCATED)
        # What lay there is going to be overwritten. `_describe` says with what, where the sequence is shown.
        self._details |= dict.fromkeys(blocks, NOTHING_KNOWN)
        self._changed_details |= dict.fromkeys(blocks, NOTHING_KNOWN)
        for block in blocks:
            self._left_behind.pop(block, None)
        if evicted:
            self._findable.difference_update(evicted)
            self._evictions += len(evicted)
            self._mark(evicted, EVICTED)
            left = self._manager.counts().cached
            self.say(words.evicted(evicted, seq.name, left, oldest_first=self._evicts_oldest_first), evicted)
        if len(blocks) > 1:  # one at a time, as sequences grow, would drown the rest
            self.say(words.allocated(blocks, seq.name), blocks)

    def _note_given_back(self, seq: Sequence, blocks: tuple[int, ...]) -> None:
        self._described.pop(seq.seq_id, None)
        self._left_behind.update((block, (seq, i)) for i, block in enumerate(blocks) if block in self._findable)
        count = self._manager.allocator.ref_count
        back = [block for block in blocks if count(block) == 0]
        stay = sum(block in self._findable for block in back)
        self.say(words.gave_back(seq.name, seq.finish_reason, len(back), stay))

    def _on_step(self, report: StepReport) -> None:
        if self.engine.manager is not self._manager:
            self._attach()
        self._step = report.step
        self._stamp(report.step)
        self._rates.append((len(report.tokens), report.seconds))
        reserved = report.pool.used * self.engine.block_size
        contiguous = len(self.engine.scheduler.running) * self.engine.config.max_model_len
        self._latest = (report.step, report.used_slots, reserved, contiguous)
        if report.step % self._history_stride == 0:
            self._history.append(self._latest)
            if len(self._history) > HISTORY_POINTS:
                self._history, self._history_stride = self._history[::2], 2 * self._history_stride

    def _attach(self) -> None:
        """Follow the engine's manager: at the start, and again where a failed step made the engine replace it."""
        replaced, self._manager = self._manager, self.engine.manager
        if replaced is not None:
            self.say("a part broke: the pool starts anew")
            self._described.clear()
            self._details.clear()
            self._changed_details.clear()
            self._left_behind.clear()
        if self._on_event not in self._manager.listeners:  # the engine hands them on to its new manager
            self._manager.listeners.append(self._on_event)
        snapshot = self.engine.snapshot()
        self._findable = set(np.flatnonzero(snapshot.state == CACHED).tolist())
        for request in self.engine.requests().values():
            for seq in request.sequences:
                if (table := snapshot.tables.get(seq.seq_id)) is not None:
                    # Of two blocks with the same contents only one can be found.
                    found = zip(table.tolist(), self._manager.lookup(seq), strict=False)
                    self._findable.update(block for block, hit in found if block == hit)
        self._evicts_oldest_first = "BlockAllocator" not in self.engine.parts.names_of_others
        self._last_owner = snapshot.owner.copy()
        self._event, self._event_step = np.zeros((2, snapshot.num_blocks), np.int32)
        self._marked: dict[int, int] = {}

    def _mark(self, blocks: Iterable[int], event: int) -> None:
        self._marked |= dict.fromkeys(blocks, event)

    def _stamp(self, step: int) -> None:
        """Give the lines that have come since then the number of their step."""
        self.log.extend((step, text, blocks) for text, blocks in self._unstamped)
        self._new_lines += len(self._unstamped)
        self._unstamped.clear()

    # What goes into a frame

    def _sequences(self, snapshot: PoolSnapshot) -> list[Sequence]:
        """Those to be shown: unfinished ones, oldest first, then the last that are done, newest first."""
        for request in self.engine.requests().values():
            self._seen.update((seq.seq_id, seq) for seq in request.sequences if seq.finish_reason is None)
        for seq_id in [seq_id for seq_id, seq in self._seen.items() if seq.finish_reason is not None]:
            self._done.append(self._seen.pop(seq_id))
        unfinished = sorted(self._seen.values(), key=lambda seq: (seq.seq_id not in snapshot.tables, seq.seq_id))
        shown = unfinished[:MAX_SEQUENCES] + list(self._done)[::-1]
        ids = {seq.request.request_id for seq in shown}
        self._prompts = {request_id: text for request_id, text in self._prompts.items() if request_id in ids}
        return shown

    def _points(self) -> np.ndarray:
        """The history, the last step always among it."""
        latest = [self._latest] if self._latest and self._latest not in self._history[-1:] else []
        return np.array(self._history + latest, np.int32).reshape(-1, 4).T

    def _row(self, seq: Sequence, snapshot: PoolSnapshot) -> dict[str, Any]:
        request = seq.request
        return {
            "id": seq.seq_id,
            "request": request.request_id,
            "index": seq.index,
            "name": seq.name,
            "status": _status(seq, seq.seq_id in snapshot.tables),
            "prompt": self._prompt_text(seq),
            "text": self._output_text(seq),
            "prompt_tokens": seq.prompt_len,
            "output_tokens": seq.num_output_tokens,
            "computed": seq.num_computed_tokens,
            "hit": request.num_cached_tokens or 0,
            "parent": seq.parent_id,
            "preemptions": seq.num_preemptions,
            "reason": seq.finish_reason,
        }

    def _prompt_text(self, seq: Sequence) -> str:
        request = seq.request
        if request.request_id not in self._prompts:
            end = request.prompt_token_ids[-TEXT_TOKENS:]
            self._prompts[request.request_id] = words.clip(request.label or self._text(end, special=False))
        return self._prompts[request.request_id]

    def _output_text(self, seq: Sequence) -> str:
        if seq.finish_reason is not None:
            return words.clip(seq.text, 600)
        start = max(seq.prompt_len, len(seq.token_ids) - TEXT_TOKENS)
        text = self._text(seq.token_ids[start:], special=False).rstrip("\N{REPLACEMENT CHARACTER}")
        return "…" + text if start > seq.prompt_len else text

    def _numbers(self, snapshot: PoolSnapshot) -> dict[str, Any]:
        stats = self.engine.stats()
        used = snapshot.state == USED
        reserved = int(used.sum()) * snapshot.block_size
        tokens, seconds = (sum(column) for column in zip(*self._rates, strict=True)) if self._rates else (0, 0.0)
        return {
            "free": int((snapshot.state == FREE).sum()),
            "cached": int((snapshot.state == CACHED).sum()),
            "used": int(used.sum()),
            "shared": int((snapshot.ref_count > 1).sum()),
            "partial": int((used & (snapshot.filled < snapshot.block_size)).sum()),
            "used_slots": int(snapshot.filled.sum()),
            "utilization": int(snapshot.filled.sum()) / reserved if reserved else None,
            "hit_rate": stats.hit_tokens / stats.queried_tokens if stats.queried_tokens else None,
            "tokens_per_second": tokens / seconds if tokens and seconds else None,
            "output_tokens": stats.output_tokens,
            "running": stats.running,
            "waiting": stats.waiting,
            "finished": stats.finished,
            "preemptions": stats.preemptions,
            "copies": stats.copied_blocks,
            "evictions": self._evictions,
            "steps": stats.steps,
            "seconds": stats.seconds,
        }

    def _pool(self, snapshot: PoolSnapshot) -> np.ndarray:
        if self._marked:
            blocks = list(self._marked)
            self._event[blocks] = list(self._marked.values())
            self._event_step[blocks] = self._step
            self._marked.clear()
        owned = snapshot.owner > 0
        self._last_owner[owned] = snapshot.owner[owned]
        pool = np.empty((len(ROWS), snapshot.num_blocks), np.int32)
        pool[STATE], pool[REFS], pool[FILLED] = snapshot.state, snapshot.ref_count, snapshot.filled
        pool[OWNER] = np.where(snapshot.state == FREE, 0, self._last_owner)
        # The manager's clock is not the engine's: a step that failed counts there, too.
        pool[LAST_USE] = np.maximum(0, snapshot.last_use + (self._step - snapshot.step))
        pool[EVENT], pool[EVENT_STEP] = self._event, self._event_step
        return pool

    def _describe(self, snapshot: PoolSnapshot, sequences: Iterable[Sequence]) -> None:
        """Note key and text of every block that has got new contents since the last frame."""
        size = snapshot.block_size
        for seq in sequences:
            table = snapshot.tables.get(seq.seq_id)
            if table is None:
                continue
            computed = seq.num_computed_tokens
            first = self._described.get(seq.seq_id, 0) // size
            for i in range(first, min(len(table), -(-computed // size))):
                block, is_full = int(table[i]), (i + 1) * size <= computed
                key = words.short_key(seq.block_keys[i]) if is_full and i < len(seq.block_keys) else None
                self._note(block, key, seq.token_ids[i * size : min((i + 1) * size, computed)])
            self._described[seq.seq_id] = computed
        # Who came and went between two frames, or isn't shown, has left blocks that can be found.
        for block, (seq, i) in self._left_behind.items():
            self._note(block, words.short_key(seq.block_keys[i]), seq.token_ids[i * size : (i + 1) * size])
        self._left_behind.clear()

    def _note(self, block: int, key: str | None, token_ids: list[int]) -> None:
        if key is None or self._details.get(block, NOTHING_KNOWN)[0] != key:
            self._details[block] = self._changed_details[block] = (key, self._text(token_ids))

    def _text(self, token_ids: list[int], *, special: bool = True) -> str:
        tokenizer = self.engine.model.tokenizer
        if tokenizer is None:
            return " ".join(map(str, token_ids))
        return tokenizer.decode(token_ids, skip_special_tokens=not special)


def _status(seq: Sequence, holds_blocks: bool) -> str:
    if seq.finish_reason is not None:
        return "aborted" if seq.finish_reason == "abort" else "finished"
    if not holds_blocks:
        return "preempted" if seq.num_preemptions else "waiting"
    return "decode" if seq.is_decoding else "prefill"
