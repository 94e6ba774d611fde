"""Run it for real: a model generates on the learner's parts, and its tokens are held against two others.

    run_for_real(BlockAllocator=BlockAllocator)

Knows how to run requests on parts, and what must be equal afterwards. Does not know which parts are whose.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from tqdm.auto import tqdm

from pagedkv_lab.bundled import BUNDLED_MODEL
from pagedkv_lab.course import cards
from pagedkv_lab.course.checks import require
from pagedkv_lab.course.checks.registry import UnknownExercise, exercises
from pagedkv_lab.course.checks.report import Report
from pagedkv_lab.course.loan import MyParts, assemble, only_parts
from pagedkv_lab.engine import Engine, RequestOutput, SamplingParams, load_model
from pagedkv_lab.engine.config import EngineConfig
from pagedkv_lab.engine.door import is_one_prompt
from pagedkv_lab.engine.models import LoadedModel, Prompt
from pagedkv_lab.errors import PartError

_SYSTEM = (
    "You are the librarian of a small town. You know every book on your shelves, and most of the people who read them. "
    "Answer each question in one plain sentence, be kind, and never speak of anything but books."
)
_QUESTIONS = ("What shall I read on a train?", "Which book would a sailor like?", "What is a good book about bees?")
#: Three requests with one prefix, and then (max_num_seqs) the first one once more: by now its blocks are free.
_PROMPTS = tuple(
    [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
    for question in (*_QUESTIONS, _QUESTIONS[0])
)
_MAX_TOKENS = 12
#: A budget rather than a number of blocks, so that the sizing functions have their say: 68 blocks of the bundled model.
_BUDGET = {"kv_cache_memory_bytes": 48 * 2**20}
_FOR_OUR_PROMPTS = {"max_model_len": 512, "max_num_seqs": 3}


@dataclass(frozen=True, repr=False)
class RealRun:
    """What came of a run. Shows itself in a notebook and as text.

    same_as_package, same_as_transformers: whether the tokens are equal; None where that was not looked at, and
        `not_compared` says why. leaked: blocks that are in use though no request is left. mine: whose parts ran.
    books: what the block manager finds wrong when it counts everything again, or "". engine: to look at its pool.
    """

    outputs: tuple[RequestOutput, ...]
    same_as_package: bool | None
    same_as_transformers: bool | None
    leaked: int
    mine: MyParts
    engine: Engine
    books: str = ""
    stopped: bool = False
    not_compared: str = ""

    @property
    def passed(self) -> bool:
        """Nothing is wrong: tokens equal where they were compared, no block leaked."""
        return self.same_as_package is not False and self.same_as_transformers is not False and self._books_are_right

    @property
    def _books_are_right(self) -> bool:
        return not self.leaked and not self.books

    @property
    def card(self) -> cards.Card:
        yours = self.mine.names
        tokens = sum(len(one.token_ids) for output in self.outputs for one in output.outputs)
        what = f"{_count(len(self.outputs), 'request')}, {_count(tokens, 'token')}"
        rows = [
            ("yours", _whose(self.mine) or "nothing yet"),
            ("the package's", ", ".join(_others(self.mine)) or "none"),
        ]
        for number, output in enumerate(self.outputs, 1):
            text = " ".join(output.text.split())
            cut = text if len(text) <= 80 else text[:77] + "..."
            found = f"{output.num_cached_tokens:>3} of {len(output.prompt_token_ids)} prompt tokens found"
            rows.append((f"request {number}", f"{found}: {cut}"))
        rows += [
            ("the package's engine", _verdict(self.same_as_package)),
            ("transformers", _verdict(self.same_as_transformers)),
            ("blocks", self._blocks()),
        ]
        notes = [self.not_compared] if self.not_compared else []
        return cards.Card(
            "bad" if not self.passed else "waiting" if self.stopped else "good",
            f"{self.engine.model.name} ran on {_listed(yours) or 'the package'}: {what}.",
            rows=tuple(rows),
            notes=(*notes, f"{self.mine.headline}.", *self.mine.problems),
        )

    def _blocks(self) -> str:
        total = self.engine.num_gpu_blocks
        if self._books_are_right:
            return f"all {total} are back: none leaked"
        leaked = f"{self.leaked} of {total} leaked: in use, and no request is left" if self.leaked else ""
        return "\n".join(filter(None, (leaked, self.books)))

    def __str__(self) -> str:
        return str(self.card)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.card._repr_html_()


def run_for_real(
    *,
    prompts: Prompt | Sequence[Prompt] | None = None,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    model: LoadedModel | None = None,
    live: bool = True,
    **parts_and_options: Any,
) -> RealRun:
    """Generate on your parts, show the pool while it runs, and compare the tokens: a card says what came of it.

    parts_and_options: parts by the names of their exercises, and options of the engine by theirs. The parts given here
        must pass their checks. What earlier chapters kept goes into the other slots, as in `mine`.
    prompts: by default three requests that share a prefix and, when they are done, one that asks what the first asked.
    params: for all prompts, or one for each; by default a few greedy tokens.
    model: by default the bundled one, on the CPU, in float32.
    live: False shows no pool.

    The same requests then run on the package's own parts and, where they are greedy and the model computes in float32,
    in transformers' `generate`. A kept part that breaks in the run is replaced by the package's, and the run starts
    again. The notebook's stop button ends it early, without a traceback.

    Raises CheckFailed for a part given here that does not pass, PartError where it breaks in the run all the same,
    UnknownExercise for a name that is neither an exercise nor an option.
    """
    given, options = _sort(parts_and_options)
    require(**given)
    my = assemble({name: (part, Report(name)) for name, part in only_parts(given).items()})
    model = model or _bundled_model()
    if prompts is None:
        prompts = list(_PROMPTS)
        options = _FOR_OUR_PROMPTS | options
    elif is_one_prompt(prompts):
        prompts = [prompts]
    if options.get("num_gpu_blocks") is None:
        options = _BUDGET | options
    params = params or SamplingParams(max_tokens=_MAX_TOKENS)

    engine, outputs, stopped, my = _run_on(my, model, prompts, params, options, live)
    leaked, books = _count_blocks(engine)
    package = transformers = None
    why = "You stopped it: tokens were not compared." if stopped else ""
    if not stopped:
        try:
            num_runs = 1 + len({tuple(output.prompt_token_ids) for output in outputs})
            with tqdm(total=num_runs, desc="comparing", unit="request", delay=2, leave=False) as bar:
                reference = Engine(model, **options).generate(prompts, params, use_tqdm=False)
                package = [_tokens(output) for output in outputs] == [_tokens(output) for output in reference]
                bar.update()
                why = _why_not_transformers(model, params)
                transformers = None if why else _same_as_transformers(model, outputs, bar)
                bar.update(num_runs - bar.n)  # one that stops short of its end stays on the page
        except KeyboardInterrupt:
            stopped, why = True, "You stopped it before all tokens were compared."
    return RealRun(tuple(outputs), package, transformers, leaked, my, engine, books, stopped, why)


def _run_on(
    my: MyParts, model: LoadedModel, prompts: Any, params: Any, options: dict[str, Any], live: bool
) -> tuple[Engine, list[RequestOutput], bool, MyParts]:
    """The engine, its outputs, whether it was stopped, and whose parts ran: without those kept ones that broke."""
    while True:
        try:
            engine = Engine(model, parts=my.parts, **options)
            return engine, *_generate(engine, prompts, params, live), my
        except PartError as error:
            slot = "PrefixCache" if error.part == "compute_hash" else error.part  # it is a method of the cache
            if slot not in my.names or my[slot].from_notebook:
                raise
            problem = f"The {slot} that you kept broke in this run. {error}. The package's ran in its place."
            my = my.without(slot, problem)


def _sort(parts_and_options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parts and options apart. Raises UnknownExercise for what is neither."""
    known = {option.name for option in fields(EngineConfig)}
    given = {name: value for name, value in parts_and_options.items() if name in exercises()}
    options = {name: value for name, value in parts_and_options.items() if name not in exercises()}
    for name in options.keys() - known:
        close = difflib.get_close_matches(name, [*known, *exercises()], n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise UnknownExercise(f"{name} is neither an exercise nor an option of the engine.{meant}")
    return given, options


@cache
def _bundled_model() -> LoadedModel:
    return load_model(BUNDLED_MODEL, device="cpu", dtype=torch.float32)


def _generate(engine: Engine, prompts: Any, params: Any, live: bool) -> tuple[list[RequestOutput], bool]:
    """The outputs, and whether the learner stopped it."""
    if live and cards.in_notebook():
        from pagedkv_lab.show import watch

        outputs = watch(engine, prompts, params)
        return outputs, len(outputs) < len(prompts) or any(output.finish_reason == "abort" for output in outputs)
    try:
        return engine.generate(prompts, params, use_tqdm=False), False
    except KeyboardInterrupt:
        return [], True


def _count_blocks(engine: Engine) -> tuple[int, str]:
    """Blocks in use now that nobody should use any, and what a count of everything finds wrong."""
    try:
        engine.manager.check_invariants()
        books = ""
    except (AssertionError, PartError) as error:
        books = str(error)
    return engine.manager.counts().used, books


def _tokens(output: RequestOutput) -> list[list[int]]:
    return [one.token_ids for one in output.outputs]


def _why_not_transformers(model: LoadedModel, params: SamplingParams | Sequence[SamplingParams]) -> str:
    """Why transformers' tokens need not be the same; "" where they must be."""
    each = [params] if isinstance(params, SamplingParams) else params
    if any(one.temperature > 0 for one in each):
        return "Not compared with transformers: the tokens were drawn at random (temperature above 0)."
    if model.dtype != torch.float32:
        dtype = str(model.dtype).removeprefix("torch.")
        return f"Not compared with transformers: in {dtype} two ways to compute the same may round to another token."
    return ""


def _same_as_transformers(model: LoadedModel, outputs: Sequence[RequestOutput], bar: tqdm) -> bool:
    """Whether the model's own `generate`, one request at a time, says the same. It ends at the model's end token."""
    longest: dict[tuple[int, ...], int] = {}
    for output in outputs:
        prompt = tuple(output.prompt_token_ids)
        longest[prompt] = max(longest.get(prompt, 1), *(len(tokens) for tokens in _tokens(output)))
    said = {}
    for prompt, length in longest.items():
        ids = torch.tensor([prompt], device=model.device)
        made = model.hf.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False, pad_token_id=0
        )
        said[prompt] = made[0, len(prompt) :].tolist()
        bar.update()
    return all(
        tokens[: len(theirs)] == theirs[: len(tokens)]
        for output in outputs
        for theirs in [said[tuple(output.prompt_token_ids)]]
        for tokens in _tokens(output)
    )


def _whose(my: MyParts) -> str:
    return ", ".join(f"{loan.slot} ({loan.exercise.number})" for loan in my.loans if loan.exercise)


def _others(my: MyParts) -> list[str]:
    return [loan.slot for loan in my.loans if loan.exercise is None]


def _listed(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _verdict(same: bool | None) -> str:
    return "not compared" if same is None else "the same tokens" if same else "OTHER tokens"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
