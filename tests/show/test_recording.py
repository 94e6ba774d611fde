"""A recording gives back every frame as it was, from a file that is small, and from a page that needs nothing else."""

import gzip
import json
import re
from base64 import b64decode
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from runs import ENGINES, MOVES, play, small_engine, toy_engine
from tiny_models import random_prompt

from pagedkv_lab.engine import SamplingParams
from pagedkv_lab.errors import PagedKVError
from pagedkv_lab.show import Recording, frames, record, replay
from pagedkv_lab.show.frames import Frame, FrameSource
from pagedkv_lab.show.recording import FORMAT, VERSION
from pagedkv_lab.show.view import describe

GREEDY = SamplingParams(max_tokens=6)


def rows_with_tables(frame: Frame) -> list[dict]:
    return [row | {"table": list(map(int, frame.tables.get(row["id"], ())))} for row in frame.sequences]


def assert_plays(recording: Recording, taken: list[Frame]) -> None:
    """The recording, as it is and as it comes out of its file, is these frames."""
    assert len(recording) == len(taken)
    for i, frame in enumerate(taken):
        assert (recording.pool_at(i) == frame.pool).all()
        assert recording.sequences_at(i) == rows_with_tables(frame)
        entry = recording.frames[i]
        assert (entry["step"], entry["numbers"], entry["phase"]) == (frame.step, frame.numbers, frame.phase)
    details = {}
    for entry, frame in zip(recording.frames, taken, strict=True):
        details |= entry["details"]
        assert entry["details"] == {str(block): list(what) for block, what in frame.details.items()}
    log = [line for frame in taken for line in frame.log[len(frame.log) - frame.new_lines :]]
    assert recording.log == [[step, text, list(blocks)] for step, text, blocks in log]


@settings(max_examples=15)
@given(ENGINES, MOVES)
def test_every_frame_comes_back_as_it_was(options, moves):
    engine = small_engine(**options)
    source, recording, taken = FrameSource(engine), Recording(describe(engine)), []
    for _ in play(engine, moves):
        taken.append(source.frame())
        recording.add(taken[-1])
    assert_plays(recording, taken)
    played = json.loads(gzip.decompress(recording.to_bytes()))
    assert (played["log"], played["frames"]) == (recording.log, recording.frames)


