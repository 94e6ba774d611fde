"""A frame tells the truth: its numbers, tables, texts and log are what the engine itself says, whatever happened."""

import json
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from article_parts import MendedAllocator, MendedPrefixCache, MendedTable
from hypothesis import given, settings
from runs import ENGINES, MOVES, play, running, small_engine, toy_engine
from tiny_models import random_prompt, tiny_model

from pagedkv_lab.blocks import BlockTable
from pagedkv_lab.blocks.events import BlockEvent
from pagedkv_lab.blocks.hashing import hash_blocks
from pagedkv_lab.blocks.snapshot import CACHED
from pagedkv_lab.engine import Engine, Parts, SamplingParams
from pagedkv_lab.errors import PartError
from pagedkv_lab.show import frames
from pagedkv_lab.show.frames import (
    ALLOCATED,
    COPIED,
    EVENT,
    EVENT_STEP,
    EVICTED,
    FILLED,
    HIT,
    LAST_USE,
    OWNER,
    REFS,
    STATE,
    Frame,
    FrameSource,
)
from pagedkv_lab.show.words import short_key

GREEDY = SamplingParams(max_tokens=6)
PROMPT = random_prompt(10)

KINDS = ("hit by", "evicted", "copied", "has to be computed again", "forks off", "aborted", "finished")


def texts(frame: Frame) -> list[str]:
    return [text for _, text, _ in frame.log]


def row_of(frame: Frame, request_id: int) -> dict:
    [row] = [row for row in frame.sequences if row["request"] == request_id]
    return row


# Whatever happens


