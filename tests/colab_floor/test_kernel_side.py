"""What a kernel of Colab's versions sends for a view, message by message, and what it does with the browser's."""

import ast
import time

import pytest
from jupyter_client.manager import start_new_kernel

ENGINE = """
from pagedkv_lab import Engine, SamplingParams, load_model
from pagedkv_lab.show import Playground, PoolView, watch
engine = Engine(load_model("toy"), num_gpu_blocks=32, max_model_len=256)
"""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Session:
    """A kernel, and all messages that it has published since the last `run`."""

    def __init__(self, client):
        self.client = client

    def run(self, code):
        """Run code; returns the published messages, as (type, content) pairs. Fails where the code does."""
        return self._until_idle(self.client.execute(code))

    def send(self, comm_id, message):
        """A custom message from the browser to a widget; returns what is published for it."""
        content = {"comm_id": comm_id, "data": {"method": "custom", "content": message}}
        request = self.client.session.msg("comm_msg", content)
        self.client.shell_channel.send(request)
        return self._until_idle(request["header"]["msg_id"])

    def _until_idle(self, message_id):
        published, deadline = [], time.monotonic() + 60
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            published.append((kind, content))
        errors = [content["evalue"] for kind, content in published if kind == "error"]
        assert errors == []
        return published


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    manager, client = start_new_kernel(cwd=str(tmp_path_factory.mktemp("kernel")))
    session = Session(client)
    session.run(ENGINE)
    yield session
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def ask(session, expression):
    """The value of an expression, as a Python literal."""
    [text] = [content["text"] for kind, content in session.run(f"print(repr({expression}))") if kind == "stream"]
    return ast.literal_eval(text)


def shown(messages):
    """The one thing that was displayed: its data by MIME type."""
    [data] = [content["data"] for kind, content in messages if kind in ("display_data", "execute_result")]
    return data


def frames(messages):
    """States of widgets that hold a frame, in order."""
    states = [content["data"].get("state", {}) for kind, content in messages if kind in ("comm_open", "comm_msg")]
    return [state["frame"] for state in states if state.get("frame")]


def customs(messages):
    """Custom messages to the browser."""
    data = [content["data"] for kind, content in messages if kind == "comm_msg"]
    return [message["content"] for message in data if message.get("method") == "custom"]


@pytest.mark.parametrize("view", ["PoolView(engine)", "Playground(engine, prompts=['Hello'])"])
def test_a_view_is_shown_once_with_a_picture_and_a_sentence_beside_it(session, view):
    data = shown(session.run(view))
    assert data.keys() >= {WIDGET_VIEW, "image/svg+xml", "text/plain"}
    assert data["image/svg+xml"].startswith("<svg")
    assert "blocks in use" in data["text/plain"]
    assert "0x" not in data["text/plain"]


def test_a_view_that_display_shows_has_them_too(session):
    data = shown(session.run("from IPython.display import display\nview = PoolView(engine)\ndisplay(view)"))
    assert data.keys() >= {WIDGET_VIEW, "image/svg+xml", "text/plain"}


def test_the_widget_s_module_and_first_frame_come_with_it(session):
    messages = session.run("playground = Playground(engine, prompts=['Hello'])\nplayground")
    states = [content["data"]["state"] for kind, content in messages if kind == "comm_open"]
    [state] = [state for state in states if "_esm" in state]
    assert "export default { initialize, render }" in state["_esm"]
    assert ".pkv" in state["_css"]
    assert frames(messages)[-1]["step"] == 0


def test_a_step_is_answered_by_its_frame_and_then_by_its_ticket(session):
    session.run("playground = Playground(engine, prompts=['Hello'], max_tokens=50)")
    comm_id = ask(session, "playground.comm.comm_id")
    before = ask(session, "engine.stats().steps")
    messages = session.send(comm_id, {"do": "step", "ticket": 7, "steps": 1})
    assert [frame["step"] for frame in frames(messages)][-1] == before + 1
    assert customs(messages)[-1] == {"kind": "done", "ticket": 7, "more": True, "ran": 1}
    assert ask(session, "engine.stats().steps") == before + 1


def test_a_prompt_from_the_browser_becomes_a_request(session):
    session.run("playground = Playground(engine)")
    before = ask(session, "len(engine.requests())")
    comm_id = ask(session, "playground.comm.comm_id")
    messages = session.send(comm_id, {"do": "add", "prompt": "Another", "max_tokens": 5, "n": 1})
    assert ask(session, "len(engine.requests())") == before + 1
    assert any("Another" in str(row["prompt"]) for row in frames(messages)[-1]["sequences"])


def test_what_the_engine_refuses_comes_back_as_a_sentence(session):
    session.run("playground = Playground(engine)")
    comm_id = ask(session, "playground.comm.comm_id")
    messages = session.send(comm_id, {"do": "add", "prompt": "x" * 400, "max_tokens": 5, "n": 1})
    [error] = [message for message in customs(messages) if message["kind"] == "error"]
    assert "256" in error["text"]


def test_watch_pushes_frames_while_the_cell_runs(session):
    code = "outputs = watch(engine, ['Hello'] * 8, SamplingParams(max_tokens=200, ignore_eos=True))"
    messages = session.run(code)
    steps = [frame["step"] for frame in frames(messages)]
    assert len(set(steps)) > 2
    assert steps == sorted(steps)
    assert frames(messages)[-1]["phase"] in ("done", "paused")


def test_a_pool_view_pushes_frames_once_it_is_shown_and_none_when_it_is_closed(session):
    session.run("another = Engine(load_model('toy'), num_gpu_blocks=32)\nview = PoolView(another)")
    run = "another.generate(['Hello'], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)"
    assert frames(session.run(run)) == []
    session.run("view")
    assert frames(session.run(run)) != []
    session.run("view.close()")
    assert frames(session.run(run)) == []
