"""The playground does what the browser asks, says what it can't do, and leaves neither browser nor engine stuck."""

import threading
from typing import Any

import numpy as np
import pytest
from article_parts import MendedAllocator, MendedPrefixCache, MendedTable
from runs import running, small_engine, toy_engine
from tiny_models import assert_all_back, letters_model, own_tokens, random_prompt

from pagedkv_lab.blocks import BlockTable
from pagedkv_lab.engine import ContiguousEngine, Engine, Parts, SamplingParams
from pagedkv_lab.errors import RequestTooLong
from pagedkv_lab.show import Playground, playground

PROMPTS = [random_prompt(10), random_prompt(13), random_prompt(7, 1)]


class Browser:
    """Sends what the page sends, and keeps what comes back."""

    def __init__(self, view: Playground):
        self.view, self.inbox = view, []
        view.send = lambda content, buffers=None: self.inbox.append(content)

    def ask(self, do: str, **what: Any) -> list[dict]:
        """The answers, without the contents of blocks, which come on the side."""
        begin = len(self.inbox)
        self.view._handle_custom_msg({"do": do} | what, [])
        return [answer for answer in self.inbox[begin:] if answer["kind"] != "details"]

    def rebuild(self, **changes: Any) -> list[dict]:
        settings = self.view.settings
        names = ("block_size", "num_gpu_blocks", "enable_prefix_caching", "baseline")
        return self.ask("rebuild", **{name: settings[name] for name in names} | changes)

    def run(self) -> None:
        for ticket in range(500):
            [done] = self.ask("step", ticket=ticket, steps=1)
            if not done["more"]:
                return
        raise AssertionError("it doesn't come to an end")

    @property
    def sequences(self) -> dict[int, dict]:
        return {row["id"]: row for row in self.view.frame["sequences"]}

    def table(self, sequence: int) -> list[int]:
        offset, length = self.sequences[sequence]["table"]
        return np.frombuffer(self.view.tables, np.int32)[offset : offset + length].tolist()


OK = [{"kind": "error", "text": None}]


def make(prompts: Any = PROMPTS, **options: Any) -> Browser:
    return Browser(Playground(small_engine(**options), prompts, max_tokens=6))


def finished_tokens(engine: Engine) -> dict[int, list[list[int]]]:
    """Filled by and by with the tokens of what finishes, by request id."""
    done: dict[int, list[list[int]]] = {}
    engine.listeners.append(
        lambda report: done.update((out.request_id, [o.token_ids for o in out.outputs]) for out in report.finished)
    )
    return done


def own(prompt: list[int], max_tokens: int = 6) -> list[int]:
    return own_tokens(letters_model(), prompt, max_tokens)


# To begin with


def test_before_the_first_step_the_prompts_wait():
    browser = make()
    view = browser.view
    assert view.kind == "playground"
    assert view.frame["phase"] == "paused"
    assert [row["status"] for row in browser.sequences.values()] == ["waiting"] * 3
    assert view.engine.stats().steps == 0
    assert len(view.pool) == 7 * 24 * 4


def test_without_prompts_it_is_idle_and_a_step_does_nothing():
    browser = make(())
    assert browser.view.frame["phase"] == "idle"
    assert browser.ask("step", ticket=1, steps=1) == [{"kind": "done", "ticket": 1, "more": False, "ran": 0}]


def test_the_settings_offer_what_the_engine_has_among_others():
    view = make(block_size=5, num_gpu_blocks=24, enable_prefix_caching=False).view
    settings = view.settings
    assert (settings["block_size"], settings["num_gpu_blocks"]) == (5, 24)
    assert settings["block_sizes"] == [4, 5, 8, 16, 32, 64]
    assert 24 in settings["pool_sizes"]
    assert settings["pool_sizes"] == sorted(settings["pool_sizes"])
    assert (settings["enable_prefix_caching"], settings["baseline"]) == (False, False)
    assert settings["max_tokens"] == 6
    assert all(isinstance(prompt, str) for prompt in settings["suggestions"])


def test_text_is_put_as_a_question_to_a_model_that_chats():
    engine = toy_engine(num_gpu_blocks=64, max_model_len=128)
    browser = Browser(Playground(engine, ["What is paging?"], max_tokens=4))
    browser.ask("add", prompt="And now?", max_tokens=4, n=1)
    asked = [engine.model.decode(seq.token_ids) for seq in running(engine)]
    assert asked == ["user: What is paging?\nassistant: ", "user: And now?\nassistant: "]
    assert [row["prompt"] for row in browser.sequences.values()] == ["What is paging?", "And now?"]