@settings(max_examples=15)
@given(ENGINES, MOVES)
def test_sequences_that_fall_off_the_page_and_come_back_are_right_too(options, moves):
    """With room for two sequences on it: one that had blocks when it was last shown may have none now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "MAX_SEQUENCES", 2)
        patch.setattr(frames, "MAX_DONE", 1)
        engine = small_engine(**options)
        source, recording, taken = FrameSource(engine), Recording(describe(engine)), []
        for _ in play(engine, moves):
            taken.append(source.frame())
            recording.add(taken[-1])
        assert_plays(recording, taken)


def a_run(**options) -> Recording:
    """Two prompts with a common beginning and two outputs of one, recorded."""
    engine = small_engine(**options)
    with record(engine) as recording:
        engine.add_request(random_prompt(9), SamplingParams(max_tokens=5, n=2))
        engine.generate([random_prompt(12)], GREEDY, use_tqdm=False)
    return recording


def test_record_takes_a_frame_before_the_first_step_and_one_after_each():
    engine = small_engine()
    with record(engine) as recording:
        assert len(recording) == 1
        engine.generate([random_prompt(12)], GREEDY, use_tqdm=False)
    engine.generate([random_prompt(5)], GREEDY, use_tqdm=False)
    assert [frame["step"] for frame in recording.frames] == [0, 1, 2, 3, 4, 5, 6]
    assert [frame["phase"] for frame in recording.frames] == ["idle", *["running"] * 5, "done"]
    assert engine.listeners == engine.manager.listeners == []
    assert recording.meta["model"] == "letters"
    assert repr(recording) == "<Recording of 7 frames, 24 blocks of 4 tokens>"


def test_record_lets_go_of_the_engine_when_something_goes_wrong():
    engine = small_engine()
    engine.add_request(random_prompt(12), GREEDY)
    recordings = []

    def one_step_and_then_something_else():
        with record(engine) as recording:
            recordings.append(recording)
            engine.step()
            raise RuntimeError("by the way")

    with pytest.raises(RuntimeError, match="by the way"):
        one_step_and_then_something_else()
    assert engine.listeners == engine.manager.listeners == []
    assert len(recordings[0]) == 2


def test_a_recording_that_fails_half_way_keeps_what_it_has_and_the_run_goes_on(monkeypatch, caplog):
    engine = small_engine()
    with record(engine) as recording:
        engine.add_request(random_prompt(12), GREEDY)
        engine.step()
        monkeypatch.setattr(recording, "add", None)
        while engine.has_unfinished_requests():
            engine.step()
    assert len(recording) == 2
    assert engine.listeners == engine.manager.listeners == []
    assert "is not called any more" in caplog.text


def test_contiguous_slots_are_those_of_the_frame_s_own_step(monkeypatch):
    """Also when the history has thinned out."""
    monkeypatch.setattr(frames, "HISTORY_POINTS", 4)
    engine = small_engine()
    with record(engine) as recording:
        for i in range(3):
            engine.add_request(random_prompt(6, i), SamplingParams(max_tokens=4 + 3 * i))
        expected = [0]
        while engine.has_unfinished_requests():
            engine.step()
            expected.append(engine.stats().running * 48)
    assert [frame["contiguous"] for frame in recording.frames] == expected


def test_what_runs_beside_the_engine_is_recorded():
    engine = small_engine()
    source, recording = FrameSource(engine), Recording(describe(engine))
    recording.add(source.frame())
    source.baseline = lambda: {"rows": [], "row_slots": 48}
    recording.add(source.frame())
    assert "baseline" not in recording.frames[0]
    assert recording.frames[1]["baseline"] == {"rows": [], "row_slots": 48}


def test_frames_are_counted_from_the_end_too_and_there_are_no_others():
    recording = a_run()
    assert (recording.pool_at(-1) == recording.pool_at(len(recording) - 1)).all()
    assert recording.sequences_at(-1) == recording.sequences_at(len(recording) - 1)
    for ask in (recording.pool_at, recording.sequences_at):
        with pytest.raises(IndexError):
            ask(len(recording))


def test_the_busiest_frame_has_the_most_blocks_in_use():
    recording = a_run()
    used = [frame["numbers"]["used"] for frame in recording.frames]
    assert used[recording.busiest()] == max(used) == (recording.pool_at(recording.busiest())[0] == 2).sum()
    assert recording.busiest() == used.index(max(used))


# The file


def test_a_saved_recording_is_loaded_as_it_was(tmp_path):
    recording = a_run()
    path = recording.save(tmp_path / "run.pagedkv")
    assert path == tmp_path / "run.pagedkv"
    loaded = Recording.load(str(path))
    assert (loaded.meta, loaded.log, loaded.frames) == (recording.meta, recording.log, recording.frames)
    for i in range(len(recording)):
        assert (loaded.pool_at(i) == recording.pool_at(i)).all()
        assert loaded.sequences_at(i) == recording.sequences_at(i)
    assert loaded.to_bytes() == recording.to_bytes() == path.read_bytes()


def test_a_recording_without_frames_can_be_saved_and_shown(tmp_path):
    empty = Recording(describe(small_engine()))
    loaded = Recording.load(empty.save(tmp_path / "empty.pagedkv"))
    assert len(loaded) == 0
    assert repr(replay(loaded)) == "A recording without frames."
    assert "24 blocks" in loaded.to_html(tmp_path / "empty.html").read_text()


def packed(**changes) -> bytes:
    whole = {"format": FORMAT, "version": VERSION, "meta": {}, "log": [], "frames": []} | changes
    return gzip.compress(json.dumps({name: value for name, value in whole.items() if value is not None}).encode())


def damaged() -> bytes:
    contents = bytearray(a_run().to_bytes())
    contents[200:260] = bytes(60)
    return bytes(contents)


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"hello",
        b"{}",
        gzip.compress(b"not json"),
        gzip.compress(b"\xff\xfe"),
        gzip.compress(b"[1, 2]"),
        gzip.compress(b"null"),
        gzip.compress(b"{}"),
        packed(format="another"),
        packed(version=None),
        packed(meta=None),
        packed(frames=None),
        a_run().to_bytes()[:-40],
        a_run().to_bytes()[:30],
        damaged(),
    ],
    ids=range(15),
)
def test_what_is_no_recording_is_refused_by_its_name(tmp_path, contents):
    path = tmp_path / "holiday.pagedkv"
    path.write_bytes(contents)
    for load in (Recording.load, replay):
        with pytest.raises(PagedKVError, match=re.escape(f"{path} is not a recording")):
            load(path)


def test_a_recording_of_a_newer_version_is_refused_with_both_numbers(tmp_path):
    path = tmp_path / "new.pagedkv"
    path.write_bytes(packed(version=VERSION + 1))
    with pytest.raises(PagedKVError, match=rf"version {VERSION + 1} .* plays version {VERSION}: record it again"):
        Recording.load(path)


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        Recording.load(tmp_path / "nowhere.pagedkv")


def test_a_run_of_ninety_frames_in_512_blocks_is_small():
    engine = toy_engine(num_gpu_blocks=512, block_size=16, max_model_len=256)
    questions = ["What is paging?", "What is a lighthouse?", "Name three things.", "Explain a library card."] * 2
    with record(engine) as recording:
        engine.generate(questions, SamplingParams(max_tokens=88, ignore_eos=True), use_tqdm=False)
    assert len(recording) == 89
    assert len(recording.to_bytes()) < 40_000


# Played in a notebook


def test_a_replay_holds_the_whole_file_and_is_a_picture_elsewhere(tmp_path):
    recording = a_run()
    view = replay(recording.save(tmp_path / "run.pagedkv"))
    assert view.kind == "replay"
    assert view.recording == recording.to_bytes()
    assert view.meta == recording.meta
    data, _ = view._repr_mimebundle_()
    step = recording.frames[recording.busiest()]["step"]
    assert data["text/plain"].startswith(f"A recording of {len(recording)} frames. Step {step}: ")
    assert data["image/svg+xml"].startswith("<svg")
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize(("step", "opens"), [(0, 0), (3, 3), (10_000, -1)])
def test_a_replay_opens_at_a_step(step, opens):
    recording = a_run()
    assert replay(recording, step).start == range(len(recording))[opens]
    assert recording.frames[replay(recording, step).start]["step"] == min(step, recording.frames[-1]["step"])


def test_a_replay_without_frames_opens_all_the_same():
    assert replay(Recording(describe(small_engine())), step=5).start == 0


# As a page


class Page(HTMLParser):
    """What a browser makes of a page: its elements, the addresses in them, and the text of its scripts."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.addresses, self.scripts, self._inside = [], [], {}, None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        self.addresses += [attrs[name] for name in ("src", "href", "data", "action") if name in attrs]
        self._inside = (attrs.get("id") or attrs.get("type")) if tag == "script" else tag

    def handle_data(self, data):
        if self._inside not in ("style", None):
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    def handle_endtag(self, tag):
        self._inside = None


