"""Makes the files in docs/media, which the README shows, from one real run of the bundled model.

    python scripts/make_media.py [--out docs/media] [--keep-run FILE] [--run FILE] [--map]

first_run.html is the replay, whole in one file; playground-light.png and playground-dark.png are it at a good moment;
pool.gif and pool-dark.gif are it played through. It takes about a minute on two cores. Two runs give the same recording
but for the times in it: first_run.html differs in its bytes, and the stills in the tile with the tokens a second.
course_map.png is the chapters and what they build; `--map` makes it alone, with neither model nor browser.

Knows how a page is photographed and a GIF is packed. Does not know what is asked of the model (`first_run` does), nor
how the page is drawn.
"""

import argparse
import io
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import first_run
import numpy as np
from PIL import Image

from pagedkv_lab.course.outline import COURSE
from pagedkv_lab.show import Recording, course_map

MODEL = "SmolLM2-135M-Instruct"
THEMES = ("light", "dark")
NEEDED = (
    "The pictures need playwright and Chromium (pip install playwright, and apt-get install chromium or playwright "
    "install chromium): "
)
#: CSS pixels, at which the pool fills its side of the page. A still has two pixels for each of them.
STILL_WIDTH, FILM_WIDTH = 1090, 960
#: The pool is full, blocks are shared, partly filled, cached, and the first ones are evicted.
STILL_STEP = 98
#: As the page plays by itself; what has happened to a block is marked for 900 ms.
PAGE_STEP_MS = 100
#: In the film every other step is shown, and faster: nobody reads the texts to their end. Hundredths of a second are
#: GIF's unit.
FILM_STEPS, FILM_FRAME_MS, LAST_FRAME_MS = 2, 100, 2000
STILL_COLOURS, FILM_COLOURS = 256, 64
#: Colours that are closer (0 to 255, by eye) become one: the greys of text would leave no room for others, and Pillow
#: takes close colours of a palette for each other.
COLOUR_GAP = 8
#: A film has nothing to click on, and is about the pool. The still shows the rest.
FILM_STYLE = """
.pkv-replay-bar > :is(button, .pkv-speed), .pkv-state, .pkv-colour-by,
.pkv-tiles, .pkv-history-host, .pkv-log { display: none !important }
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the files in docs/media from one real run.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "media", help="folder")
    parser.add_argument("--keep-run", type=Path, metavar="FILE", help="also save the recording, e.g. run.pagedkv")
    parser.add_argument("--run", type=Path, metavar="FILE", help="show this recording instead of making one")
    parser.add_argument("--map", action="store_true", help="make course_map.png alone")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "course_map.png").write_bytes(course_map(COURSE).png())
    say(out / "course_map.png")
    if options.map:
        return
    with browser() as chromium:  # first: where there is none, nobody should wait for the run
        recording = Recording.load(options.run) if options.run else make_recording()
        if options.keep_run:
            recording.save(options.keep_run)
        page = recording.to_html(out / "first_run.html", first_run.TITLE).resolve()
        say(page)
        for theme in THEMES:
            say(take_still(chromium, page, theme, out / f"playground-{theme}.png"))
        for theme, name in zip(THEMES, ("pool.gif", "pool-dark.gif"), strict=True):
            say(take_film(chromium, page, theme, len(recording), out / name))


def make_recording() -> Recording:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # both are read when transformers is imported
    from pagedkv_lab.engine import load_model

    engine = first_run.make_engine(load_model(MODEL, device="cpu"))
    started = time.perf_counter()
    recording = first_run.record_run(engine)
    numbers = recording.frames[-1]["numbers"]
    print(
        f"{engine.stats().steps} steps in {time.perf_counter() - started:.0f} s: {numbers['output_tokens']} tokens, "
        f"{numbers['copies']} blocks copied, {numbers['evictions']} evicted",
        flush=True,
    )
    return recording


def say(path: Path) -> None:
    print(f"{path.name:24}{path.stat().st_size / 1000:7,.0f} kB", flush=True)


# The page, photographed


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium. Ends the script, in one sentence, where there is none."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise SystemExit(NEEDED + "playwright is not installed.") from None
    with sync_playwright() as playwright:
        named = os.environ.get("PAGEDKV_CHROMIUM") or "chromium"
        try:
            chromium = playwright.chromium.launch(
                executable_path=shutil.which(named), args=["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            )
        except Error as error:
            raise SystemExit(NEEDED + str(error).splitlines()[0]) from None
        yield chromium
        chromium.close()


@contextmanager
def opened(chromium: Any, page: Path, theme: str, width: int, scale: int) -> Iterator[Any]:
    """The page in a browser whose clock stands still: marks fade only as time is let pass, so pictures are the same."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, device_scale_factor=scale, offline=True
    )
    tab = context.new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.clock.install(time=0)
    tab.goto(page.as_uri())
    tab.locator(".pkv[data-step], .pkv [role=alert]:not([hidden])").first.wait_for()
    tab.clock.pause_at(60_000)
    yield tab
    context.close()
    if errors:
        raise SystemExit(f"{page.name} has an error: {errors[0]}")