class Witness:
    """Keeps beside the source what a reader of the page would have: the details so far, and who held a block last."""

    def __init__(self, engine: Engine):
        self.engine, self.source = engine, FrameSource(engine)
        self.details: dict[int, tuple] = {}
        self.last_owner: dict[int, int] = {}
        self.event: dict[int, int] = {}
        self.findable: dict[int, tuple[str, str]] = {}  # block -> beginning of its key, text of its tokens
        self.evictions = 0
        engine.manager.listeners.append(self.hear)

    def hear(self, event: BlockEvent) -> None:
        codes = {"hit": HIT, "allocate": ALLOCATED, "copy": COPIED}
        if event.kind in codes:
            self.event |= dict.fromkeys(event.blocks[event.kind == "copy" :], codes[event.kind])
        if event.kind == "allocate":
            evicted = self.findable.keys() & event.blocks
            self.event |= dict.fromkeys(evicted, EVICTED)
            self.evictions += len(evicted)
            for block in evicted:
                del self.findable[block]
        elif event.kind == "findable":
            size, table = self.engine.block_size, self.engine.manager.block_table(event.seq)
            for block in event.blocks:
                i = table.index(block)
                text = self.engine.model.decode(event.seq.token_ids[i * size : (i + 1) * size])
                self.findable[block] = (short_key(event.seq.block_keys[i]), text)

    def look(self) -> Frame:
        frame = self.source.frame("running")
        self.details |= frame.details
        self.assert_numbers(frame)
        self.assert_pool(frame)
        self.assert_sequences(frame)
        self.assert_details()
        json.dumps([frame.numbers, frame.sequences, frame.log, list(frame.details.items())])
        return frame

    def assert_numbers(self, frame: Frame) -> None:
        stats, numbers = self.engine.stats(), frame.numbers
        pool, slots = self.engine.manager.counts(), self.engine.manager.used_slots
        assert (numbers["free"], numbers["cached"], numbers["used"]) == pool[1:]
        assert numbers["used_slots"] == slots
        assert numbers["utilization"] == (slots / (pool.used * self.engine.block_size) if pool.used else None)
        assert numbers["hit_rate"] == (stats.prefix_hit_rate if stats.queried_tokens else None)
        for ours, theirs in {"copies": "copied_blocks"}.items():
            assert numbers[ours] == getattr(stats, theirs)
        for name in ("output_tokens", "running", "waiting", "finished", "preemptions", "steps", "seconds"):
            assert numbers[name] == getattr(stats, name)
        assert numbers["evictions"] == self.evictions
        assert frame.step == stats.steps
        assert (numbers["tokens_per_second"] is None) == (stats.output_tokens == 0)

    def assert_pool(self, frame: Frame) -> None:
        snapshot, pool = self.engine.snapshot(), frame.pool
        assert pool.shape == (7, snapshot.num_blocks)
        assert pool.dtype == np.int32
        assert pool[STATE].tolist() == snapshot.state.tolist()
        assert pool[REFS].tolist() == snapshot.ref_count.tolist()
        assert pool[FILLED].tolist() == snapshot.filled.tolist()
        self.last_owner |= {block: owner for block, owner in enumerate(snapshot.owner.tolist()) if owner}
        expected = [self.last_owner.get(block, 0) if state else 0 for block, state in enumerate(snapshot.state)]
        assert pool[OWNER].tolist() == expected
        assert pool[EVENT].tolist() == [self.event.get(block, 0) for block in range(snapshot.num_blocks)]
        for row in (EVENT_STEP, LAST_USE):
            assert ((pool[row] >= 0) & (pool[row] <= frame.step)).all()
        assert (pool[LAST_USE][snapshot.ref_count > 0] == frame.step).all()
        used, full = snapshot.ref_count > 0, snapshot.filled == snapshot.block_size
        assert frame.numbers["shared"] == (snapshot.ref_count > 1).sum()
        assert frame.numbers["partial"] == (used & ~full).sum()

    def assert_sequences(self, frame: Frame) -> None:
        alive = {seq.seq_id: seq for seq in running(self.engine)}
        rows = {row["id"]: row for row in frame.sequences}
        assert len(rows) == len(frame.sequences)
        assert {i for i, row in rows.items() if row["status"] not in ("finished", "aborted")} == set(alive)
        has_blocks = {i for i, seq in alive.items() if self.engine.manager.room(seq)}
        assert {i: table.tolist() for i, table in frame.tables.items()} == {
            i: self.engine.manager.block_table(alive[i]) for i in has_blocks
        }
        for i, seq in alive.items():
            row = rows[i]
            assert (row["request"], row["index"], row["name"]) == (seq.request.request_id, seq.index, seq.name)
            assert (row["prompt_tokens"], row["output_tokens"]) == (seq.prompt_len, seq.num_output_tokens)
            assert (row["computed"], row["preemptions"]) == (seq.num_computed_tokens, seq.num_preemptions)
            assert row["parent"] == seq.parent_id
            assert row["hit"] == (seq.request.num_cached_tokens or 0)
            assert row["text"] == self.engine.model.decode(seq.output_token_ids)
            in_words = {False: ("waiting", "preempted"), True: ("prefill", "decode")}[i in has_blocks]
            assert row["status"] in in_words

    def assert_details(self) -> None:
        """Of each block that somebody holds: the text of the tokens in it, and the beginning of its key if full."""
        size, snapshot = self.engine.block_size, self.engine.snapshot()
        for block in np.flatnonzero(snapshot.state == CACHED).tolist():
            assert self.details[block] == self.source.details(block) == self.findable[block]
        for seq in running(self.engine):
            if not self.engine.manager.room(seq):
                continue
            for i, block in enumerate(self.engine.manager.block_table(seq)):
                tokens = seq.token_ids[i * size : (i + 1) * size][: seq.num_computed_tokens - i * size]
                assert snapshot.filled[block] == len(tokens)
                keyed = len(tokens) == size and self.engine.config.enable_prefix_caching
                key = short_key(seq.block_keys[i]) if keyed else None
                assert self.details[block] == self.source.details(block) == (key, self.engine.model.decode(tokens))


@settings(max_examples=40)
@given(ENGINES, MOVES)
def test_every_frame_is_true_whatever_happens(options, moves):
    witness = Witness(small_engine(**options))
    witness.look()
    for _ in play(witness.engine, moves):
        witness.look()


