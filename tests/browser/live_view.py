"""A live view on the page: what it says of itself, its buttons, its pool.

Knows the view's data attributes, roles and canvas. Does not know the kernel.
"""

import re
from dataclasses import dataclass
from typing import Any

from lab_page import Canvas, settled


@dataclass(frozen=True)
class Cell:
    """Pixels of one block of the pool, RGBA: on its left edge, and of its inside towards the top and the bottom.

    Big blocks, those of small pools, have their numbers there: look at pools of 256 blocks or more.
    """

    edge: tuple[int, int, int, int]
    upper: list[tuple[int, int, int, int]]
    lower: list[tuple[int, int, int, int]]


class LiveView:
    """The `index`-th view on a page of playwright's, or of those of a kind: "pool", "watch", "playground", "replay"."""

    def __init__(self, page: Any, index: int = 0, kind: str | None = None):
        self.page = page
        self.root = page.locator(f".pkv[data-kind={kind}]" if kind else ".pkv").nth(index)
        self.root.wait_for()
        self.canvas = Canvas(self.root.locator("canvas.pkv-pool"))

    # What it says

    @property
    def step(self) -> int:
        return int(self.root.get_attribute("data-step") or 0)

    @property
    def phase(self) -> str:
        return self.root.get_attribute("data-phase")

    def wait_for_step(self, at_least: int, seconds: float = 20) -> None:
        self.wait("(root, step) => Number(root.dataset.step) >= step", at_least, seconds)

    def wait_for_running(self, running: bool) -> None:
        self.wait("(root, running) => root.dataset.running === String(running)", running)

    def wait(self, condition: str, arg: Any = None, seconds: float = 20) -> None:
        """Wait until a JavaScript function of the view's root element and `arg` says true."""
        code = f"([root, arg]) => ({condition})(root, arg)"
        self.page.wait_for_function(code, arg=[self.root.element_handle(), arg], timeout=seconds * 1000)

    def settled_step(self) -> int:
        return settled(lambda: self.step)

    def card(self, name: str) -> Any:
        """The card of a sequence by its name, "request 1"."""
        has_name = self.page.get_by_role("button", name=re.compile(f"^{name}$"))
        return self.root.get_by_role("listitem").filter(has=has_name)

    # What one can press

    def press(self, name: str) -> None:
        self.root.get_by_role("button", name=name, exact=True).click()

    def add(self, prompt: str) -> None:
        self.root.get_by_role("textbox", name="prompt").fill(prompt)
        self.press("Add")

    # The pool

    def describe(self, block: int) -> str:
        """What the tooltip would say about a block."""
        return self.canvas.locator.evaluate("(canvas, block) => canvas.poolCanvas.describe(block)", block)

    def hover(self, block: int) -> str:
        """What the tooltip says, with the pointer on the block."""
        rect = self._rect(block)
        self.canvas.hover(rect["x"] + rect["width"] / 2, rect["y"] + rect["height"] / 2)
        tip = self.root.get_by_role("tooltip")
        tip.wait_for()
        return settled(tip.inner_text)

    def cell(self, block: int) -> Cell:
        rect = self._rect(block)
        x, y, side = rect["x"], rect["y"], rect["width"]
        edge = (x + 0.5, y + side / 2)
        # Above and below the number of those who share it, and within the marks around it.
        upper, lower = ([(x + side * (0.3 + 0.06 * i), y + side * share) for i in range(7)] for share in (0.28, 0.72))
        pixels = self.canvas.pixels([edge, *upper, *lower])
        return Cell(pixels[0], pixels[1:8], pixels[8:])

    def block_at(self, block: int) -> int | None:
        """The block that the view takes to be under the middle of this block's cell."""
        rect = self._rect(block)
        middle = [rect["x"] + rect["width"] / 2, rect["y"] + rect["height"] / 2]
        return self.canvas.locator.evaluate("(canvas, [x, y]) => canvas.poolCanvas.blockAt(x, y)", middle)

    def _rect(self, block: int) -> dict[str, float]:
        return self.canvas.locator.evaluate("(canvas, block) => canvas.poolCanvas.cellRect(block)", block)
