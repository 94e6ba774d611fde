"""Photographs chapter 00 in JupyterLab, where its first pool has just been filled, for the README.

    python scripts/chapter_picture.py [--out docs/media]

Makes start-here-light.png and start-here-dark.png, from one run of the chapter in a real browser. It takes about a
minute, and needs what `make browser` needs.

Knows where to look on the page. Does not know how Lab is started and driven: tests/browser does.
"""

import argparse
import io
import sys
import tempfile
from pathlib import Path

from make_media import STILL_COLOURS, THEMES, common_palette, say
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "browser"))
from chromium import INSTALL, NoBrowser, chromium  # noqa: E402
from lab_page import LabPage  # noqa: E402
from lab_server import LAB, jupyter_server  # noqa: E402

CHAPTER = ROOT / "notebooks" / "00_start_here.ipynb"
#: Pixels of the page, and of the picture.
WIDTH, HEIGHT = 1180, 900
#: The cell that made the first live view stands at the top, the view below it.
_LOOK_AT_THE_FIRST_POOL = """() => {
    const cell = document.querySelector('.pkv').closest('.jp-Cell');
    cell.scrollIntoView({block: 'start'});
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Photograph chapter 00 in JupyterLab.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "media", help="folder")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    try:
        for theme, picture in zip(THEMES, pictures(), strict=True):
            path = out / f"start-here-{theme}.png"
            palette = common_palette([picture], STILL_COLOURS)
            picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
            say(path)
    except NoBrowser as error:
        raise SystemExit(f"{error}: {INSTALL}.") from None


def pictures() -> list[Image.Image]:
    """The same place of the page in each of THEMES. Raises NoBrowser."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser, jupyter_server(Path(folder), LAB) as lab:
        kernel = lab.start_kernel()
        path = lab.add_notebook(CHAPTER.stem, CHAPTER, kernel)
        page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce").new_page()
        notebook = LabPage(page, lab).open(path, kernel)
        notebook.run_all(seconds=200)
        if failed := notebook.failed_cells():
            raise SystemExit(f"{CHAPTER.name} does not run: {failed[0]}")
        taken = []
        for theme in THEMES:
            notebook.set_theme(theme)
            for _ in range(2):  # Lab gives cells their height when they come into sight, and what is below moves
                page.evaluate(_LOOK_AT_THE_FIRST_POOL)
                page.wait_for_timeout(1500)
            taken.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        kernel.close()
        return taken


if __name__ == "__main__":
    main()
