"""The files that the README shows are there, small enough, and show what they are said to show.

`python scripts/make_media.py` makes them, and `python scripts/chapter_picture.py` those of chapter 00.
"""

import base64
import io
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from pagedkv_lab.course.outline import COURSE
from pagedkv_lab.show import Recording, bundle, course_map

ROOT = Path(__file__).parents[2]
MEDIA = ROOT / "docs" / "media"


@pytest.fixture(scope="module")
def page() -> str:
    return (MEDIA / "first_run.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recording(page, tmp_path_factory) -> Recording:
    """The run that is in the page."""
    encoded = re.search(r'<script type="application/json" id="pkv-recording">(.+?)</script>', page, re.DOTALL)
    assert encoded, "no recording in first_run.html"
    path = tmp_path_factory.mktemp("media") / "first_run.pagedkv"
    path.write_bytes(base64.b64decode(encoded[1], validate=True))
    return Recording.load(path)


@pytest.mark.parametrize(
    ("name", "most_bytes"),
    [
        ("course_map.png", 300_000),
        ("start-here-light.png", 150_000),
        ("start-here-dark.png", 150_000),
        ("first_run.html", 500_000),
        ("playground-light.png", 350_000),
        ("playground-dark.png", 350_000),
        ("pool.gif", 1_500_000),
        ("pool-dark.gif", 1_500_000),
    ],
)
def test_file_is_there_and_small(name, most_bytes):
    assert 1000 < (MEDIA / name).stat().st_size < most_bytes


def test_nothing_else_is_kept():
    """A file that the script has ceased to make would be shown for ever."""
    made = {"first_run.html", "playground-light.png", "playground-dark.png", "pool.gif", "pool-dark.gif"}
    made |= {"course_map.png", "start-here-light.png", "start-here-dark.png"}
    assert {path.name for path in MEDIA.iterdir()} == made


def test_files_named_in_readme_are_there():
    named = re.findall(r"docs/media/[\w./-]*\w", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("name", ["pool.gif", "pool-dark.gif"])
def test_film_moves_and_repeats(name):
    with Image.open(MEDIA / name) as film:
        assert film.n_frames > 20
        assert film.info["loop"] == 0, "0 is for ever"
        seconds = 0.0
        for frame in range(film.n_frames):
            film.seek(frame)
            seconds += film.info["duration"] / 1000
    assert 6 <= seconds <= 15


def test_pictures_suit_the_two_themes():
    """The picture for a light page is mostly light, the other one mostly dark."""
    for light, dark in (("playground-light.png", "playground-dark.png"), ("pool.gif", "pool-dark.gif")):
        assert brightness(light) > 180
        assert brightness(dark) < 90


def brightness(name: str) -> float:
    """The mean of all pixels, 0 to 255."""
    with Image.open(MEDIA / name) as picture:
        pixels = picture.convert("L").resize((1, 1), Image.Resampling.BOX)
    return pixels.getpixel((0, 0))


def test_the_map_is_of_todays_course():
    """Made again with `python scripts/make_media.py --map` when a chapter is added, or the drawing has changed."""
    today = matplotlib.image.imread(io.BytesIO(course_map(COURSE).png()))
    kept = matplotlib.image.imread(MEDIA / "course_map.png")
    assert kept.shape == today.shape
    assert np.abs(kept - today).mean() < 0.001, "another release of the font's renderer may move an edge, no more"


def test_page_needs_no_other_address(page):
    """But for the name of SVG, which looks like one."""
    assert set(re.findall(r"https?://[\w./-]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", page) == []


def test_page_is_what_the_package_makes_today(page):
    """Made again with `python scripts/make_media.py` when the live view's browser half has changed."""
    assert bundle.style() in page
    assert bundle.page_script() in page


def test_page_is_of_a_real_model(recording):
    assert "SmolLM2" in recording.meta["model"]
    assert recording.meta["parts"] == [], "the package's own parts"


@pytest.mark.parametrize(
    "words",
    [
        r"taken by request 1\b",
        r"\bhit by request",
        r"\bforks off",
        r"\bcopied to block",
        r"\bevicted for",
        r"\bfinished\b",
    ],
)
def test_everything_that_happens_to_blocks_happens_in_the_run(recording, words):
    assert any(re.search(words, text) for _, text, _ in recording.log)


def test_evictions_come_late_in_the_run(recording):
    """First the pool is seen filling."""
    first = next(step for step, text, _ in recording.log if "evicted" in text)
    assert first > recording.frames[-1]["step"] / 2


def test_cached_blocks_are_hit_again(recording):
    """A block that nobody held comes back into use without having been computed again."""
    revived = 0
    for k in range(1, len(recording)):
        before, after = recording.pool_at(k - 1), recording.pool_at(k)
        revived += int(((before[0] == 1) & (after[0] == 2) & (after[5] == 2)).sum())
    assert revived > 0


def test_run_ends_with_every_block_back(recording):
    last = recording.frames[-1]
    assert last["phase"] == "done"
    assert last["numbers"]["used"] == 0
    assert last["numbers"]["free"] + last["numbers"]["cached"] == recording.meta["num_blocks"]
    assert last["numbers"]["cached"] > 0.5 * recording.meta["num_blocks"], "the hatched blocks at the film's end"


def test_run_shares_forks_and_preempts_nobody(recording):
    numbers = [frame["numbers"] for frame in recording.frames]
    assert max(frame["shared"] for frame in numbers) >= 6, "the system prompt's blocks"
    assert numbers[-1]["copies"] >= 3
    assert numbers[-1]["preemptions"] == 0
    last = {row["id"]: row for k in range(len(recording)) for row in recording.sequences_at(k)}
    parents = {row["parent"] for row in last.values()} - {None}
    assert len(parents) >= 2, "outputs of one request, and a fork on the way"
    assert all(row["text"].strip() for row in last.values())
