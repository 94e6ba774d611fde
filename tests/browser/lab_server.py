"""A Jupyter server for tests: on a free port, in folders of its own, with one warm kernel.

Knows processes, folders, Jupyter's REST interface and a kernel's channels. Does not know browsers.

Nothing of the user's Jupyter is read or written: settings, kernels' files, IPython's history and the learner's
progress all lie under one temporary folder, and so do the notebooks that a test opens.
"""

import ast
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import BlockingKernelClient

#: Lab's settings: no news and no question about them, no saving while a test looks on.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}

CLASSIC = ["notebook"]  # Notebook 6; its major version 7 is Lab again
LAB = [
    "jupyterlab",
    "--LabApp.expose_app_in_browser=True",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
]


class JupyterServer:
    """A running server. `url` and `token` open it, `root` holds the notebooks that it sees."""

    def __init__(self, folder: Path, application: list[str], python: str = sys.executable):
        self.root = folder / "notebooks"
        self.root.mkdir()
        self.token = secrets.token_hex(16)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._runtime = folder / "runtime"
        self._log = folder / "server.log"
        labconfig = folder / "config" / "labconfig"
        labconfig.mkdir(parents=True)
        (labconfig / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
        module, *options = application
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    python, "-m", module, "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
                    "--port-retries=0", f"--notebook-dir={self.root}", *options,
                ],
                cwd=self.root, env=self._environment(folder) | {"JUPYTER_TOKEN": self.token},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @staticmethod
    def _environment(folder: Path) -> dict[str, str]:
        ours = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
            "PAGEDKV_HOME": "home",
        }
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "PYTEST"))}
        # One thread: the browser draws on the same cores.
        fixed = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "BROWSER": "true"}
        return outside | fixed | {name: str(folder / sub) for name, sub in ours.items()}

    def wait_until_it_answers(self, seconds: float = 60) -> None:
        """Raises RuntimeError with the end of the server's log where it does not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/api", timeout=5):
                return
            time.sleep(0.05)
        raise RuntimeError(f"the Jupyter server does not answer; its log ends:\n{self._log.read_text()[-3000:]}")

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One call of the server's REST interface, and its JSON answer (None where there is none)."""
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def start_kernel(self) -> "Kernel":
        kernel_id = self.request("POST", "kernels", {"name": "python3"})["id"]
        return Kernel(kernel_id, self._runtime / f"kernel-{kernel_id}.json")

    def free(self, kernel: "Kernel") -> None:
        """End what the kernel still does: a test that failed in the middle of a cell leaves it running."""
        if self.request("GET", f"kernels/{kernel.kernel_id}")["execution_state"] == "busy":
            self.request("POST", f"kernels/{kernel.kernel_id}/interrupt")

    def add_notebook(self, name: str, notebook: nbformat.NotebookNode | Path, kernel: "Kernel") -> str:
        """Put a notebook (or a copy of a file) where the server sees it, with this kernel. Returns its path there."""
        path = f"{name}.ipynb"
        if isinstance(notebook, Path):
            shutil.copy(notebook, self.root / path)
        else:
            nbformat.write(notebook, self.root / path)
        kernel_id = {"id": kernel.kernel_id}
        self.request("POST", "sessions", {"path": path, "name": path, "type": "notebook", "kernel": kernel_id})
        return path

    def remove_notebook(self, path: str) -> None:
        """Take it away again; its kernel goes on."""
        for session in self.request("GET", "sessions"):
            if session["path"] == path:
                # Deleting a session would take the kernel with it: give the kernel to nobody's path instead.
                self.request("PATCH", f"sessions/{session['id']}", {"path": f"closed/{path}"})
        (self.root / path).unlink(missing_ok=True)

    def stop(self) -> None:
        """End it with its kernels."""
        with contextlib.suppress(OSError):
            for kernel in self.request("GET", "kernels"):
                self.request("DELETE", f"kernels/{kernel['id']}")
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def jupyter_server(folder: Path, application: list[str]) -> Iterator[JupyterServer]:
    server = JupyterServer(folder, application)
    try:
        server.wait_until_it_answers()
        yield server
    finally:
        server.stop()


class Kernel:
    """A kernel that a notebook in the browser uses, with a line of our own to it: the truth to compare with."""

    def __init__(self, kernel_id: str, connection_file: Path):
        self.kernel_id = kernel_id
        deadline = time.monotonic() + 30
        while not connection_file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._client = BlockingKernelClient(connection_file=str(connection_file))
        self._client.load_connection_file()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout: float = 60) -> None:
        """Run code; raises RuntimeError where it raises. It is queued behind a cell that is running."""
        self._execute(code, {}, timeout)

    def ask(self, expression: str, timeout: float = 60) -> Any:
        """The value of an expression that JSON can hold."""
        answer = self._execute("import json as _json", {"value": f"_json.dumps({expression})"}, timeout)["value"]
        if answer["status"] != "ok":
            raise RuntimeError(f"{expression}: {answer['ename']}: {answer['evalue']}")
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def forget(self) -> None:
        """Close all widgets and drop all names: the next test finds a kernel as good as new, with modules loaded."""
        self.run("from ipywidgets import Widget\nWidget.close_all()\nget_ipython().reset(new_session=True)")

    def close(self) -> None:
        self._client.stop_channels()

    def _execute(self, code: str, expressions: dict[str, str], timeout: float) -> dict[str, Any]:
        # Silent: nothing of it appears in the notebook that is open on this kernel.
        message = self._client.execute(code, silent=True, user_expressions=expressions)
        deadline = time.monotonic() + timeout
        while True:
            reply = self._client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == message:
                break
        content = reply["content"]
        if content["status"] != "ok":
            raise RuntimeError(f"{code!r} in the kernel: {content.get('ename')}: {content.get('evalue')}")
        return content["user_expressions"]