def test_a_model_instead_of_an_engine_gets_an_engine():
    view = Playground(letters_model(), ["abcd"], max_tokens=2)
    assert view.step(9) == 2
    assert view.meta["num_blocks"] == 256


# What the browser asks for


def test_each_step_is_answered_after_its_frame():
    browser = make()
    order = []
    browser.view.observe(lambda change: order.append(change["new"]["step"]), "frame")
    browser.view.send = lambda content, buffers=None: order.append(content)
    browser.ask("step", ticket="t1", steps=1)
    order = [one for one in order if isinstance(one, int) or one["kind"] != "details"]
    assert order == [1, {"kind": "done", "ticket": "t1", "more": True, "ran": 1}]


def test_steps_are_as_many_as_asked_for_or_as_there_are():
    browser = make()
    assert browser.ask("step", ticket=1, steps=4) == [{"kind": "done", "ticket": 1, "more": True, "ran": 4}]
    assert browser.view.frame["step"] == 4
    assert browser.ask("step", ticket=2, steps=9) == [{"kind": "done", "ticket": 2, "more": False, "ran": 2}]
    assert browser.view.frame["phase"] == "done"
    assert {row["status"] for row in browser.sequences.values()} == {"finished"}
    assert_all_back(browser.view.engine)


def test_at_top_speed_a_pull_is_as_many_steps_as_fit_into_its_time(monkeypatch):
    browser = make()
    monkeypatch.setattr(playground, "SECONDS_A_PULL", 1000)
    assert browser.ask("step", ticket=1, steps=None) == [{"kind": "done", "ticket": 1, "more": False, "ran": 6}]


def test_what_is_shown_is_what_the_engine_says():
    browser = make()
    browser.ask("step", ticket=1, steps=3)
    engine = browser.view.engine
    for seq in running(engine):
        assert browser.table(seq.seq_id) == engine.manager.block_table(seq)
        assert browser.sequences[seq.seq_id]["text"] == engine.model.decode(seq.output_token_ids)
    refs = np.frombuffer(browser.view.pool, np.int32).reshape(7, -1)[1]
    assert refs.tolist() == engine.snapshot().ref_count.tolist()


def test_a_prompt_that_is_added_while_it_runs_is_served():
    browser = make()
    browser.ask("step", ticket=1, steps=2)
    assert browser.ask("add", prompt="abcdefgh", max_tokens=3, n=1) == OK
    assert browser.view.frame["phase"] == "paused"
    [row] = [row for row in browser.sequences.values() if row["prompt"] == "abcdefgh"]
    assert row["status"] == "waiting"
    done = finished_tokens(browser.view.engine)
    browser.run()
    assert done[row["request"]] == [own(letters_model().encode("abcdefgh"), 3)]
    assert done[1] == [own(PROMPTS[0])]


def test_after_the_end_an_added_prompt_makes_it_go_on():
    browser = make()
    browser.run()
    assert browser.view.frame["phase"] == "done"
    browser.ask("add", prompt="ab", max_tokens=2, n=1)
    assert browser.view.frame["phase"] == "paused"
    assert browser.ask("step", ticket=7, steps=1)[0]["more"]


def test_several_outputs_of_a_prompt_are_drawn_and_differ():
    browser = make(())
    browser.ask("add", prompt="abcdefgh", max_tokens=12, n=3)
    done = finished_tokens(browser.view.engine)
    browser.run()
    assert len({tuple(tokens) for tokens in done[1]}) == 3


def test_a_fork_goes_on_by_itself_and_two_forks_of_one_differ():
    browser = Browser(Playground(small_engine(), PROMPTS[:1], max_tokens=16))
    done = finished_tokens(browser.view.engine)
    browser.ask("step", ticket=1, steps=2)
    for _ in range(2):
        assert browser.ask("fork", sequence=1) == OK
    assert [row["parent"] for row in browser.sequences.values()] == [None, 1, 1]
    assert browser.table(1) == browser.table(2) == browser.table(3)
    browser.run()
    assert done[1] == [own(PROMPTS[0], 16)]
    assert len({tuple(tokens) for [tokens] in done.values()}) == 3
    assert all(tokens[:2] == own(PROMPTS[0], 2) for [tokens] in done.values())