@settings(max_examples=25)
@given(ENGINES, MOVES)
def test_frames_that_are_taken_now_and_then_are_true_as_well(options, moves):
    witness = Witness(small_engine(**options))
    for i, _ in enumerate(play(witness.engine, moves)):
        if i % 5 == 4:
            witness.look()
    witness.look()


def test_the_log_says_what_the_reports_say():
    seen = Counter()
    compare = settings(max_examples=200)(given(ENGINES, MOVES)(compare_log_and_reports))
    compare(seen)
    for what in KINDS:
        assert seen[what] >= 20, f"too rare for these runs to mean something: {seen}"


def compare_log_and_reports(seen, options, moves):
    engine = small_engine(**options)
    source = FrameSource(engine)
    reported, lines = [], []
    for report in play(engine, moves):
        frame = source.frame()
        lines += frame.log[len(frame.log) - frame.new_lines :]
        if report is not None:
            reported.append(report)
    counts, tokens = Counter(), Counter()
    for step, text, _ in lines:
        if match := re.search(r" hit by .*: (\d+) tokens? not computed", text):
            tokens[step] += int(match[1])
        counts[step, "copied"] += " copied to block " in text
        counts[step, "has to be computed again"] += " has to be computed again: " in text
        counts[step, "finished"] += " finished" in text
        seen.update(what for what in KINDS if what in text)
    for report in reported:
        assert tokens[report.step] == report.hit_tokens
        assert counts[report.step, "copied"] == report.num_copied_blocks
        assert counts[report.step, "has to be computed again"] == len(report.preempted)
    ended = [out.finish_reason for report in reported for request in report.finished for out in request.outputs]
    said = sum(count for (_, what), count in counts.items() if what == "finished")
    assert said == sum(reason != "abort" for reason in ended)
    assert lines == sorted(lines, key=lambda line: line[0])


# The log, word by word


def test_a_prompt_that_was_there_before_is_a_hit_with_its_tokens():
    engine = small_engine()
    source = FrameSource(engine)
    engine.generate([PROMPT], GREEDY, use_tqdm=False)
    engine.add_request([*random_prompt(8), 1, 2], GREEDY)
    engine.step()
    frame = source.frame()
    assert frame.log == [
        (1, "blocks 0, 1 and 2 taken by request 1", (0, 1, 2)),
        (6, "request 1 finished (length): 4 blocks back, 3 of them still findable", ()),
        (7, "blocks 0 and 1 hit by request 2: 8 tokens not computed", (0, 1)),
    ]
    assert frame.new_lines == 3
    assert source.frame().new_lines == 0


def test_a_prompt_that_hits_completely_computes_its_last_token():
    engine = small_engine()
    source = FrameSource(engine)
    for _ in range(2):
        engine.generate([PROMPT[:4]], SamplingParams(max_tokens=1), use_tqdm=False)
    assert texts(source.frame()) == [
        "request 1 finished (length): 1 block back, 1 of them still findable",
        "block 0 hit by request 2: 3 tokens not computed",
        "request 2 finished (length): 1 block back, 1 of them still findable",
    ]


def test_a_fork_and_its_copy():
    engine = small_engine()
    source = FrameSource(engine)
    parent = engine.add_request(PROMPT, GREEDY)
    engine.step()
    engine.fork(parent)
    engine.step()
    engine.abort(parent)
    assert texts(source.frame())[1:] == [
        "request 2 forks off and shares 3 blocks",
        "block 2 copied to block 3 for request 1, which writes into it while others read it",
        "request 1 aborted: 1 block back",
    ]


def eviction_lines(**options) -> list[tuple]:
    """Three blocks can be found, and no other is free, when a request takes one block, then two."""
    engine = small_engine(num_gpu_blocks=4, **options)
    source = FrameSource(engine)
    engine.generate([random_prompt(12)], SamplingParams(max_tokens=1), use_tqdm=False)
    for length in (7, 13):
        engine.generate([random_prompt(length, 1)], SamplingParams(max_tokens=1), use_tqdm=False)
    frame = source.frame()
    assert frame.numbers["evictions"] == sum(len(blocks) for _, text, blocks in frame.log if "evicted" in text)
    return [(text, blocks) for _, text, blocks in frame.log if "evicted" in text]


