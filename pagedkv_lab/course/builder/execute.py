"""Runs a notebook in a kernel of its own, so that two runs come out the same byte for byte.

What a run could pick up from the person who builds (IPython profile, progress in the course, hash seed, a hub's
files) is fixed; what it leaves in the outputs that is not the notebook's own doing is scrubbed.
"""

import asyncio
import contextlib
import copy
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import nbclient.output_widget
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from pagedkv_lab.course.builder.scrub import Scrubber
from pagedkv_lab.errors import PagedKVError

CELL_TIMEOUT_S = 300

# Figures: the same pixels and no version of matplotlib in the file; svg element ids from a salt, not at random.
_KERNEL_CONFIG = """\
c.InlineBackend.figure_formats = {"png"}
c.InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "metadata": {"Software": None}}
c.InlineBackend.rc = {"svg.hashsalt": "pagedkv"}
"""

# Of the builder's own environment, what would change outputs: a backend without inline figures, colours in text.
_UNSET = ("MPLBACKEND", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONSTARTUP", "PYTHONPATH", "PYTHONWARNINGS")


class ExecutionFailed(PagedKVError):
    """A cell failed, or the kernel did. `index` is the cell's, from 0; None if no cell was running."""

    def __init__(self, index: int | None, message: str):
        self.index = index
        super().__init__(message)


def execute(
    notebook: NotebookNode,
    folder: Path,
    names: Mapping[str, str],
    on_cell: Callable[[int], None] = lambda index: None,
) -> None:
    """Run all cells of `notebook` in place, with `folder` as the working directory.

    `names` says what stands in outputs for which absolute path. `on_cell` is called with each cell's index before
    it runs. Cells tagged `raises-exception` may fail. Raises ExecutionFailed at the first other failure.
    """
    metadata = copy.deepcopy(notebook.metadata)
    with _kernel_environment() as environment:
        _run(notebook, folder, environment, on_cell)
    scrubber = Scrubber({**names, environment["PAGEDKV_HOME"]: ".pagedkv"})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = scrubber.clean(cell.outputs)
    notebook.metadata = metadata  # without what nbclient adds: widget state, the version of this Python


def _run(notebook: NotebookNode, folder: Path, environment: dict[str, str], on_cell: Callable[[int], None]) -> None:
    """Run all cells in a new kernel; nbclient's many ways to fail become ExecutionFailed or KeyboardInterrupt."""
    running: int | None = None
    interrupted = False

    def started(cell: NotebookNode, cell_index: int) -> None:
        nonlocal running
        running = cell_index
        run = asyncio.current_task()

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            run.cancel()

        _on_interrupt(interrupt)
        on_cell(cell_index)

    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_S,
        coalesce_streams=True,
        record_timing=False,
        # nbclient trips over an Output widget if it is told to store no widget state. execute() takes it out again.
        store_widget_state=True,
        extra_arguments=["--log-level=CRITICAL"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=started,
    )
    client.widget_registry = {"@jupyter-widgets/output": {"OutputModel": _OutputWidget}}
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        raise ExecutionFailed(running, f"{error.ename}: {error.evalue}") from error
    except CellTimeoutError:
        raise ExecutionFailed(running, f"it ran for more than {CELL_TIMEOUT_S} s.") from None
    except DeadKernelError:  # nbclient's reading of a cancelled cell, too
        if interrupted:
            raise KeyboardInterrupt from None
        raise ExecutionFailed(running, "the kernel died; out of memory, perhaps.") from None
    except asyncio.CancelledError:  # Ctrl-C before the first cell or between two
        raise KeyboardInterrupt from None
    except NoSuchKernel:
        raise ExecutionFailed(None, "this Python has no Jupyter kernel: pip install ipykernel.") from None


def folder_names(root: Path) -> dict[str, str]:
    """What readers see in place of this machine's folders: the repository, this Python, the home folder.

    IPython shortens the home folder to ~ in tracebacks, hence the second form of each.
    """
    home = str(Path.home())
    names = {str(root): "pagedkv-lab"}
    for prefix in {sys.prefix, sys.base_prefix} - {"/usr", "/usr/local"}:
        if not Path(prefix).is_relative_to(root):
            names[prefix] = "python"
    for folder, name in list(names.items()):
        if Path(folder).is_relative_to(home):
            names["~/" + str(Path(folder).relative_to(home))] = name
    return {**names, home: "~"}


def _on_interrupt(handler: Callable[[], object]) -> None:
    """Have Ctrl-C call `handler` while the current loop runs, in place of nbclient's own handler.

    That one shuts the kernel down under the feet of the running cell, and the run ends in whatever breaks first.
    """
    with contextlib.suppress(RuntimeError, NotImplementedError):  # not in the main thread, or on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, handler)


class _OutputWidget(nbclient.output_widget.OutputWidget):
    """nbclient's stand-in for a browser's Output widget, less its replies to the kernel.

    It replies on the very socket on which the answer to the running cell is awaited, and now and then the wait
    misses that answer: under load every third run of a cell with rich's progress bar never ended.
    """

    def sync_state(self) -> None:
        """Tell the kernel nothing."""


@contextlib.contextmanager
def _kernel_environment() -> Iterator[dict[str, str]]:
    """Environment variables for a kernel that knows nothing of the person who builds."""
    with tempfile.TemporaryDirectory(prefix="pagedkv-build-") as scratch:
        profile = Path(scratch, "ipython", "profile_default")
        profile.mkdir(parents=True)
        (profile / "ipython_kernel_config.py").write_text(_KERNEL_CONFIG)
        yield {name: value for name, value in os.environ.items() if name not in _UNSET} | {
            "IPYTHONDIR": str(profile.parent),
            "PAGEDKV_HOME": str(Path(scratch, "pagedkv")),
            "HF_HUB_OFFLINE": "1",
            "PYTHONHASHSEED": "0",
            # The same sums in the same order, whatever the machine; and no waiting for a core that others use.
            "OMP_NUM_THREADS": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            # Live views leave their picture behind: what is committed is read where nothing runs.
            "PAGEDKV_STATIC": "1",
        }