def go_to(tab: Any, frame: int, milliseconds: int) -> None:
    """Move the slider to a frame, and let the page's time pass."""
    tab.locator("input.pkv-scrub").fill(str(frame))
    tab.evaluate("document.activeElement.blur()")  # no focus ring
    tab.clock.run_for(milliseconds)


def picture(tab: Any) -> Image.Image:
    return Image.open(io.BytesIO(tab.locator(".pkv").screenshot(animations="disabled"))).convert("RGB")


def take_still(chromium: Any, page: Path, theme: str, path: Path) -> Path:
    with opened(chromium, page, theme, STILL_WIDTH, scale=2) as tab:
        for frame in range(STILL_STEP - 12, STILL_STEP + 1):  # marks of the steps before have faded as far as they do
            go_to(tab, frame, PAGE_STEP_MS)
        still = picture(tab)
    palette = common_palette([still], STILL_COLOURS)
    still.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


# The film


def take_film(chromium: Any, page: Path, theme: str, length: int, path: Path) -> Path:
    pictures = []
    with opened(chromium, page, theme, FILM_WIDTH, scale=1) as tab:
        tab.add_style_tag(content=FILM_STYLE)
        for frame in [*range(1, length - 1, FILM_STEPS), length - 1]:
            go_to(tab, frame, FILM_STEPS * PAGE_STEP_MS)
            pictures.append(picture(tab))
            if len(pictures) % 20 == 0:
                print(f"  {path.name}: step {frame} of {length - 1}", flush=True)
    palette = common_palette(pictures[::8], FILM_COLOURS)
    frames = [shot.quantize(palette=palette, dither=Image.Dither.NONE) for shot in pictures]
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=[*[FILM_FRAME_MS] * (len(frames) - 1), LAST_FRAME_MS],
        loop=0,
        optimize=True,  # what stays the same from frame to frame is transparent
        disposal=1,
    )
    return path


def common_palette(pictures: list[Image.Image], size: int) -> Image.Image:
    """At most `size` colours, the most frequent ones that aren't close. One palette for all, or flat areas flicker."""
    pixels = np.concatenate([np.asarray(shot).reshape(-1, 3) for shot in pictures])
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    colours = colours[np.argsort(-counts, kind="stable")]
    seen = colours * np.array([0.6, 1, 0.5])  # the eye tells greens apart best
    distance = np.full(len(colours), np.inf)
    chosen = []
    while len(chosen) < size and (distance > COLOUR_GAP).any():
        first = int(np.argmax(distance > COLOUR_GAP))
        chosen.append(first)
        distance = np.minimum(distance, np.linalg.norm(seen - seen[first], axis=1))
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours[chosen].ravel().tolist())
    return palette


if __name__ == "__main__":
    main()
