"""The engine: requests in, tokens out, one step at a time.

Knows everybody: scheduler, block manager, runner, sampler. Keeps one promise above all: whatever happens in
a step (an exception in the model, a broken part, Ctrl-C), afterwards every block has an owner that lives,
and the next step can run.
"""

import logging
import time
from collections.abc import Callable, Container, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from tqdm.auto import tqdm

from pagedkv_lab.attention import choose_backend
from pagedkv_lab.blocks.snapshot import PoolSnapshot
from pagedkv_lab.engine.backend import this_or_fallback
from pagedkv_lab.engine.batch import BatchLayout
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.detokenizer import Detokenizer
from pagedkv_lab.engine.device import gpu_of
from pagedkv_lab.engine.door import is_one_prompt, label, refuse_what_never_fits
from pagedkv_lab.engine.guards import guard_attention
from pagedkv_lab.engine.interrupts import uninterrupted
from pagedkv_lab.engine.models import LoadedModel, Prompt, load_model
from pagedkv_lab.engine.parts import Parts
from pagedkv_lab.engine.plan import plan_pool
from pagedkv_lab.engine.profiled_step import profile, try_capture
from pagedkv_lab.engine.report import EngineStats, StepReport
from pagedkv_lab.engine.request import Request, RequestOutput, Sequence
from pagedkv_lab.engine.runner import ModelRunner
from pagedkv_lab.engine.sampling import SamplingParams, sample
from pagedkv_lab.engine.scheduler import Schedule, Scheduler
from pagedkv_lab.errors import PagedKVError, PartError, RequestTooLong
from pagedkv_lab.sizing import blocks_for

logger = logging.getLogger(__name__)


