"""A live view of an engine's pool: what all views have in common, and the plain one, `PoolView`.

Knows frames, anywidget and how a notebook shows things. Does not know how a pool is drawn (the files in `web/` do),
nor what is in a frame (`frames` does).
"""

import contextlib
import os
import sys
import time
from typing import Any

import anywidget
import numpy as np
import traitlets

from pagedkv_lab.engine import Engine
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.show import bundle, fallback
from pagedkv_lab.show.frames import Frame, FrameSource

FRAMES_PER_SECOND = 10
#: A frame that takes long comes less often: at most this share of the time goes into frames.
SHARE_OF_TIME = 0.04


class View(anywidget.AnyWidget):
    """What the browser gets: a frame in a few traits, all of it each time, so that a view may attach at any moment.

    Where no browser is there to run it (GitHub, an exported page, PAGEDKV_STATIC=1), it is a picture; in a terminal, a
    sentence.
    """

    _esm = bundle.widget_module()
    _css = bundle.style()
    _ipython_display_ = None  # ipywidgets 7 would show the widget alone, without its picture and sentence

    kind = traitlets.Unicode("pool").tag(sync=True)
    meta = traitlets.Dict().tag(sync=True)
    frame = traitlets.Dict().tag(sync=True)
    pool = traitlets.Bytes().tag(sync=True)
    tables = traitlets.Bytes().tag(sync=True)
    history = traitlets.Bytes().tag(sync=True)
    options = traitlets.Dict().tag(sync=True)

    def show_frame(self, frame: Frame) -> None:
        """Send a frame to the browser."""
        self._shown = frame
        offset, rows, tables = 0, [], []
        for row in frame.sequences:
            table = frame.tables.get(row["id"], ())
            rows.append(row | {"table": [offset, len(table)]})
            tables.append(np.asarray(table, np.int32))
            offset += len(table)
        if frame.details:
            self.send({"kind": "details", "blocks": {str(block): list(what) for block, what in frame.details.items()}})
        with self.hold_sync():
            self.pool = frame.pool.tobytes()
            self.tables = np.concatenate([np.empty(0, np.int32), *tables]).tobytes()
            self.history = frame.history.tobytes()
            self.frame = {
                "serial": frame.serial,
                "step": frame.step,
                "phase": frame.phase,
                "numbers": frame.numbers,
                "sequences": rows,
                "log": [[step, text, list(blocks)] for step, text, blocks in frame.log],
                "baseline": frame.baseline,
            }

    def __repr__(self) -> str:
        return fallback.sentence(self._shown)

    def _picture(self) -> str:
        return fallback.svg(self._shown, self.meta, self.kind)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        made = super()._repr_mimebundle_(**options)
        data, metadata = made if isinstance(made, tuple) else (made, {})
        data = data | {"text/plain": repr(self), "image/svg+xml": self._picture()}
        if is_static():
            data.pop("application/vnd.jupyter.widget-view+json", None)
        return data, metadata


class EngineView(View):
    """A view of an engine. A cell that is run again closes the views that it made before: each holds its engine."""

    def __init__(self, engine: Engine, **traits: Any):
        self.engine = engine
        self._source = FrameSource(engine)
        self._due = 0.0
        self._is_stale = False
        super().__init__(meta=describe(engine), **traits)
        replace_views_of_this_cell(self)
        self.push()

    def follow(self, engine: Engine) -> None:
        """Look at this engine from now on."""
        self._source.close()
        self.engine, self._source = engine, FrameSource(engine)
        self.meta = describe(engine)

    def push(self, phase: str = "idle") -> None:
        """Send a frame of the engine as it is now."""
        started = time.perf_counter()
        self.show_frame(self._source.frame(phase))
        ended = time.perf_counter()
        self._due = ended + max(1 / FRAMES_PER_SECOND, (ended - started) / SHARE_OF_TIME)
        self._is_stale = False

    def push_if_due(self, phase: str = "running") -> None:
        """Send a frame if the last one is a while ago; how long depends on what a frame takes."""
        self._is_stale = True
        if time.perf_counter() >= self._due:
            self.push(phase)

    def end(self) -> None:
        """Stop following the engine. What is shown stays."""
        if source := getattr(self, "_source", None):  # ipywidgets closes one that could not be made, too
            source.close()

    def close(self) -> None:
        """Take it off the page, and stop following."""
        self.end()
        super().close()