def test_what_is_evicted_is_the_oldest_of_those_that_could_still_be_found():
    assert eviction_lines() == [
        ("block 2 evicted for request 2: the oldest of 3 that could still be found", (2,)),
        ("blocks 1 and 0 evicted for request 3: the last 2 that could still be found", (1, 0)),
    ]


def test_of_a_learner_s_allocator_nobody_says_that_the_oldest_goes_first():
    lines = eviction_lines(parts=Parts(BlockAllocator=MendedAllocator))
    assert lines
    assert not any("oldest" in text for text, _ in lines)


def test_stopping_early_has_its_own_words():
    engine = small_engine()
    source = FrameSource(engine)
    [token] = engine.generate([PROMPT], SamplingParams(max_tokens=1), use_tqdm=False)[0].token_ids
    engine.generate([PROMPT], SamplingParams(max_tokens=9, stop_token_ids=(token,)), use_tqdm=False)
    assert texts(source.frame())[-1].startswith("request 2 finished: ")


def test_one_who_gives_way_is_named_and_a_step_later_its_blocks_are_another_s():
    engine = small_engine(num_gpu_blocks=7)
    source = FrameSource(engine)
    for i in range(2):
        engine.add_request(random_prompt(10, i), SamplingParams(max_tokens=12))
    while not engine.stats().preemptions:
        engine.step()
    frame = source.frame()
    assert texts(frame)[-1] == "request 2 has to be computed again: 3 blocks back, 3 of them still findable"
    assert row_of(frame, 2)["status"] == "preempted"
    assert row_of(frame, 2)["id"] not in frame.tables


def test_only_the_last_lines_are_kept():
    engine = small_engine()
    source = FrameSource(engine)
    for i in range(100):
        source.say(f"line {i}", [i])
    frame = source.frame()
    assert (len(frame.log), frame.new_lines) == (60, 60)
    assert frame.log[-1] == (0, "line 99", (99,))


# What happened to a block


def events(frame: Frame) -> dict[int, tuple[int, int]]:
    """(code, step) of each block to which something has happened."""
    codes, steps = frame.pool[EVENT].tolist(), frame.pool[EVENT_STEP].tolist()
    return {block: (code, step) for block, (code, step) in enumerate(zip(codes, steps, strict=True)) if code}


def test_each_block_says_what_happened_to_it_last_and_in_which_step():
    engine = small_engine(num_gpu_blocks=5)
    source = FrameSource(engine)
    parent = engine.add_request(random_prompt(7), SamplingParams(max_tokens=9))
    engine.step()
    assert events(source.frame()) == {0: (ALLOCATED, 1), 1: (ALLOCATED, 1)}
    fork = engine.fork(parent)
    assert events(source.frame()) == {0: (ALLOCATED, 1), 1: (ALLOCATED, 1)}, "to share a block does nothing to it"
    engine.step()
    assert events(source.frame())[2] == (COPIED, 2)
    engine.abort(parent)
    engine.abort(fork)
    engine.add_request(random_prompt(5), GREEDY)
    engine.step()
    assert events(source.frame())[0] == (HIT, 3)
    engine.add_request(random_prompt(12, 1), GREEDY)
    engine.step()
    after = events(source.frame())
    assert source.frame().numbers["evictions"] == list(after.values()).count((EVICTED, 4)) == 1


# Text and contents


def test_text_and_prompt_are_what_was_asked_and_what_was_generated():
    engine = small_engine()
    source = FrameSource(engine)
    engine.add_request("abcdefghab", SamplingParams(max_tokens=20))
    said = ""
    while engine.has_unfinished_requests():
        report = engine.step()
        said += engine.model.decode([token for *_, token in report.tokens])
        [row] = source.frame().sequences
        assert (row["prompt"], row["text"]) == ("abcdefghab", said)
    assert report.finished[0].text == said
    assert (row["status"], row["reason"]) == ("finished", "length")