def test_an_aborted_request_is_gone_and_the_others_go_on():
    browser = make()
    done = finished_tokens(browser.view.engine)
    browser.ask("step", ticket=1, steps=2)
    assert browser.ask("abort", request=1) == OK
    assert browser.sequences[1]["status"] == "aborted"
    assert browser.table(1) == []
    browser.run()
    assert done == {2: [own(PROMPTS[1])], 3: [own(PROMPTS[2])]}


def test_clear_leaves_an_empty_board_and_an_empty_pool():
    browser = make()
    browser.ask("step", ticket=1, steps=3)
    assert browser.ask("clear") == OK
    frame = browser.view.frame
    assert (frame["step"], frame["phase"], frame["sequences"], frame["log"]) == (0, "idle", [], [])
    assert browser.view.engine.stats().pool.free == 24
    assert browser.rebuild(block_size=8) == OK
    assert browser.sequences == {}, "what was cleared does not come back"


def test_of_a_block_it_tells_what_lies_there():
    browser = make(["abcdefghab"])
    browser.ask("step", ticket=1, steps=1)
    first, second = browser.table(1)
    for block in (first, second, 23):
        browser.ask("block", block=block)
    key = running(browser.view.engine)[0].block_keys[0].hex()[:8]
    assert browser.inbox[-3:] == [
        {"kind": "details", "asked": True, "blocks": {str(first): [key, "abcdefgh"]}},
        {"kind": "details", "asked": True, "blocks": {str(second): [None, "ab"]}},
        {"kind": "details", "asked": True, "blocks": {"23": [None, ""]}},
    ]


# What it can't do


@pytest.mark.parametrize(
    ("do", "what", "words"),
    [
        ("fork", {"sequence": 77}, "no unfinished sequence 77"),
        ("add", {"prompt": "", "max_tokens": 3, "n": 1}, "the prompt is empty"),
        ("add", {"prompt": "ab" * 60, "max_tokens": 3, "n": 1}, "60 tokens and max_model_len is 48"),
        ("add", {"prompt": "ab", "max_tokens": -3, "n": 1}, "max_tokens"),
        ("add", {"prompt": "ab", "max_tokens": 3, "n": 100}, "max_num_seqs"),
        ("add", {"prompt": "ab"}, "max_tokens"),
        ("rebuild", {"block_size": 0, "num_gpu_blocks": 8, "enable_prefix_caching": 1, "baseline": 0}, "block_size"),
        ("block", {"block": "x"}, "invalid literal"),
    ],
)
def test_what_can_t_be_done_is_said_and_changes_nothing(do, what, words):
    browser = make()
    browser.ask("step", ticket=1, steps=2)
    before = browser.view.engine, list(browser.view.engine.requests()), browser.view.engine.stats()
    [answer] = browser.ask(do, **what)
    assert answer["kind"] == "error"
    assert words in answer["text"]
    assert (browser.view.engine, list(browser.view.engine.requests()), browser.view.engine.stats()) == before
    browser.run()
    assert_all_back(browser.view.engine)


def test_the_next_thing_that_works_takes_the_message_away():
    browser = make()
    browser.ask("fork", sequence=77)
    assert browser.ask("add", prompt="ab", max_tokens=1, n=1) == OK


def test_what_it_does_not_know_it_leaves_alone():
    browser = make()
    assert browser.ask("dance") == []
    assert browser.ask("views", count=2) == []


@pytest.mark.parametrize("error", [RuntimeError("out of order"), KeyboardInterrupt()])
def test_a_step_that_breaks_off_is_said_and_answered_and_the_next_one_goes_on(monkeypatch, error):
    browser = make()
    done = finished_tokens(browser.view.engine)
    browser.ask("step", ticket=1, steps=2)

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(browser.view.engine.runner, "execute", fail)
        answers = browser.ask("step", ticket=2, steps=1)
    assert answers[0] == {"kind": "done", "ticket": 2, "more": False, "ran": 0}
    said = "RuntimeError: out of order" if isinstance(error, RuntimeError) else "Interrupted. Run or Step goes on"
    assert answers[1]["kind"] == "error"
    assert said in answers[1]["text"]
    assert browser.view.frame["phase"] == "paused"
    assert {row["status"] for row in browser.sequences.values()} == {"preempted"}
    browser.run()
    assert done == {i + 1: [own(prompt)] for i, prompt in enumerate(PROMPTS)}
    assert_all_back(browser.view.engine)