class PoolView(EngineView):
    """The engine's block pool, live in a notebook: one cell a block, whoever steps the engine.

    engine: the engine to follow. Its steps push frames, ten a second at most, and a last one when the cell has run. A
    view that is not shown costs nothing.

    Hover over a block to see what it holds; click to follow its sequence; arrow keys do the same.
    """

    def __init__(self, engine: Engine, **traits: Any):
        super().__init__(engine, kind="pool", **traits)
        self._source.close()  # until somebody looks
        self._is_shown = False
        self.on_msg(self._on_message)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        self.start()
        return super()._repr_mimebundle_(**options)

    def start(self) -> None:
        """Follow the engine's steps. Showing the view does this."""
        if not self._is_shown:
            self._is_shown = True
            self.follow(self.engine)
            self.engine.listeners.append(self._on_step)
            on_cell_end(self._flush)
        self.push()

    def stop(self) -> None:
        """Don't follow the engine any more. Removing the last view in the browser does this."""
        if getattr(self, "_is_shown", False):
            self._is_shown = False
            self._source.close()
            if self._on_step in self.engine.listeners:
                self.engine.listeners.remove(self._on_step)
            on_cell_end(self._flush, register=False)

    def close(self) -> None:
        self.stop()
        super().close()

    def _on_step(self, report: StepReport) -> None:
        self.push_if_due("running" if self.engine.has_unfinished_requests() else "idle")

    def _flush(self, *args: Any) -> None:
        if self._is_stale:
            self.push("paused" if self.engine.has_unfinished_requests() else "idle")

    def _on_message(self, widget: Any, message: dict[str, Any], buffers: Any) -> None:
        if message.get("do") == "block":
            answer_block(self, self._source, message)
        elif message.get("do") == "views":
            self.start() if message.get("count") else self.stop()


def answer_block(view: View, source: FrameSource, message: dict[str, Any]) -> None:
    """Tell the browser what lies in the block that it asks for."""
    block = int(message["block"])
    view.send({"kind": "details", "asked": True, "blocks": {str(block): list(source.details(block))}})


def describe(engine: Engine) -> dict[str, Any]:
    """What stays the same for all frames of an engine."""
    return {
        "model": engine.model.name,
        "num_blocks": engine.num_gpu_blocks,
        "block_size": engine.block_size,
        "block_bytes": engine.plan.block_bytes,
        "max_model_len": engine.config.max_model_len,
        "caching": engine.config.enable_prefix_caching,
        "parts": engine.parts.names_of_others,
    }


def is_static() -> bool:
    """Whether views are to be pictures: a notebook that is run to be read, not to be played with."""
    return os.environ.get("PAGEDKV_STATIC", "") not in ("", "0")


# The notebook around it

_views_of_cells: dict[str, tuple[str, list[View]]] = {}


def replace_views_of_this_cell(view: View) -> None:
    """Close what earlier runs of the running cell have left, where the front end says which cell that is."""
    shell = _shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return
    with contextlib.suppress(Exception):  # kernels differ in how they say it, and it is only about tidiness
        parent = kernel.get_parent("shell")
        cell, run = parent["metadata"]["cellId"], parent["header"]["msg_id"]
        last_run, views = _views_of_cells.get(cell, (run, []))
        if last_run != run:
            for old in views:
                old.close()
            views = []
        _views_of_cells[cell] = (run, [*views, view])


def on_cell_end(function: Any, *, register: bool = True) -> None:
    """Have IPython call `function` when a cell has run, or not any more."""
    shell = _shell()
    if shell is not None:
        with contextlib.suppress(ValueError):
            (shell.events.register if register else shell.events.unregister)("post_run_cell", function)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None