def test_token_ids_and_chats_are_shown_as_text_too():
    engine = toy_engine(num_gpu_blocks=64, max_model_len=128)
    source = FrameSource(engine)
    engine.add_request(engine.model.encode("as ids"), GREEDY)
    engine.add_request([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}], GREEDY)
    assert [row["prompt"] for row in source.frame().sequences] == ["as ids", "hello"]


def test_of_a_long_text_the_end_is_shown():
    engine = small_engine(max_model_len=128, num_gpu_blocks=32)
    source = FrameSource(engine)
    engine.add_request("ab" * 5, SamplingParams(max_tokens=100))
    engine.add_request("abcd" * 10 + "efgh" * 10, SamplingParams(max_tokens=1))
    tokens = [token for _ in range(90) for i, _, token in engine.step().tokens if i == 1]
    assert row_of(source.frame(), 1)["text"] == "…" + engine.model.decode(tokens[-frames.TEXT_TOKENS :])


def test_half_a_letter_at_the_end_is_not_shown():
    engine = toy_engine(num_gpu_blocks=64, max_model_len=256)
    source = FrameSource(engine)
    engine.add_request("x", SamplingParams(max_tokens=200, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
        for row in source.frame().sequences:
            assert row["reason"] or not row["text"].endswith("\N{REPLACEMENT CHARACTER}")


def test_a_model_without_a_tokenizer_shows_numbers():
    engine = Engine(tiny_model("llama"), block_size=4, num_gpu_blocks=8, max_model_len=32)
    source = FrameSource(engine)
    engine.add_request([5, 6, 7, 8, 9], GREEDY)
    report = engine.step()
    frame = source.frame()
    assert row_of(frame, 1)["prompt"] == "5 6 7 8 9"
    assert row_of(frame, 1)["text"] == str(report.tokens[0][2])
    assert [text for _, text in frame.details.values()] == ["5 6 7 8", "9"]


def test_each_block_s_contents_are_told_when_they_change_and_not_again():
    engine = small_engine()
    source = FrameSource(engine)
    letters = engine.model.tokenizer.decode
    prompt = engine.model.encode("aaabacadae")
    parent = engine.add_request(prompt, GREEDY)
    engine.step()
    frame = source.frame()
    key = running(engine)[0].block_keys[0].hex()[:8]
    assert frame.details == {0: (key, "aaabacad"), 1: (None, "ae")}, "a full one and one that is partly filled"
    engine.step()
    said = running(engine)[0].output_token_ids
    assert source.frame().details == {1: (None, "ae" + letters(said[:1]))}
    # A hit is known already; a copy holds what its source held.
    engine.add_request([*prompt[:4], 9], GREEDY)
    engine.fork(parent)
    engine.step()
    details = source.frame().details
    assert 0 not in details
    assert details == {
        1: (None, "ae" + letters(said[:2])),
        2: (None, "ae" + letters(said[:2])),
        3: (None, letters([9])),
    } or details == {
        1: (None, "ae" + letters(said[:2])),
        3: (None, "ae" + letters(said[:2])),
        2: (None, letters([9])),
    }
    assert source.details(0) == (key, "aaabacad")


def test_a_block_that_is_used_anew_tells_its_new_contents():
    engine = small_engine(num_gpu_blocks=4)
    source = FrameSource(engine)
    for start in "ab":
        engine.add_request(f"{start}a" * 5, SamplingParams(max_tokens=1))
        engine.step()
        frame = source.frame()
        engine.add_request(f"{start}a" * 5, SamplingParams(max_tokens=5))
        engine.step()
        frame = source.frame()
        [seq] = running(engine)
        told = [source.details(block)[1] for block in frame.tables[seq.seq_id]]
        assert told == [f"{start}a" * 4, f"{start}a"]
        engine.abort(seq.request.request_id)


def test_what_somebody_left_who_came_and_went_between_two_frames_is_told_too():
    engine = small_engine()
    source = FrameSource(engine)
    engine.generate(["abcdefghab"], SamplingParams(max_tokens=4), use_tqdm=False)
    frame = source.frame()
    keys = [key.hex()[:8] for key in hash_blocks(None, engine.model.encode("abcdefgh"), 4)]
    assert frame.details[0] == source.details(0) == (keys[0], "abcdefgh")
    assert [len(frame.details[block][0] or "") for block in range(2)] == [8, 8]
    assert source.frame().details == {}
    # Taken by one that still runs, it is that one's.
    engine.add_request("cd" * 21 + "ef" * 3, SamplingParams(max_tokens=20))
    engine.step()
    assert source.frame().details.keys() >= set(engine.manager.block_table(running(engine)[0]))


def test_a_block_of_a_sequence_that_is_not_shown_tells_nothing_rather_than_what_lay_there_before(monkeypatch):
    monkeypatch.setattr(frames, "MAX_SEQUENCES", 1)
    engine = small_engine(num_gpu_blocks=4, enable_prefix_caching=False)
    source = FrameSource(engine)
    engine.add_request("ab" * 3, SamplingParams(max_tokens=2))
    stays = engine.add_request("cd", SamplingParams(max_tokens=9))
    engine.step()
    source.frame()
    [block] = [block for block in range(4) if source.details(block)[1] == "ababab"]
    engine.step()
    engine.add_request("ef" * 3, SamplingParams(max_tokens=9))
    engine.step()
    frame = source.frame()
    assert [row["request"] for row in frame.sequences if row["status"] == "decode"] == [stays]
    assert frame.pool[OWNER, block] == 3, "its block is the third one's now"
    assert frame.details[block] == source.details(block) == (None, "")


# Which sequences are shown


def test_the_states_of_a_sequence_s_life():
    engine = small_engine(max_num_batched_tokens=6, max_num_seqs=1)
    source = FrameSource(engine)
    first = engine.add_request(PROMPT, SamplingParams(max_tokens=2))
    second = engine.add_request(PROMPT, SamplingParams(max_tokens=9))
    seen = []
    for _ in range(5):
        rows = {row["request"]: row["status"] for row in source.frame().sequences}
        seen.append((rows[first], rows[second]))
        engine.step()
    engine.abort(second)
    rows = {row["request"]: row["status"] for row in source.frame().sequences}
    assert seen == [
        ("waiting", "waiting"),
        ("prefill", "waiting"),
        ("decode", "waiting"),
        ("finished", "waiting"),
        ("finished", "decode"),
    ]
    assert rows == {first: "finished", second: "aborted"}


def test_those_that_hold_blocks_come_first_and_the_last_that_ended_last(monkeypatch):
    monkeypatch.setattr(frames, "MAX_SEQUENCES", 4)
    engine = small_engine(max_num_seqs=2)
    source = FrameSource(engine)
    for _ in range(10):
        engine.add_request(PROMPT[:4], SamplingParams(max_tokens=1))
        engine.step()
        source.frame()
    ids = [engine.add_request(random_prompt(5, i), SamplingParams(max_tokens=3)) for i in range(6)]
    engine.step()
    frame = source.frame()
    assert [row["request"] for row in frame.sequences] == [*ids[:4], *range(10, 2, -1)]
    assert list(frame.tables) == [row["id"] for row in frame.sequences[:2]]


def test_many_waiting_requests_are_cut_and_counted():
    engine = small_engine(max_num_seqs=2)
    source = FrameSource(engine)
    for _ in range(80):
        engine.add_request(PROMPT, GREEDY)
    engine.step()
    frame = source.frame()
    assert len(frame.sequences) == frames.MAX_SEQUENCES == 64
    assert (frame.numbers["running"], frame.numbers["waiting"]) == (2, 78)


def test_requests_that_come_and_go_leave_nothing_behind():
    engine = small_engine()
    source = FrameSource(engine)
    for i in range(40):
        engine.generate([random_prompt(4, i)], SamplingParams(max_tokens=1), use_tqdm=False)
        source.frame()
    assert len(source._seen) == 0
    assert len(source._prompts) <= frames.MAX_DONE
    assert len(source._described) == 0


def test_a_fork_is_beside_its_parent_with_what_was_asked():
    engine = small_engine()
    source = FrameSource(engine)
    parent = engine.add_request("abcdef", GREEDY)
    engine.step()
    fork = engine.fork(parent)
    of, row = source.frame().sequences
    assert (of["parent"], row["parent"]) == (None, of["id"])
    assert (row["request"], row["prompt"], row["text"]) == (fork, "abcdef", of["text"])


# Following


def test_several_sources_see_the_same():
    engine = small_engine()
    sources = [FrameSource(engine) for _ in range(2)]
    engine.add_request(PROMPT, SamplingParams(max_tokens=6, n=2))
    for _ in range(4):
        engine.step()
        one, other = (source.frame() for source in sources)
        assert one.log == other.log
        assert one.numbers == other.numbers
        assert one.details == other.details
        assert (one.pool == other.pool).all()


def test_one_that_comes_later_sees_what_is_there():
    engine = small_engine()
    engine.add_request(PROMPT, GREEDY)
    for _ in range(3):
        engine.step()
    frame = FrameSource(engine).frame()
    assert frame.step == 3
    assert frame.log == []
    assert frame.tables[1].tolist() == engine.manager.block_table(running(engine)[0])
    assert len(frame.details) == 3
    assert (frame.pool[EVENT] == 0).all()


def test_one_that_comes_later_takes_no_block_for_findable_that_is_not():
    """Parent and fork fill a block each with the same tokens: only the first can be found."""
    engine = small_engine(num_gpu_blocks=6)
    parent = engine.add_request(PROMPT[:6], SamplingParams(max_tokens=4))
    engine.step()
    engine.fork(parent)
    for _ in range(2):
        engine.step()
    source = FrameSource(engine)
    both = source.frame().tables
    assert both[1][1] != both[2][1], "each has filled its own second block"
    while engine.has_unfinished_requests():
        engine.step()
    back = [text for text in texts(source.frame()) if "back" in text]
    cached = engine.manager.counts().cached
    assert cached == 2
    assert sum(int(re.search(r"(\d+) of them", text)[1]) for text in back if "of them" in text) == cached
    engine.add_request(random_prompt(9, 1), GREEDY)
    engine.step()
    assert source.frame().numbers["evictions"] == 0, "empty ones were there"


def test_after_close_nothing_follows_the_engine():
    engine = small_engine()
    source = FrameSource(engine)
    assert len(engine.listeners) == len(engine.manager.listeners) == 1
    source.close()
    source.close()
    assert engine.listeners == engine.manager.listeners == []
    engine.generate([PROMPT], GREEDY, use_tqdm=False)
    assert source.frame().log == []


class TornTable(BlockTable):
    """Breaks at its fourth block, once."""

    torn = True

    def append_block(self):
        if len(self.blocks) == 3 and TornTable.torn:
            TornTable.torn = False
            raise ValueError("torn")
        return super().append_block()


@pytest.mark.parametrize("looks_between", [True, False])
def test_a_pool_that_starts_anew_is_followed_from_its_first_block(monkeypatch, looks_between):
    monkeypatch.setattr(TornTable, "torn", True)
    engine = small_engine(parts=Parts(BlockTable=TornTable))
    source = FrameSource(engine)
    engine.add_request(PROMPT, GREEDY)
    for _ in range(3):
        engine.step()
    source.frame()
    with pytest.raises(PartError, match="torn"):
        engine.step()
    if looks_between:
        frame = source.frame()
        assert texts(frame)[-1] == "a part broke: the pool starts anew"
        assert (frame.pool[[STATE, REFS, FILLED, OWNER, EVENT]] == 0).all()
        assert row_of(frame, 1)["status"] == "preempted"
    engine.step()
    frame = source.frame()
    assert texts(frame)[-2:] == ["a part broke: the pool starts anew", "blocks 0, 1, 2 and 3 taken by request 1"]
    assert events(frame) == dict.fromkeys(range(4), (ALLOCATED, 4))
    assert row_of(frame, 1)["status"] == "decode"
    assert [source.details(block)[1] for block in range(4)] == [
        engine.model.decode(running(engine)[0].token_ids[start : start + 4][: 13 - start]) for start in (0, 4, 8, 12)
    ]
    source.close()
    assert engine.manager.listeners == []


def test_a_step_that_fails_leaves_the_right_books_behind(monkeypatch):
    engine = small_engine()
    witness = Witness(engine)
    engine.add_request(PROMPT, GREEDY)
    engine.step()
    witness.look()

    def fail(*args):
        raise RuntimeError("no step")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", fail)
        with pytest.raises(RuntimeError, match="no step"):
            engine.step()
    assert row_of(witness.look(), 1)["status"] == "preempted"
    while engine.has_unfinished_requests():
        engine.step()
        witness.look()


@pytest.mark.parametrize(
    "parts",
    [{"BlockAllocator": MendedAllocator}, {"BlockTable": MendedTable}, {"PrefixCache": MendedPrefixCache}],
    ids=lambda parts: next(iter(parts)),
)
def test_a_learner_s_parts_are_shown_as_truly(parts):
    witness = Witness(small_engine(parts=Parts(**parts), num_gpu_blocks=9))
    moves = [("add", (0, 9, 5, 3)), ("step", 2), ("add", (0, 16, 8, 1)), ("step", 3), ("fork", 0)]
    moves += [("add", (1, 21, 3, 1)), ("step", 2), ("abort", 0), ("add", (0, 16, 3, 1))]
    for _ in play(witness.engine, moves):
        witness.look()


# History


def history(frame: Frame) -> list[list[int]]:
    return frame.history.T.tolist()


def test_history_has_the_slots_of_each_step():
    engine = small_engine()
    source = FrameSource(engine)
    assert source.frame().history.shape == (4, 0)
    for i in range(2):
        engine.add_request(random_prompt(9, i), SamplingParams(max_tokens=4 + i))
    expected = []
    while engine.has_unfinished_requests():
        report = engine.step()
        rows = engine.stats().running * engine.config.max_model_len
        expected.append([report.step, report.used_slots, report.pool.used * 4, rows])
    assert history(source.frame()) == expected


def test_a_long_history_thins_out_and_ends_now(monkeypatch):
    assert frames.HISTORY_POINTS == 600
    monkeypatch.setattr(frames, "HISTORY_POINTS", 12)
    engine = small_engine(max_model_len=128, num_gpu_blocks=32)
    source = FrameSource(engine)
    engine.add_request(PROMPT, SamplingParams(max_tokens=100))
    truth = {}
    while engine.has_unfinished_requests():
        report = engine.step()
        truth[report.step] = report.used_slots
        points = history(source.frame())
        steps = [step for step, *_ in points]
        assert len(points) <= 13
        assert steps == sorted(set(steps))
        assert steps[-1] == report.step, "the chart's right edge is now"
        assert steps[0] == 1, "and its left edge the beginning"
        assert all(truth[step] == used for step, used, *_ in points)
    assert report.step == 100
    gaps = {after - before for before, after in pairwise(steps[:-1])}
    assert gaps <= {15, 16, 17}, "about as far from each other everywhere"


# Beside it


def test_what_runs_beside_it_is_asked_at_each_frame():
    source = FrameSource(small_engine())
    assert source.frame().baseline is None
    source.baseline = lambda: {"rows": []}
    assert source.frame().baseline == {"rows": []}


def test_each_frame_has_a_number_of_its_own_and_the_phase_it_was_taken_in():
    source = FrameSource(small_engine())
    first, second = source.frame(), source.frame("paused")
    assert first.serial < second.serial
    assert (first.phase, second.phase) == ("idle", "paused")