def test_a_frame_that_can_t_be_made_does_not_leave_the_browser_waiting(monkeypatch):
    browser = make()
    monkeypatch.setattr(browser.view, "push", None)
    answers = browser.ask("step", ticket=5, steps=1)
    assert answers[0]["kind"] == "done"
    assert answers[0]["ticket"] == 5
    assert answers[1]["kind"] == "error"


# Parts of the learner's own


def test_the_learner_s_parts_run_it_and_are_named():
    parts = Parts(BlockAllocator=MendedAllocator, BlockTable=MendedTable, PrefixCache=MendedPrefixCache)
    browser = make(parts=parts)
    assert browser.view.meta["parts"] == ["BlockAllocator", "BlockTable", "PrefixCache"]
    done = finished_tokens(browser.view.engine)
    browser.ask("step", ticket=1, steps=2)
    browser.ask("fork", sequence=1)
    browser.run()
    assert done[1] == [own(PROMPTS[0])]
    browser.rebuild(block_size=8)
    assert browser.view.engine.parts is parts


class TornTable(BlockTable):
    """Breaks at its fourth block, as often as it comes there."""

    def append_block(self):
        if len(self.blocks) == 3:
            raise ValueError("torn")
        return super().append_block()


def test_a_part_that_breaks_is_explained_and_it_goes_on():
    browser = make([PROMPTS[0], PROMPTS[2]], parts=Parts(BlockTable=TornTable))
    done = finished_tokens(browser.view.engine)
    answers = browser.ask("step", ticket=1, steps=9)
    assert answers[0]["more"] is False
    assert "BlockTable" in answers[1]["text"]
    assert "torn" in answers[1]["text"]
    assert "a part broke: the pool starts anew" in [text for _, text, _ in browser.view.frame["log"]]
    browser.ask("abort", request=1)
    browser.run()
    assert done == {2: [own(PROMPTS[2])]}
    assert_all_back(browser.view.engine)


# Built another way


@pytest.mark.parametrize("changes", [{"block_size": 8}, {"num_gpu_blocks": 32}, {"enable_prefix_caching": False}])
def test_another_engine_serves_the_same_prompts_from_the_start(changes):
    browser = make()
    browser.ask("add", prompt="abcdefgh", max_tokens=3, n=1)
    browser.ask("step", ticket=1, steps=3)
    before = browser.view.engine
    assert browser.rebuild(**changes) == OK
    engine = browser.view.engine
    assert engine is not before
    assert engine.model is before.model
    assert before.listeners == before.manager.listeners == [], "the old one can go"
    for name, value in changes.items():
        assert browser.view.settings[name] == value == getattr(engine.config, name)
    names = {"block_size": "block_size", "num_gpu_blocks": "num_blocks", "enable_prefix_caching": "caching"}
    assert browser.view.meta | {names[name]: value for name, value in changes.items()} == browser.view.meta
    assert browser.view.frame["step"] == 0
    assert [row["status"] for row in browser.sequences.values()] == ["waiting"] * 4
    done = finished_tokens(engine)
    browser.run()
    expected = [own(prompt) for prompt in PROMPTS] + [own(letters_model().encode("abcdefgh"), 3)]
    assert done == {i + 1: [tokens] for i, tokens in enumerate(expected)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_gpu_blocks": 3, "baseline": False}, "whole pool has 3"),
        ({"num_gpu_blocks": 8, "baseline": True}, "a row of max_model_len = 48 slots"),
    ],
)
@pytest.mark.parametrize("baseline", [False, True])
def test_what_can_t_be_built_leaves_everything_as_it_was(changes, words, baseline):
    browser = make(num_gpu_blocks=36)
    browser.rebuild(baseline=baseline)
    browser.ask("step", ticket=1, steps=2)
    view = browser.view
    before = view.engine, view.settings, view.meta, view.frame["sequences"]
    [answer] = browser.rebuild(**changes)
    assert answer["kind"] == "error"
    assert words in answer["text"]
    assert (view.engine, view.settings, view.meta, view.frame["sequences"]) == before
    assert browser.ask("abort", request=2) == OK
    assert browser.ask("fork", sequence=1) == OK
    if baseline:
        browser.ask("step", ticket=2, steps=1)
        running_there = {row["request"] for row in view.frame["baseline"]["rows"]}
        assert running_there == {1, 3, 4}, "both engines still know each other's requests"
    done = finished_tokens(view.engine)
    browser.run()
    assert done[1] == [own(PROMPTS[0])]
    assert browser.rebuild(block_size=8) == OK
    assert len(browser.sequences) == 3


