"""`replay`: a recorded run in a notebook, with a slider.

Knows recordings and the view. Needs no engine, no model, and after the first moment no kernel either.
"""

from pathlib import Path
from typing import Any

import traitlets

from pagedkv_lab.show import fallback
from pagedkv_lab.show.recording import Recording
from pagedkv_lab.show.view import View, replace_views_of_this_cell


class Replay(View):
    """A recording and its slider; the browser has all of it. start: the frame that is shown first."""

    recording = traitlets.Bytes().tag(sync=True)
    start = traitlets.Int().tag(sync=True)

    def __init__(self, recording: Recording, start: int = 0):
        self._recording = recording
        super().__init__(kind="replay", meta=recording.meta, recording=recording.to_bytes(), start=start)
        replace_views_of_this_cell(self)

    def __repr__(self) -> str:
        return fallback.sentence_of_recording(self._recording)

    def _picture(self) -> str:
        return fallback.svg_of_recording(self._recording)


def replay(recording: Recording | str | Path, step: int = 0) -> Any:
    """Show a recording, or the file it was saved to, step by step. Raises PagedKVError for a file that isn't one.

    step: where it opens, at the first frame of this step or after it; at the last frame where there is none.
    """
    recording = recording if isinstance(recording, Recording) else Recording.load(recording)
    before = sum(frame["step"] < step for frame in recording.frames)
    return Replay(recording, max(0, min(before, len(recording) - 1)))
