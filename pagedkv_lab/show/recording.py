"""A run in a small file: the frames of an engine, each as what has changed since the one before.

Knows frames and JSON. Does not know a browser; a recording is played without the engine, the model or a kernel.

The file is gzip of JSON, and `web/player.js` reads it too. `blocks` holds eight numbers for each block that changed:
its own, then the rows of `Frame.pool`. A sequence's `table` is how many of its old blocks stay, then the new ones.
Other entries of a sequence are there if they changed.
"""

import gzip
import json
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pagedkv_lab.engine import Engine
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.errors import PagedKVError
from pagedkv_lab.show import bundle, fallback
from pagedkv_lab.show.frames import ROWS, Frame, FrameSource
from pagedkv_lab.show.view import describe

FORMAT, VERSION = "pagedkv-recording", 1


class Recording:
    """The frames of one run, in order. Make one with `record`, or `Recording.load` a file."""

    def __init__(self, meta: dict[str, Any]):
        self.meta = meta
        self.log: list[list[Any]] = []
        self.frames: list[dict[str, Any]] = []
        self._last: Frame | None = None

    def __len__(self) -> int:
        return len(self.frames)

    def __repr__(self) -> str:
        num_blocks, block_size = self.meta["num_blocks"], self.meta["block_size"]
        return f"<Recording of {len(self)} frames, {num_blocks} blocks of {block_size} tokens>"

    def add(self, frame: Frame) -> None:
        """One more frame, of the same engine."""
        last = self._last
        before = last.pool if last else np.zeros_like(frame.pool)
        changed = np.flatnonzero((frame.pool != before).any(axis=0))
        entry = {
            "step": frame.step,
            "numbers": frame.numbers,
            "phase": frame.phase,
            "contiguous": int(frame.history[3, -1]) if frame.history.size else 0,
            "blocks": np.vstack([changed, frame.pool[:, changed]]).T.ravel().tolist(),
            "sequences": _changed_sequences(frame, last),
            "order": [row["id"] for row in frame.sequences],
            "details": {str(block): list(what) for block, what in frame.details.items()},
        }
        if frame.baseline is not None:
            entry["baseline"] = frame.baseline
        self.log += [[step, text, list(blocks)] for step, text, blocks in frame.log[len(frame.log) - frame.new_lines :]]
        self.frames.append(entry)
        self._last = frame

    def to_bytes(self) -> bytes:
        """The file's contents, the same for the same run."""
        whole = {"format": FORMAT, "version": VERSION, "meta": self.meta, "log": self.log, "frames": self.frames}
        return gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), mtime=0)

    def save(self, path: str | Path) -> Path:
        """Write it to a file; a name such as "run.pagedkv" says what it is."""
        path = Path(path)
        path.write_bytes(self.to_bytes())
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Recording":
        """Read what `save` wrote. Raises PagedKVError for a file that is something else."""
        try:
            whole = json.loads(gzip.decompress(Path(path).read_bytes()))
            if whole["format"] != FORMAT:
                raise ValueError(whole["format"])
            version = whole["version"]
            if version == VERSION:
                recording = cls(whole["meta"])
                recording.log, recording.frames = whole["log"], whole["frames"]
                return recording
        except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, KeyError, TypeError) as error:
            raise PagedKVError(f"{path} is not a recording of a run.") from error
        raise PagedKVError(
            f"{path} was recorded in version {version} of the format, and this package plays version {VERSION}: record "
            "it again."
        )

    def pool_at(self, index: int) -> np.ndarray:
        """The pool in frame `index`: int32, shape (7, num_blocks), rows as in `Frame.pool`."""
        pool = np.zeros((len(ROWS), self.meta["num_blocks"]), np.int32)
        for frame in self.frames[: range(len(self))[index] + 1]:
            blocks, *rows = np.array(frame["blocks"], np.int32).reshape(-1, 1 + len(ROWS)).T
            pool[:, blocks] = rows
        return pool

    def sequences_at(self, index: int) -> list[dict[str, Any]]:
        """The sequences in frame `index`, each with its `table`."""
        known: dict[str, dict[str, Any]] = {}
        order: list[int] = []
        for frame in self.frames[: range(len(self))[index] + 1]:
            order = frame["order"]
            for seq_id, changes in frame["sequences"].items():
                row = known.setdefault(seq_id, {"table": []})
                keep, *new = changes.get("table", [len(row["table"])])
                known[seq_id] = row | changes | {"table": row["table"][:keep] + new}
        return [known[str(seq_id)] for seq_id in order]

    def busiest(self) -> int:
        """Index of the frame with the most blocks in use, the first of them."""
        return max(range(len(self)), key=lambda i: self.frames[i]["numbers"]["used"], default=0)

    def to_html(self, path: str | Path, title: str = "A run of PagedKV Lab") -> Path:
        """Write one HTML file that plays it: no kernel, no network, nothing beside it."""
        path = Path(path)
        parts = {
            "title": escape(title),
            "style": bundle.style(),
            "script": bundle.page_script().replace("</script", "<\\/script"),
            "recording": b64encode(self.to_bytes()).decode(),
            "fallback": fallback.svg_of_recording(self),
        }
        page = bundle.read("page.html")
        # Piece by piece: what is put in may itself hold braces.
        pieces = [page]
        for name, text in parts.items():
            pieces = [part for piece in pieces for part in _put(piece, f"{{{{{name}}}}}", text)]
        path.write_text("".join(pieces), encoding="utf-8")
        return path


class _Done(str):
    """Text that is in its place already."""


def _put(piece: str, placeholder: str, text: str) -> list[str]:
    if isinstance(piece, _Done) or placeholder not in piece:
        return [piece]
    before, after = piece.split(placeholder, 1)
    return [before, _Done(text), *_put(after, placeholder, text)]


@contextmanager
def record(engine: Engine) -> Iterator[Recording]:
    """Record every step of the engine inside the `with`, whoever runs it.

        with record(engine) as run:
            engine.generate(prompts)
        run.save("run.pagedkv")
    """
    source = FrameSource(engine)
    recording = Recording(describe(engine))
    recording.add(source.frame("idle"))

    def on_step(report: StepReport) -> None:
        recording.add(source.frame("running" if engine.has_unfinished_requests() else "done"))

    engine.listeners.append(on_step)
    try:
        yield recording
    finally:
        if on_step in engine.listeners:  # the engine drops one that fails
            engine.listeners.remove(on_step)
        source.close()


def _changed_sequences(frame: Frame, last: Frame | None) -> dict[str, dict[str, Any]]:
    before = {row["id"]: row for row in last.sequences} if last else {}
    found = {}
    for row in frame.sequences:
        old = before.get(row["id"], {})
        changes = {name: value for name, value in row.items() if name not in old or old[name] != value}
        old_table = last.tables.get(row["id"], ()) if old else ()
        table = frame.tables.get(row["id"], ())
        keep = _common_length(old_table, table)
        if not old or keep < max(len(old_table), len(table)):
            changes["table"] = [keep, *map(int, table[keep:])]
        if changes:
            found[str(row["id"])] = changes
    return found


def _common_length(one: Any, other: Any) -> int:
    """How many blocks two tables have in common from the start."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:length]) != np.asarray(other[:length]))
    return int(differ[0]) if len(differ) else length
