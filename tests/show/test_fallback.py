"""The picture that stands for a live view where none can be: well-formed, small, and true block by block."""

import re
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from runs import small_engine
from tiny_models import random_prompt

from pagedkv_lab.blocks.snapshot import CACHED, FREE, USED
from pagedkv_lab.engine import SamplingParams
from pagedkv_lab.show import Recording, fallback, record
from pagedkv_lab.show.frames import FILLED, OWNER, REFS, STATE, FrameSource
from pagedkv_lab.show.style import GREY, sequence_colour
from pagedkv_lab.show.view import describe

SVG = "{http://www.w3.org/2000/svg}"


def frame_of(num_blocks: int, blocks: dict[int, tuple[int, int, int, int]], sequences: Any = ()) -> Any:
    """A frame in which these blocks are (state, holders, slots filled, owner), and the others free."""
    pool = np.zeros((7, num_blocks), np.int32)
    for block, values in blocks.items():
        pool[[STATE, REFS, FILLED, OWNER], block] = values
    used = pool[STATE] == USED
    numbers = {
        "free": int((pool[STATE] == FREE).sum()),
        "cached": int((pool[STATE] == CACHED).sum()),
        "used": int(used.sum()),
        "shared": int((pool[REFS] > 1).sum()),
    }
    return SimpleNamespace(pool=pool, step=7, numbers=numbers, sequences=list(sequences))


def meta_of(num_blocks: int, **changes: Any) -> dict[str, Any]:
    return {"num_blocks": num_blocks, "block_size": 16, "block_bytes": 1024, "model": "toy"} | changes


def picture(frame: Any, kind: str = "playground", **meta: Any) -> str:
    return fallback.svg(frame, meta_of(frame.pool.shape[1], **meta), kind)


def row(**changes: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "name": "request 1",
        "status": "decode",
        "prompt": "What is paging?",
        "text": "It is",
        "prompt_tokens": 5,
        "output_tokens": 2,
        "computed": 6,
    } | changes


def words(svg: str) -> list[str]:
    """The lines of text in the picture."""
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def shapes(svg: str) -> list[dict[str, str]]:
    """The attributes of each path of the grid: without those of the legend, which are in groups."""
    root = ElementTree.fromstring(svg)
    return [element.attrib for element in root if element.tag == f"{SVG}path"]


def squares(path: dict[str, str]) -> int:
    return path["d"].count("M")


#: One block of each kind.
FREE_BLOCK, CACHED_BLOCK = (FREE, 0, 0, 0), (CACHED, 0, 0, 2)
FULL, HALF, SHARED = (USED, 1, 16, 3), (USED, 1, 8, 4), (USED, 3, 16, 5)


def test_every_block_is_in_it_once_in_the_look_of_its_state():
    blocks = {0: FULL, 1: HALF, 2: SHARED, 3: CACHED_BLOCK, 9: CACHED_BLOCK}
    found = shapes(picture(frame_of(16, blocks)))
    outlines = [path for path in found if path.get("fill") == "none"]
    filled = {(path["fill"], float(path["fill-opacity"])): path for path in found if path.get("fill-opacity")}
    hatches = [path for path in found if "fill" not in path]
    assert squares(outlines[0]) == 11, "the free ones"
    assert squares(filled[sequence_colour(2), 0.25]) == 2, "the cached ones, pale"
    assert [(path["stroke"], squares(path)) for path in hatches] == [(sequence_colour(2), 2)], "and hatched"
    assert squares(filled[sequence_colour(3), 1]) == 1
    assert squares(filled[sequence_colour(4), 1]) == squares(filled[sequence_colour(4), 0.3]) == 1
    assert squares(filled[sequence_colour(5), 1]) == 1
    assert [squares(path) for path in outlines[1:]] == [1], "a ring in the shared one"
    assert "3" in words(picture(frame_of(16, blocks))), "and how many share it"


def test_half_a_block_is_half_as_high():
    def height(filled: int) -> float:
        found = shapes(picture(frame_of(16, {0: (USED, 1, filled, 4)})))
        [solid] = [path for path in found if path.get("fill-opacity") == "1"]
        return float(re.match(r"M\S+ \S+h\S+?v([\d.]+)h", solid["d"])[1])

    assert height(8) == pytest.approx(height(16) / 2, abs=0.1)
    assert height(4) == pytest.approx(height(16) / 4, abs=0.1)


def test_a_cached_block_whose_sequence_nobody_knows_is_grey():
    found = shapes(picture(frame_of(16, {0: (CACHED, 0, 0, 0)})))
    assert GREY in {path.get("fill") for path in found}


def test_it_says_how_large_the_pool_is_and_counts_its_blocks():
    said = words(picture(frame_of(64, {0: FULL, 1: SHARED, 2: CACHED_BLOCK})))
    assert said[0] == "KV pool64 blocks × 16 tokens · 64 KiB · toy · step 7"
    assert said[-4:] == ["free 61", "cached, free 1", "in use 2", "shared 1"]


def test_it_can_be_read_aloud():
    frame = frame_of(64, {0: FULL, 1: SHARED, 2: CACHED_BLOCK})
    root = ElementTree.fromstring(picture(frame))
    sentence = "Step 7: 2 blocks in use (1 shared), 1 cached, 61 free."
    assert fallback.sentence(frame) == sentence
    assert (root.get("role"), root.get("aria-label"), root.find(f"{SVG}title").text) == ("img", sentence, sentence)