NASTY = "</script><b>{{script}} {{recording}} & <img src=x onerror=alert(1)> ]]> --> \u2028 \x00"


def page_of_a_run(tmp_path, prompt: str = "What is paging?", **options) -> tuple[str, Recording]:
    engine = toy_engine(num_gpu_blocks=64, max_model_len=256)
    with record(engine) as recording:
        engine.generate([prompt], GREEDY, use_tqdm=False)
    path = recording.to_html(tmp_path / "run.html", **options)
    return path.read_text(encoding="utf-8"), recording


def test_the_page_has_the_recording_inside(tmp_path):
    html, recording = page_of_a_run(tmp_path)
    page = Page(html)
    assert b64decode(page.scripts["pkv-recording"]) == recording.to_bytes()
    assert "showPage()" in page.scripts["module"]
    assert page.tags.count("script") == 2
    assert "{{" not in re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", html), "a place was left empty"
    assert recording.to_html(tmp_path / "again.html").read_text(encoding="utf-8") == html


def test_the_page_asks_nobody_for_anything(tmp_path):
    html, _ = page_of_a_run(tmp_path)
    page = Page(html)
    assert page.addresses == []
    assert not {"link", "iframe", "img", "object", "base", "form"} & set(page.tags)
    assert "default-src 'none'" in html
    found = set(re.findall(r"(?:https?:|wss?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'`)<]*", html, re.IGNORECASE))
    assert found <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}, "names of formats are no addresses"
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|sendBeacon)\s*\(", html)
    assert not re.search(r"@import|\bimport\s*\(|url\(\s*['\"]?(?!data:|#)", html)


def test_whatever_a_prompt_or_a_title_says_stays_text(tmp_path):
    html, recording = page_of_a_run(tmp_path, NASTY, title=NASTY)
    harmless, _ = page_of_a_run(tmp_path)
    page, plain = Page(html), Page(harmless)
    for tag in ("script", "b", "img", "style", "svg", "body", "title"):
        assert page.tags.count(tag) == plain.tags.count(tag), f"one <{tag}> too many"
    assert page.scripts["module"] == plain.scripts["module"]
    assert b64decode(page.scripts["pkv-recording"]) == recording.to_bytes()
    assert recording.sequences_at(0) == []
    assert NASTY in recording.sequences_at(1)[0]["prompt"]
    assert "&lt;/script&gt;&lt;b&gt;{{script}}" in html


def test_pools_are_numbers_that_no_one_else_can_change():
    recording = a_run()
    first = recording.pool_at(3)
    first[:] = 7
    assert (recording.pool_at(3) != 7).any()
    assert recording.pool_at(3).dtype == np.int32
