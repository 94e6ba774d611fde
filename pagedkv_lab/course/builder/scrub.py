"""Takes out of a notebook's outputs what would differ at the next run, or on another machine, and teaches nothing.

Memory addresses, the kernel's temporary file names, this machine's folders, progress bars, and the ids of live
widgets (a widget's picture or text stays).
"""

import re
from collections.abc import Mapping

from nbformat import NotebookNode

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_BINARY = {"image/png", "image/jpeg", "application/pdf"}  # base64, in which any of the patterns may turn up

_ADDRESS = re.compile(r"(?<=\bat )0x[0-9a-f]{6,16}\b|\b0x(?:7f|55|56)[0-9a-f]{10}\b", re.IGNORECASE)
_KERNEL_FILE = re.compile(r"[^\s:'\"<>]*/ipykernel_\d+/\d+\.py")
_PROGRESS_BAR = re.compile(r"\d+%\|.*\| ?[\d.]+\w*/[\d.]+\w* \[.*\]|\d+(\.\d+)?\w* ?\[[\d:]+, .*\]")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n])")  # what a carriage return lets the rest of the line replace


class Scrubber:
    """Cleans outputs. `folders` maps absolute paths of this machine to what stands in their place."""

    def __init__(self, folders: Mapping[str, str]):
        # The longest first: the repository before the home folder that it lies in.
        self._folders = [
            (re.compile(re.escape(folder) + r"(?![\w.-])"), name)
            for folder, name in sorted(folders.items(), key=lambda item: -len(item[0]))
            if len(folder) > 1
        ]

    def clean(self, outputs: list[NotebookNode]) -> list[NotebookNode]:
        """The outputs worth keeping, in order. They are changed in place."""
        return [output for output in outputs if self._keep(output)]

    def _keep(self, output: NotebookNode) -> bool:
        if output.output_type == "stream":
            output.text = self._text(_finish_lines(output.text, drop_progress=output.name == "stderr"))
            return bool(output.text.strip())
        if output.output_type == "error":
            output.evalue = self._text(output.evalue)
            output.traceback = [self._text(line) for line in output.traceback]
            return True
        output.data.pop(WIDGET_VIEW, None)
        shown = output.data.get("text/plain", "")
        if not output.data or (len(output.data) == 1 and (shown == "Output()" or _PROGRESS_BAR.search(shown))):
            return False
        for kind, value in output.data.items():
            if kind not in _BINARY:
                output.data[kind] = self._value(value)
        return True

    def _value(self, value):
        """Text inside whatever JSON a representation is made of."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        return value

    def _text(self, text: str) -> str:
        text = _KERNEL_FILE.sub("<cell>", text)
        for folder, name in self._folders:
            text = folder.sub(name, text)
        return _ADDRESS.sub("0x...", text)


def _finish_lines(text: str, drop_progress: bool) -> str:
    """Each line as a terminal shows it in the end; progress bars are gone once they have ended."""
    lines = _OVERWRITTEN.sub("", text.replace("\r\n", "\n")).replace("\r", "").splitlines(keepends=True)
    return "".join(line for line in lines if not (drop_progress and _PROGRESS_BAR.search(line)))