@pytest.mark.parametrize("num_blocks", [1, 7, 16, 33, 512, 4096, 65_536])
def test_it_fits_on_a_page_and_nothing_lies_outside(num_blocks):
    svg = picture(frame_of(num_blocks, dict.fromkeys(range(num_blocks), FULL), [row()]))
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    assert width <= 920
    assert height <= 520
    corners = re.findall(r"M([\d.-]+) ([\d.-]+)", "".join(path["d"] for path in shapes(svg)))
    assert len(corners) == num_blocks
    assert all(0 <= float(x) <= 560 and 0 <= float(y) <= height for x, y in corners)
    assert len(set(corners)) == num_blocks, "two blocks lie on each other"


def test_it_stays_small_with_many_blocks():
    def kinds(num_blocks: int) -> dict[int, tuple]:
        pattern = [FREE_BLOCK, CACHED_BLOCK, FULL, HALF, SHARED]
        return {block: pattern[block % 5] for block in range(num_blocks)}

    assert len(picture(frame_of(4096, kinds(4096)))) < 250_000
    assert len(picture(frame_of(65_536, {}))) < 10_000
    assert len(picture(frame_of(65_536, kinds(65_536)))) < 3_500_000


def test_the_same_frame_gives_the_same_bytes():
    frame = frame_of(64, {0: FULL, 1: HALF, 2: SHARED, 3: CACHED_BLOCK}, [row()])
    assert picture(frame) == picture(frame)


# What a model says


@example("</text></svg><script>alert(1)</script>")
@example("\x00\x01\x08\x0b\x0c\x1b[31m\x7f\x85\ufffe\uffff\ud800")
@example("&amp; <b> \" ' ]]>")
@given(st.text(st.characters(exclude_categories=[]), max_size=80))
def test_whatever_a_model_says_it_stays_text(text):
    frame = frame_of(16, {}, [row(prompt=text, text=text, name=text)])
    root = ElementTree.fromstring(picture(frame, model=text).encode())
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "text", "tspan", "path", "rect", "g")
    }


def test_text_that_can_be_said_is_said_as_it_is():
    said = words(picture(frame_of(16, {}, [row(prompt="1 < 2 & 'so' on", text="äöü 漢字 🙂")])))
    assert "1 < 2 & 'so' on äöü 漢字 🙂" in said


def test_of_a_long_text_the_end_is_shown_in_three_lines():
    said = words(picture(frame_of(16, {}, [row(text=" ".join(f"word{i}" for i in range(100)))])))
    lines = [line for line in said if "word" in line]
    assert len(lines) == 3
    assert lines[-1].endswith("word99")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"status": "waiting"}, "waiting · 7 tokens"),
        ({"status": "prefill", "output_tokens": 0, "computed": 3}, "prefill 3 / 5"),
        ({"status": "prefill", "output_tokens": 4, "computed": 8}, "prefill 8 / 9"),
        ({"status": "decode"}, "decoding · 7 tokens"),
        ({"status": "preempted"}, "preempted · 7 tokens"),
        ({"status": "finished"}, "finished · 7 tokens"),
        ({"status": "aborted"}, "stopped · 7 tokens"),
    ],
)
def test_a_card_says_where_its_sequence_stands(changes, status):
    assert f"request 1{status}" in words(picture(frame_of(16, {}, [row(**changes)])))


def test_of_many_sequences_the_first_ones_have_cards_and_the_others_are_counted():
    said = words(picture(frame_of(16, {}, [row(id=i, name=f"request {i}") for i in range(1, 10)])))
    assert sum(line.startswith("request ") for line in said) == 5
    assert "and 4 more" in said


def test_the_picture_of_a_pool_has_no_cards():
    svg = picture(frame_of(16, {}, [row()]), kind="pool")
    assert not any(line.startswith("request") for line in words(svg))
    assert ElementTree.fromstring(svg).get("width") == "560"


# Of a real run


def recorded() -> Recording:
    engine = small_engine()
    with record(engine) as recording:
        engine.generate([random_prompt(12), random_prompt(9)], SamplingParams(max_tokens=6, n=2), use_tqdm=False)
    return recording


def test_a_real_frame_is_drawn_as_it_is():
    engine = small_engine()
    source = FrameSource(engine)
    engine.generate([random_prompt(12, 3)], SamplingParams(max_tokens=1), use_tqdm=False)
    engine.add_request(random_prompt(10), SamplingParams(max_tokens=6, n=2))
    engine.step()
    engine.step()
    frame = source.frame()
    svg = fallback.svg(frame, describe(engine), "watch")
    filled = sum(squares(path) for path in shapes(svg) if path.get("fill-opacity") == "1")
    pale = sum(squares(path) for path in shapes(svg) if path.get("fill-opacity") == "0.25")
    assert (filled, pale) == (frame.numbers["used"], frame.numbers["cached"]) == (4, 3)
    assert any("request 2, output 1" in line for line in words(svg))


def test_of_a_recording_the_fullest_frame_is_shown():
    recording = recorded()
    fullest = recording.frames[recording.busiest()]
    sentence = fallback.sentence_of_recording(recording)
    assert sentence.startswith(f"A recording of {len(recording)} frames. Step {fullest['step']}: ")
    assert f"{fullest['numbers']['used']} blocks in use" in sentence
    svg = fallback.svg_of_recording(recording)
    assert f"step {fullest['step']}" in words(svg)[0]
    assert svg == fallback.svg_of_recording(recording)


def test_a_recording_without_frames_is_an_empty_pool():
    empty = Recording(describe(small_engine()))
    assert "free 24" in words(fallback.svg_of_recording(empty))