# The contiguous engine beside it


def with_baseline(**options: Any) -> Browser:
    browser = make(num_gpu_blocks=36, **options)
    assert browser.rebuild(baseline=True) == OK
    return browser


def test_contiguous_rows_stand_beside_the_pool_with_as_much_memory():
    browser = with_baseline()
    baseline = browser.view.frame["baseline"]
    assert len(baseline["rows"]) == 36 * 4 // 48 == 3
    assert baseline["row_slots"] == 48
    assert [(row["request"], row["filled"]) for row in baseline["rows"]] == [(None, 0)] * 3
    browser.ask("step", ticket=1, steps=2)
    baseline = browser.view.frame["baseline"]
    assert {(row["request"], row["sequence"], row["filled"]) for row in baseline["rows"]} == {
        (1, 1, 11), (2, 2, 14), (3, 3, 8)
    }  # fmt: skip
    assert baseline["utilization"] == 33 / (3 * 48)
    assert (baseline["running"], baseline["waiting"], baseline["output_tokens"]) == (3, 0, 6)
    browser.run()
    baseline = browser.view.frame["baseline"]
    assert (baseline["finished"], baseline["utilization"]) == (3, None)


def test_both_engines_say_the_same_tokens():
    browser = with_baseline()
    browser.ask("add", prompt="abcdefgh", max_tokens=9, n=1)
    ours, theirs = finished_tokens(browser.view.engine), finished_tokens(browser.view._contiguous)
    assert isinstance(browser.view._contiguous, ContiguousEngine)
    browser.run()
    assert ours == theirs == {
        1: [own(PROMPTS[0])],
        2: [own(PROMPTS[1])],
        3: [own(PROMPTS[2])],
        4: [own(letters_model().encode("abcdefgh"), 9)],
    }  # fmt: skip
    assert_all_back(browser.view.engine)
    assert_all_back(browser.view._contiguous)


def test_it_runs_on_until_the_slower_one_is_done():
    browser = with_baseline(max_model_len=48)
    for _ in range(3):
        browser.ask("add", prompt="abcdefgh", max_tokens=6, n=1)
    while browser.view.engine.has_unfinished_requests():
        [done] = browser.ask("step", ticket=1, steps=1)
    assert done["more"], "six requests, and three rows"
    assert browser.view.frame["phase"] == "paused"
    browser.run()
    assert browser.view.frame["baseline"]["finished"] == 6


def test_forks_and_aborts_happen_in_both():
    browser = with_baseline()
    browser.ask("abort", request=3)
    browser.ask("step", ticket=1, steps=2)
    assert browser.ask("fork", sequence=1) == OK
    browser.ask("step", ticket=2, steps=1)
    assert sorted(row["request"] or 0 for row in browser.view.frame["baseline"]["rows"]) == [1, 2, 4]
    assert browser.ask("abort", request=1) == OK
    assert sorted(row["request"] or 0 for row in browser.view.frame["baseline"]["rows"]) == [0, 2, 4]
    browser.run()
    assert browser.view.frame["baseline"]["finished"] == 4
    for engine in (browser.view.engine, browser.view._contiguous):
        assert_all_back(engine)


def test_a_fork_of_which_the_other_engine_knows_nothing_happens_in_ours_alone():
    """Its request came from elsewhere, or it is over there already: neither is an error."""
    browser = with_baseline()
    stranger = browser.view.engine.add_request(random_prompt(9, 2), SamplingParams(max_tokens=9))
    browser.ask("step", ticket=1, steps=2)
    [sequence] = [row["id"] for row in browser.sequences.values() if row["request"] == stranger]
    assert browser.ask("fork", sequence=sequence) == OK
    browser.view._contiguous.abort(2)
    assert browser.ask("fork", sequence=2) == OK
    assert len(browser.view.engine.requests()) == 6
    assert len(browser.view._contiguous.requests()) == 2
    browser.run()
    assert_all_back(browser.view.engine)