class Engine:
    """Serves a causal LM from a paged KV cache.

    model: what `load_model` returns, a transformers model (then with `tokenizer=`), or a name for load_model.
    parts: whose parts to put in, see `Parts`.
    options: those of `EngineConfig`, by name.

    Raises UnsupportedModel, PartError, ValueError (an option out of range), PagedKVError (no block fits).
    """

    def __init__(
        self,
        model: LoadedModel | Any = None,
        *,
        tokenizer: Any = None,
        parts: Parts | None = None,
        **options: Any,
    ):
        if model is None or isinstance(model, str):
            model = load_model(model)
        elif not isinstance(model, LoadedModel):
            model = LoadedModel(model, tokenizer, type(model).__name__)
        self.model, self.parts = model, parts or Parts()
        self.config = EngineConfig(**options)
        self.attn_backend, attention = choose_backend(self.config.attn_backend, model.device)
        if self.parts.paged_attention is not None:
            self.attn_backend, attention = "yours", guard_attention(self.parts.paged_attention)
        gpu = gpu_of(model.device)
        self.runner = ModelRunner(model.hf, model.name, attention, self.config.model_impl, gpu=gpu)
        self.attn_backend, self.runner.attention = this_or_fallback(
            self.attn_backend, attention, model.hf, self.runner.calls, self.config
        )
        self.config.resolve(model.max_model_len)
        wants_graphs, free = not self.config.enforce_eager, None
        if gpu is not None and self.config.num_gpu_blocks is None and self.config.kv_cache_memory_bytes is None:
            needs = profile(self.runner, self.config)
            wants_graphs &= needs.graphs is not None
            free = max(0, gpu.free_bytes() - needs.total), str(needs)
        self.plan = plan_pool(
            self.config,
            self.parts,
            self.runner.layers,
            model_name=model.name,
            dtype=model.dtype,
            device=model.device,
            free=free,
        )
        logger.info("%s", self.plan)
        self.num_gpu_blocks, self.block_size = self.plan.num_blocks, self.config.block_size
        self.runner.allocate(
            self.num_gpu_blocks, self.block_size, self.config.kv_quantization, self.plan.num_tails
        )
        if wants_graphs and (graphs := self.runner.decode_graphs(self.config.max_num_seqs, self.config.max_model_len)):
            self.runner.graphs = graphs if try_capture(graphs) else None
        self._requests: dict[int, Request] = {}
        self._detokenizers: dict[int, Detokenizer] = {}
        self._undelivered: list[RequestOutput] = []
        self._request_ids, self._seq_ids = count(1), count(1)
        self._steps = self._finished = self._computed = self._output = self._preemptions = self._copied = 0
        self._queried = self._hits = 0  # of managers that had to be replaced
        self._seconds = 0.0
        #: Called with each step's report, as views do; what they cost is not in `seconds`. One that raises is dropped.
        self.listeners: list[Callable[[StepReport], None]] = []
        self._batch = BatchLayout()
        self._peak = (0, 0)
        self._start_pool()

    # Requests come and go

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, *, cache_salt: str | None = None
    ) -> int:
        """Queue a request and return its id. Nothing runs before `step`.

        prompt: text, chat messages, or token ids. cache_salt: requests share cached blocks only with requests
        of the same salt. max_tokens is cut to what max_model_len leaves.

        Raises RequestTooLong, with the numbers, for a request that could never run; ValueError for a prompt
        that can't be read.
        """
        params = params or SamplingParams()
        token_ids = self.model.encode(prompt)
        if params.stop:
            self.model.encode(params.stop[0])  # raises where there is no tokenizer to find strings with
        refuse_what_never_fits(self.config, self.num_gpu_blocks, len(token_ids), params)
        text = prompt if isinstance(prompt, str) else None
        request = Request(next(self._request_ids), token_ids, params, text, label=label(prompt))
        seq = Sequence(
            next(self._seq_ids),
            request,
            extra_keys=() if cache_salt is None else (("cache_salt", str(cache_salt)),),
            generator=self._generator(request, 0),
        )
        request.sequences.append(seq)
        with uninterrupted():
            self._let_in(seq, lambda: self.scheduler.add(seq))
        return request.request_id

    def fork(self, request_id: int, params: SamplingParams | None = None, *, index: int = 0) -> int:
        """A new request that goes on from where output `index` of a request stands. Returns the new request's id.

        It shares every block of the other one, the partly filled one too: whoever writes first copies it. Its own
        params say how it goes on; greedily it says what its parent says. max_tokens counts from the prompt's end, and
        so do both requests' outputs. To be called between steps.

        Raises ValueError where there is no such unfinished output, or where params ask for what can't be had from there
        (n > 1, fewer tokens than there are, a stop string that is in the text already); RequestTooLong as `add_request`
        does, and where max_num_seqs sequences run.
        """
        of = self._requests.get(request_id)
        parent = next((s for s in of.sequences if s.index == index and s.finish_reason is None), None) if of else None
        if parent is None:
            raise ValueError(f"request {request_id} has no unfinished output {index} to go on from")
        params = params or replace(of.params, n=1)
        if params.n > 1:
            raise ValueError("a fork is one sequence: fork again for more, instead of n > 1")
        if params.max_tokens <= parent.num_output_tokens:
            raise ValueError(f"{parent.name} has {parent.num_output_tokens} output tokens already: raise max_tokens")
        refuse_what_never_fits(self.config, self.num_gpu_blocks, parent.prompt_len, params)
        detokenizer = None
        if params.stop:
            self.model.encode(params.stop[0])
            detokenizer = Detokenizer(self.model.tokenizer, params.stop)
            for token in parent.output_token_ids:
                if detokenizer.push(token):
                    raise ValueError(f"{parent.name} has said one of these stop strings already: {params.stop}")
        holds_blocks = parent in self.scheduler.running and parent.num_computed_tokens > 0
        places = sum(1 + running.forks_to_come for running in self.scheduler.running)
        if holds_blocks and places >= self.config.max_num_seqs:
            raise RequestTooLong(
                f"{self.config.max_num_seqs} sequences run already (max_num_seqs), and a fork runs at once: wait until "
                "one is done, or raise max_num_seqs."
            )
        request = Request(
            next(self._request_ids), of.prompt_token_ids, params, of.prompt, of.arrival_time, of.first_token_time,
            num_cached_tokens=of.num_cached_tokens, label=of.label,
        )  # fmt: skip
        child = parent.fork(next(self._seq_ids), 0, self._generator(request, 0))
        child.request = request
        request.sequences.append(child)

        def share_and_run() -> None:
            self.manager.fork(parent, child)
            self.scheduler.add_fork(parent, child)

        def queue_up() -> None:  # the parent holds no blocks: both are computed from the start, or found in the cache
            child.num_computed_tokens = 0
            self.scheduler.add(child)

        with uninterrupted():
            self._let_in(child, share_and_run if holds_blocks else queue_up)
            if detokenizer:
                self._detokenizers[child.seq_id] = detokenizer
        return request.request_id

    def _let_in(self, seq: Sequence, add: Callable[[], None]) -> None:
        """Note a new request's first sequence and hand it to the scheduler; what breaks there leaves no trace."""
        self._requests[seq.request.request_id] = seq.request
        self._watch_text(seq)
        try:
            add()
        except Exception:
            del self._requests[seq.request.request_id]
            self._detokenizers.pop(seq.seq_id, None)
            self._recover(broken_part=True)
            raise

    def abort(self, request_id: int) -> RequestOutput | None:
        """End a request now and take back its blocks. Returns what it had produced, or None if it isn't running."""
        with uninterrupted():
            request = self._requests.get(request_id)
            if request is None:
                # Perhaps it ended in a step that was interrupted before it could report: nobody waits for it now.
                self._undelivered = [output for output in self._undelivered if output.request_id != request_id]
                return None
            unfinished = [seq for seq in request.sequences if seq.finish_reason is None]
            try:
                for seq in unfinished:
                    self._finish(seq, "abort")
            except PagedKVError as error:
                # A part that can't give blocks back: the others still get an engine that works.
                logger.warning("aborting request %s: %s", request_id, error)
                for seq in unfinished:
                    seq.finish_reason = "abort"
                self._start_pool()
            return self._close(request)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` still has something to run, or to report."""
        return bool(self._requests or self._undelivered)

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Run one prompt or a list of them to the end. Returns one RequestOutput a prompt, in their order.

        params: for all prompts, or one each. use_tqdm: a progress bar, if it takes more than two seconds.
        Requests that were added before run along. Whatever interrupts this, its own requests leave no block
        behind.
        """
        prompts = [prompts] if is_one_prompt(prompts) else list(prompts)
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts and {len(each)} sampling params: give one for all, or one each")
        outputs: dict[int, RequestOutput] = {}
        requests: dict[int, Request] = {}
        try:
            for prompt, param in zip(prompts, each, strict=True):
                with uninterrupted():
                    request_id = self.add_request(prompt, param, cache_salt=cache_salt)
                    requests[request_id] = self._requests[request_id]
            wanted = {i: request.params.max_tokens * request.params.n for i, request in requests.items()}
            total = sum(wanted.values())
            with tqdm(total=total, desc="generating", unit="token", delay=2, leave=False, disable=not use_tqdm) as bar:
                while requests.keys() & self._requests.keys():
                    report = self.step_for(requests)
                    bar.update(sum(request_id in requests for request_id, *_ in report.tokens))
                    for output in report.finished:
                        if output.request_id in requests:
                            outputs[output.request_id] = output
                            # What an early end left out is not to come any more.
                            bar.total -= wanted[output.request_id] - sum(len(o.token_ids) for o in output.outputs)
        finally:
            with uninterrupted():
                for request_id in requests:
                    self.abort(request_id)
        # One that was aborted from elsewhere meanwhile: what it had.
        return [outputs.get(i) or RequestOutput.of(request) for i, request in requests.items()]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, cache_salt: str | None = None
    ) -> Iterator[str]:
        """Yield the text of one prompt's (first) output piece by piece. Leaving the loop early aborts it."""
        request_id = None
        try:
            with uninterrupted():
                request_id = self.add_request(prompt, params, cache_salt=cache_salt)
                seq = self._requests[request_id].sequences[0]
                if seq.seq_id not in self._detokenizers and self.model.tokenizer is not None:
                    self._detokenizers[seq.seq_id] = Detokenizer(self.model.tokenizer, seq.params.stop)
                detokenizer = self._detokenizers.get(seq.seq_id)
            shown = 0
            while seq.finish_reason is None:
                self.step_for([request_id])
                if detokenizer and seq.finish_reason is None and detokenizer.safe_length > shown:
                    begin, shown = shown, detokenizer.safe_length
                    yield detokenizer.text[begin:shown]
            # The end comes here, also where it was somebody else's step that brought it.
            if len(seq.text) > shown:
                yield seq.text[shown:]
        finally:
            if request_id is not None:
                self.abort(request_id)

    # One step

    def step(self) -> StepReport:
        """Run one step: schedule, compute, sample, take back the blocks of what finished.

        Where it raises (the model, a part, Ctrl-C), the sequences of the step go back to the queue, to be
        computed again: call `step` again to go on, or `abort` what should not.
        """
        started = time.perf_counter()
        # Hits are counted as sequences are let in, so what this step's schedule adds is this step's.
        hits_before = self.manager.hit_tokens
        schedule = Schedule()
        try:
            with uninterrupted():
                schedule = self.scheduler.schedule()
                copies = self.manager.take_copies()
            if not schedule.work and self._requests:
                raise self._stuck()
            tokens: list[tuple[int, int, int]] = []
            ran = tuple((i.seq.request.request_id, i.seq.index, i.num_tokens, i.kind) for i in schedule.work)
            if schedule.work:
                logits = self.runner.execute(self._batch.lay_out(schedule, self.manager, copies))
                with uninterrupted():
                    tokens = self._take_tokens(schedule, logits)
        except BaseException as error:
            with uninterrupted():
                self._recover(broken_part=isinstance(error, PartError))
            raise
        finished, self._undelivered = self._undelivered, []
        pool = self.manager.counts()
        seconds = time.perf_counter() - started
        self._steps += 1
        self._seconds += seconds
        self._copied += len(copies)
        self._preemptions += len(schedule.preempted)
        self._computed += schedule.num_tokens
        self._output += len(tokens)
        report = StepReport(
            step=self._steps,
            ran=ran,
            tokens=tuple(tokens),
            pool=pool,
            used_slots=self.manager.used_slots,
            hit_tokens=self.manager.hit_tokens - hits_before,
            preempted=tuple(seq.request.request_id for seq in schedule.preempted),
            num_copied_blocks=len(copies),
            finished=tuple(finished),
            seconds=seconds,
        )
        if self.listeners:
            try:
                self._tell(report)
            except BaseException:  # Ctrl-C: this report reaches nobody, so the next one has what it had
                self._undelivered = [*finished, *self._undelivered]
                raise
        return report

    def _tell(self, report: StepReport) -> None:
        """The step is over, and whatever the listeners do, its report must reach the caller."""
        with uninterrupted():
            for listener in tuple(self.listeners):
                try:
                    listener(report)
                except Exception:
                    logger.exception("a listener failed, and is not called any more")
                    if listener in self.listeners:
                        self.listeners.remove(listener)

    def step_for(self, request_ids: Container[int]) -> StepReport:
        """`step`, for one who waits for these requests: finished outputs of others stay for a report that is theirs."""
        report = self.step()
        self._undelivered += [output for output in report.finished if output.request_id not in request_ids]
        return report

    # What others may look at

    def snapshot(self) -> PoolSnapshot:
        """The pool, block by block."""
        return self.manager.snapshot()

    def stats(self) -> EngineStats:
        """Counts since the engine was made."""
        return EngineStats(
            steps=self._steps,
            seconds=self._seconds,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            finished=self._finished,
            computed_tokens=self._computed,
            output_tokens=self._output,
            queried_tokens=self._queried + self.manager.queried_tokens,
            hit_tokens=self._hits + self.manager.hit_tokens,
            preemptions=self._preemptions,
            copied_blocks=self._copied,
            pool=self.manager.counts(),
            peak_used_blocks=self._peak[0],
            peak_used_slots=self._peak[1],
            block_size=self.block_size,
        )

    def requests(self) -> Mapping[int, Request]:
        """The unfinished requests by id, for views."""
        return dict(self._requests)

    # Inside: after the model has run

    def _take_tokens(self, schedule: Schedule, logits: torch.Tensor) -> list[tuple[int, int, int]]:
        """Advance every sequence, fork those whose prompt is done, sample, and close what ended."""
        rows: list[int] = []
        sampling: list[Sequence] = []
        ready = [item.seq for item in schedule.work if item.is_last_chunk]  # one row of logits each, in this order
        for item in schedule.work:
            item.seq.num_computed_tokens += item.num_tokens
        for row, seq in enumerate(ready):
            together = [seq, *self._fork(seq)]
            rows += [row] * len(together)
            sampling += together
        # From here on the cache holds what the schedule promised, whatever becomes of the tokens.
        self.manager.commit_step()
        self._peak = max(self._peak, (self.manager.counts().used, self.manager.used_slots))
        if not sampling:
            return []
        # Forks draw from their parent's row.
        drawn = sample(logits, [seq.params for seq in sampling], [seq.generator for seq in sampling], rows)
        now = time.perf_counter()
        tokens = []
        eos_token_ids = self.model.eos_token_ids
        for seq, token in zip(sampling, drawn, strict=True):
            # First: should it raise, the token isn't taken and is drawn again.
            reason = self._end_of(seq, token, eos_token_ids)
            seq.token_ids.append(token)
            request = seq.request
            request.first_token_time = request.first_token_time or now
            tokens.append((request.request_id, seq.index, token))
            if reason:
                self._finish(seq, reason)
        self._close_finished([seq.request for seq in sampling if seq.finish_reason is not None])
        return tokens

    def _fork(self, seq: Sequence) -> list[Sequence]:
        """The other n - 1 sequences of a request whose prompt has just been computed."""
        children = []
        while seq.forks_to_come:
            index = len(seq.request.sequences)
            child = seq.fork(next(self._seq_ids), index, self._generator(seq.request, index))
            seq.request.sequences.append(child)
            seq.forks_to_come -= 1
            self._watch_text(child)
            self.manager.fork(seq, child)
            self.scheduler.add_fork(seq, child)
            children.append(child)
        return children

    def _end_of(self, seq: Sequence, token: int, eos_token_ids: frozenset[int]) -> str | None:
        """Why the sequence ends with this token, which it is about to get; None where it goes on."""
        params = seq.request.params
        detokenizer = self._detokenizers.get(seq.seq_id)
        hit_stop_string = detokenizer.push(token) if detokenizer else False
        ends = token in eos_token_ids and not params.ignore_eos
        if hit_stop_string or ends or token in params.stop_token_ids:
            return "stop"
        length = len(seq.token_ids) + 1
        if length >= self.config.max_model_len or length - seq.prompt_len >= params.max_tokens:
            return "length"
        return None

    def _finish(self, seq: Sequence, reason: str) -> None:
        """The sequence is over: text final, blocks back."""
        seq.finish_reason = reason
        try:
            if detokenizer := self._detokenizers.pop(seq.seq_id, None):
                detokenizer.finish()
                seq.text = detokenizer.text
            else:
                seq.text = self.model.decode(seq.output_token_ids)
        finally:
            self.scheduler.remove(seq)
            self.manager.free(seq)

    def _close(self, request: Request) -> RequestOutput:
        request.finish_time = time.perf_counter()
        output = RequestOutput.of(request)
        del self._requests[request.request_id]
        self._finished += 1
        return output

    def _close_finished(self, candidates: Seq[Request]) -> None:
        """Put those that are finished into the next report."""
        for request in candidates:
            if request.is_finished and request.request_id in self._requests:
                self._undelivered.append(self._close(request))

    # Inside: when something breaks

    def _recover(self, *, broken_part: bool) -> None:
        """After a failed step: every sequence loses its blocks and queues again, to be computed again.

        Every one, because a schedule that broke off doesn't say who got room in it. Blocks that the cache still
        finds are hits then. A part that broke can't be trusted to have kept its books: the pool starts anew.
        """
        self.runner.give_attention_back()
        self._close_finished(list(self._requests.values()))
        if broken_part or not self._give_all_blocks_back():
            self._start_pool()
        else:
            self._start_scheduler()

    def _give_all_blocks_back(self) -> bool:
        """Free every unfinished sequence. Returns whether the books are in order: then no block is in use."""
        try:
            self.manager.abandon_step()
            for seq in self._unfinished():
                self.manager.free(seq)
            return self.manager.counts().used == self.manager.used_slots == 0
        except Exception:
            logger.exception("the pool could not be put in order after a failed step: it starts anew")
            return False

    def _start_pool(self) -> None:
        """A new manager over an empty pool, with the same listeners, and a new scheduler."""
        before = getattr(self, "manager", None)
        self.manager = self.parts.make_manager(
            self.num_gpu_blocks, self.block_size, self.config.enable_prefix_caching
        )
        if before is not None:
            self._queried += before.queried_tokens
            self._hits += before.hit_tokens
            self.manager.listeners = before.listeners
        self.runner.pool.start_anew(lambda block: self.manager.allocator.ref_count(block) > 0)
        for seq in self._unfinished():
            seq.block_keys.clear()
        self._start_scheduler()

    def _start_scheduler(self) -> None:
        """A new scheduler, in which the unfinished sequences queue in their order. They must hold no blocks."""
        self.scheduler = self.parts.make_scheduler(self.config, self.manager)
        for seq in self._unfinished():
            seq.num_preemptions += seq.num_computed_tokens > 0
            seq.num_computed_tokens = 0
            self.scheduler.add(seq)

    def _unfinished(self) -> list[Sequence]:
        return [s for request in self._requests.values() for s in request.sequences if s.finish_reason is None]

    def _stuck(self) -> Exception:
        """Requests wait, nobody runs, and not even the first one gets its blocks: somebody lost blocks."""
        first = self._unfinished()[0]
        if self.parts.Scheduler is not Scheduler and self.manager.counts().used == 0:
            return PartError("Scheduler", "schedule()", f"{first.name} waits, every block is free, and nobody runs")
        return self.manager.out_of_blocks(blocks_for(len(first.token_ids), self.block_size))

    # Inside: what a new sequence needs

    def _watch_text(self, seq: Sequence) -> None:
        if seq.params.stop:
            self._detokenizers[seq.seq_id] = Detokenizer(self.model.tokenizer, seq.params.stop)

    def _generator(self, request: Request, index: int) -> torch.Generator | None:
        """Each sampled sequence draws from a generator of its own, so its neighbours don't matter."""
        params = request.params
        if params.temperature == 0:
            return None
        seed = params.seed if params.seed is not None else self.config.seed + 1_000_003 * request.request_id
        return torch.Generator(self.model.device).manual_seed(seed + index)
