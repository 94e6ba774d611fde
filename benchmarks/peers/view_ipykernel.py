"""A kernel and nobody else: cells are run through jupyter_client, and frames go out as they would to a browser.

Knows Jupyter's messages. They are read when a cell is over, so that reading them takes no time from it.
"""

import ast
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_client import KernelManager

from benchmarks.peers.view_protocol import DECODE, SHOW, main, set_up
from pagedkv_lab.measure.timing import versions

TIMEOUT_S = 300


class BareKernel:
    """A running kernel with `rounds` in it."""

    def __init__(self, client: Any, options: dict[str, Any]):
        self._client = client
        self._run(set_up(options | {"worker": os.getpid()}))
        self._run(SHOW)
        self._view = self._value("rounds.view.model_id")
        self.facts = {"versions": versions("ipykernel", "ipywidgets", "anywidget", "jupyter_client")}

    def decode(self, arms: list[str], turns: int, steps: int, pause_s: float) -> dict[str, Any]:
        messages = self._run(DECODE, arms, turns, steps, pause_s)
        of_the_view = [message for message in messages if message["content"]["comm_id"] == self._view]
        return self._value("result") | {"arrived": sum("frame" in state(message) for message in of_the_view)}

    def frame_costs(self, num_blocks: int, num_frames: int) -> dict[str, Any]:
        messages = self._run("costs = rounds.frame_costs(*ask)", num_blocks, num_frames)
        frames = [num_bytes(message) for message in messages if "frame" in state(message)]
        return self._value("costs") | {"bytes": frames[-num_frames:]}

    def _run(self, cell: str, *ask: Any) -> list[dict[str, Any]]:
        """Run a cell, in which `ask` is what is given. Returns the widgets' messages."""
        return self._execute(f"ask = {ask!r}\n{cell}")[0]

    def _value(self, expression: str) -> Any:
        return self._execute("import json as _json", f"_json.dumps({expression})")[1]

    def _execute(self, code: str, expression: str = "None") -> tuple[list[dict[str, Any]], Any]:
        asked = self._client.execute(code, store_history=False, user_expressions={"value": expression})
        while (reply := self._client.get_shell_msg(timeout=TIMEOUT_S))["parent_header"].get("msg_id") != asked:
            pass
        content = reply["content"]
        value = content.get("user_expressions", {}).get("value", {})
        for answer in (content, value):
            if answer.get("status") == "error":
                raise RuntimeError(f"in the kernel: {answer['ename']}: {answer['evalue']}")
        messages = []
        while True:
            message = self._client.get_iopub_msg(timeout=30)
            if message["msg_type"] == "comm_msg":
                messages.append(message)
            elif message["parent_header"].get("msg_id") == asked and is_idle(message):
                break
        text = ast.literal_eval(value["data"]["text/plain"])
        return messages, None if text is None else json.loads(text)


def is_idle(message: dict[str, Any]) -> bool:
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


def state(message: dict[str, Any]) -> dict[str, Any]:
    """The traits that a widget's message changes."""
    return message["content"]["data"].get("state", {})


def num_bytes(message: dict[str, Any]) -> int:
    """JSON and buffers of a widget's message, without what is around them on the wire."""
    return len(json.dumps(message["content"]).encode()) + sum(memoryview(part).nbytes for part in message["buffers"])


@contextmanager
def bare_kernel(options: dict[str, Any]) -> Iterator[BareKernel]:
    with tempfile.TemporaryDirectory() as folder:
        manager = KernelManager(kernel_name="python3", connection_file=f"{folder}/kernel.json")
        manager.start_kernel(cwd=folder, env=os.environ | {"IPYTHONDIR": f"{folder}/ipython"})
        client = manager.client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=60)
            yield BareKernel(client, options)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main(bare_kernel)