def test_both_engines_run_under_the_same_limits():
    browser = with_baseline(max_num_seqs=2, max_num_batched_tokens=16, seed=3)
    ours, theirs = browser.view.engine.config, browser.view._contiguous.config
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "seed", "enable_chunked_prefill"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_without_the_baseline_there_is_none():
    browser = with_baseline()
    assert browser.rebuild(baseline=False) == OK
    assert browser.view.frame["baseline"] is None
    assert browser.view.settings["baseline"] is False


# From Python


def test_the_same_can_be_done_from_python():
    view = Playground(small_engine(), max_tokens=5)
    first = view.add(PROMPTS[0])
    second = view.add("abcdefgh", max_tokens=7, n=2)
    assert view.step() == 1
    assert view.frame["step"] == 1, "what was done is shown"
    third = view.fork(1)
    assert [row["request"] for row in view.frame["sequences"]] == [first, second, second, third]
    view.abort(second)
    done = finished_tokens(view.engine)
    assert view.step(100) == 4
    assert (view.frame["step"], view.frame["phase"]) == (5, "done")
    assert done[first] == [own(PROMPTS[0], 5)]
    view.rebuild(block_size=16)
    assert view.engine.block_size == 16
    assert view.settings["num_gpu_blocks"] == 24, "what isn't named stays"
    assert view.step(100) == 7, "both prompts again, the aborted one, too; no fork"
    view.clear()
    assert view.step(100) == 0
    with pytest.raises(ValueError, match="no unfinished sequence 5"):
        view.fork(5)
    with pytest.raises(RequestTooLong):
        view.add("ab" * 60)
    with pytest.raises(RequestTooLong):
        view.add(PROMPTS[0], max_tokens=500, n=65)


def test_a_step_from_python_that_breaks_off_is_raised_and_shown(monkeypatch):
    view = Playground(small_engine(), PROMPTS, max_tokens=5)
    view.step(2)

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(view.engine.runner, "execute", fail)
        with pytest.raises(KeyboardInterrupt):
            view.step(3)
    assert {row["status"] for row in view.frame["sequences"]} == {"preempted"}
    assert view.step(100) == 3


def test_after_close_nothing_follows_the_engine():
    browser = with_baseline()
    engine = browser.view.engine
    browser.view.close()
    assert engine.listeners == engine.manager.listeners == []


# Several threads at once


def test_messages_from_two_threads_at_once_are_served_one_after_the_other():
    browser = with_baseline()
    view, answers, failures = browser.view, [], []
    view.send = lambda content, buffers=None: answers.append(content)
    tickets = [[], []]

    def play(which: int) -> None:
        try:
            for i in range(12):
                ticket = f"{which}.{i}"
                tickets[which].append(ticket)
                view._handle_custom_msg({"do": "step", "ticket": ticket, "steps": 1 + which}, [])
                view._handle_custom_msg({"do": "add", "prompt": "abcdef" * (1 + i % 3), "max_tokens": 4, "n": 1}, [])
                if i % 4 == 3:
                    view._handle_custom_msg({"do": "abort", "request": i}, [])
                if i == 6:
                    settings = {"block_size": 8, "num_gpu_blocks": 32, "enable_prefix_caching": True}
                    view._handle_custom_msg({"do": "rebuild", "baseline": True} | settings, [])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=play, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert [answer["text"] for answer in answers if answer["kind"] == "error" and answer["text"]] == []
    done = [answer["ticket"] for answer in answers if answer["kind"] == "done"]
    assert sorted(done) == sorted(tickets[0] + tickets[1])
    view.engine.manager.check_invariants()
    view.step(500)
    for engine in (view.engine, view._contiguous):
        assert_all_back(engine)
    assert view.engine.stats().finished >= 12


def test_the_browser_waits_while_a_cell_steps_in_another_thread():
    browser = make(PROMPTS[:1])
    engine, inside, may_go_on = browser.view.engine, threading.Event(), threading.Event()
    execute = engine.runner.execute

    def slow(*args):
        inside.set()
        assert may_go_on.wait(60)
        return execute(*args)

    engine.runner.execute = slow
    cell = threading.Thread(target=browser.view.step)
    cell.start()
    assert inside.wait(60)
    message = threading.Thread(target=browser.ask, args=("abort",), kwargs={"request": 1})
    message.start()
    message.join(0.2)
    assert message.is_alive(), "the request was aborted in the middle of a step"
    may_go_on.set()
    for thread in (cell, message):
        thread.join(60)
    assert browser.view.frame["step"] == 1
    assert browser.sequences[1]["status"] == "aborted"
    assert_all_back(engine)
