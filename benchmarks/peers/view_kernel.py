"""The suite `view` inside a notebook's kernel: an engine that does the same again and again, and views of it.

Knows the engine and its views. Does not know what the kernel is connected with.
"""

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import psutil
import torch
from IPython.display import display

from benchmarks.peers.view_protocol import NOT_SHOWN, SHOWN
from pagedkv_lab.engine import Engine, SamplingParams, load_model
from pagedkv_lab.engine.report import StepReport
from pagedkv_lab.measure.timing import in_turn
from pagedkv_lab.show.frames import FrameSource
from pagedkv_lab.show.view import FRAMES_PER_SECOND, PoolView, View, describe

BLOCK_SIZE = 16
#: Steps in each cell before the first turn.
WARM_UP_STEPS = 2
#: Seconds of rest before a turn with frames: the first one, of the beginning, is drawn in them.
SETTLE_S = 0.15


class Noted:
    """A method that notes the seconds of each of its calls: `Noted(view, "push")` takes the method's place."""

    def __init__(self, owner: Any, name: str):
        self.function, self.seconds = getattr(owner, name), []
        setattr(owner, name, self)

    def __call__(self, *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return self.function(*args)
        finally:
            self.seconds.append(time.perf_counter() - started)


class Rounds:
    """Sequences that decode with a view and without, in turn, from the same place again in each cell.

    The prompts are random token ids, all different. They are computed once; from then on each cell finds them in the
    prefix cache, so that it begins with the same blocks in use and computes the same tokens.

    worker: id of the process that has started this one, and whoever draws.
    """

    def __init__(self, model: str, *, num_blocks: int, num_seqs: int, prompt_tokens: int, threads: int, worker: int):
        torch.set_num_threads(threads)
        self.model = load_model(model, device="cpu")
        self.engine = Engine(
            self.model,
            block_size=BLOCK_SIZE,
            num_gpu_blocks=num_blocks,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=2048,
        )
        random = Random("view")
        vocabulary = range(self.model.hf.config.vocab_size - 1)
        # Their lengths differ by up to a block: in each step about one sequence in BLOCK_SIZE fills a block.
        lengths = [prompt_tokens + i % BLOCK_SIZE + 1 for i in range(num_seqs)]
        self.prompts = [random.choices(vocabulary, k=length) for length in lengths]
        self.worker = worker
        self._rewind()

    def show(self) -> None:
        """Put up the view; it does not follow the engine yet."""
        self.view = PoolView(self.engine)
        self.pushes = Noted(self.view, "push")
        display(self.view)
        self.view.stop()

    def decode(self, arms: Sequence[str], turns: int, steps: int, pause_s: float) -> dict[str, Any]:
        """So many turns for each arm, of so many steps. Ready for JSON.

        pause_s: seconds of rest before turns in which nothing is shown, until nothing of the last one goes on.

        turns: by arm, of each turn its seconds, the milliseconds of each step and of each frame that was made and sent
        between the steps, and processor seconds. sent: all frames, those between the turns, too.
        """
        self.view.stop()  # a page that shows it has asked for frames
        self._rewind()
        sent = len(self.pushes.seconds)
        found = in_turn({arm: lambda number, arm=arm: self._turn(arm, steps, pause_s) for arm in arms}, turns)
        counts = self.engine.manager.counts()
        return {"turns": found, "sent": len(self.pushes.seconds) - sent, "blocks_in_use": counts.used}

    def _turn(self, arm: str, steps: int, pause_s: float) -> dict[str, Any]:
        engine, view, is_followed = self.engine, self.view, arm == SHOWN
        unseen = PoolView(engine) if arm == NOT_SHOWN else None
        if is_followed:
            view.start()
        if bool(engine.listeners or engine.manager.listeners) != is_followed:
            raise RuntimeError(f"{arm}: {'nothing' if is_followed else 'something'} follows the engine")
        time.sleep(SETTLE_S if is_followed else pause_s)
        num_pushed, step_ms, cpu = len(self.pushes.seconds), [], cpu_seconds(self.worker)
        started = due = time.perf_counter()
        for _ in range(steps):
            if is_followed:
                # A view left alone waits a tenth of a second after each frame, and then for the end of a step, so it
                # pushes fewer than ten. This one keeps up ten, and pushes before the step: its frame is drawn while the
                # next step runs, and that is to be in this turn.
                if time.perf_counter() >= due:
                    view.push("running")
                    due += 1 / FRAMES_PER_SECOND
                view._due = math.inf
            began = time.perf_counter()
            report = engine.step()
            step_ms.append(1e3 * (time.perf_counter() - began))
        seconds = time.perf_counter() - started
        cpu = {who: spent - cpu[who] for who, spent in cpu_seconds(self.worker).items()}
        push_ms = [1e3 * took for took in self.pushes.seconds[num_pushed:]]
        check(report, len(self.prompts))
        view.stop()
        if unseen:
            unseen.close()
        return {"seconds": seconds, "step_ms": step_ms, "push_ms": push_ms, "cpu_s": cpu}

    def _rewind(self) -> None:
        for request_id in list(self.engine.requests()):
            self.engine.abort(request_id)
        params = SamplingParams(max_tokens=self.model.max_model_len, ignore_eos=True)
        for prompt in self.prompts:
            self.engine.add_request(prompt, params)
        decode_all(self.engine, len(self.prompts))

    # What a frame takes

    def frame_costs(self, num_blocks: int, num_frames: int) -> dict[str, Any]:
        """Microseconds to make a frame and to send it, one after each step, a quarter of the pool in use.

        The model is replaced by a stand-in that always returns the same logits: a pool of any size is quickly filled.
        """
        engine, num_seqs = self._filled(num_blocks, num_frames), len(self.prompts)
        source, view = FrameSource(engine), View(meta=describe(engine))
        view.show_frame(source.frame())  # the first one describes every block
        make_us, send_us = [], []
        for _ in range(num_frames):
            check(engine.step(), num_seqs)
            started = time.perf_counter()
            frame = source.frame("running")
            made = time.perf_counter()
            view.show_frame(frame)
            make_us.append(1e6 * (made - started))
            send_us.append(1e6 * (time.perf_counter() - made))
        source.close()
        view.close()
        return {
            "num_blocks": num_blocks,
            "sequences": num_seqs,
            "blocks_in_use": frame.numbers["used"],
            "make_us": make_us,
            "send_us": send_us,
        }

    def _filled(self, num_blocks: int, num_steps: int) -> Engine:
        toy, num_seqs = load_model("toy", device="cpu"), len(self.prompts)
        context = num_blocks // 4 // num_seqs * BLOCK_SIZE
        toy.hf.config.max_position_embeddings = 2 * context
        engine = Engine(
            replace(toy, tokenizer=self.model.tokenizer),
            block_size=BLOCK_SIZE,
            num_gpu_blocks=num_blocks,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=8192,
        )
        logits = torch.zeros(num_seqs, toy.hf.config.vocab_size)
        engine.runner._forward = lambda token_ids, positions, rows, **extra: logits[: len(rows)]
        random = Random("frames")
        params = SamplingParams(max_tokens=context, ignore_eos=True)
        for _ in range(num_seqs):
            engine.add_request(random.choices(range(toy.hf.config.vocab_size - 1), k=context - num_steps // 2), params)
        decode_all(engine, num_seqs)
        return engine


def decode_all(engine: Engine, num_seqs: int) -> None:
    """Step until every sequence decodes, and a few steps more."""
    while engine.step().num_decode_tokens < num_seqs:
        pass
    for _ in range(WARM_UP_STEPS):
        engine.step()


def check(report: StepReport, num_seqs: int) -> None:
    """Raises RuntimeError where a sequence has ended: it is not the same work any more."""
    if report.num_decode_tokens != num_seqs:
        raise RuntimeError(f"{report.num_decode_tokens} of {num_seqs} sequences decode")


def cpu_seconds(worker: int) -> dict[str, float]:
    """Processor time so far, by who took it: this kernel, the Jupyter server, the browser, others.

    What drives the browser is among the others: without a benchmark it would not be there.
    """
    spent = {"kernel": 0.0, "server": 0.0, "browser": 0.0}
    for process in psutil.Process(worker).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command, times = " ".join(process.cmdline()), process.cpu_times()
            own = process.pid == os.getpid()
            who = "kernel" if own else "server" if "jupyterlab" in command else "browser" if "chrom" in command else ""
            if who:
                spent[who] += times.user + times.system
    everybody = psutil.cpu_times()
    return spent | {"others": everybody.user + everybody.system - sum(spent.values())}
