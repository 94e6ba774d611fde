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
    """A recording and its slider; the browser has all of it."""

    recording = traitlets.Bytes().tag(sync=True)

    def __init__(self, recording: Recording):
        self._recording = recording
        super().__init__(kind="replay", meta=recording.meta, recording=recording.to_bytes())
        replace_views_of_this_cell(self)

    def __repr__(self) -> str:
        return fallback.sentence_of_recording(self._recording)

    def _picture(self) -> str:
        return fallback.svg_of_recording(self._recording)


def replay(recording: Recording | str | Path) -> Any:
    """Show a recording, or the file it was saved to, step by step. Raises PagedKVError for a file that isn't one."""
    return Replay(recording if isinstance(recording, Recording) else Recording.load(recording))
