"""The comparison: what it measures on the toy, what its numbers mean, and when it says that none of them count."""

import json
import re
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer

from pagedkv_lab.cli import main
from pagedkv_lab.engine import Engine, LoadedModel, SamplingParams, load_model
from pagedkv_lab.engine.models import _bundled_dense_copy
from pagedkv_lab.measure.comparison import Comparison, Run, compare, transformers_generate
from pagedkv_lab.measure.workloads import QUESTIONS, shared_system_prompt
from pagedkv_lab.show import terminal
from pagedkv_lab.sizing import blocks_for

RUNS = ("contiguous", "paged", "paged+prefix")
MAX_TOKENS, MAX_MODEL_LEN = 6, 256
#: Prompts of 96 to 99 tokens that share the first 96: a byte is a token of the toy, and a block holds 16.
PROMPTS = ["The house rules of the library are these. " * 2 + "Questions: a" + tail for tail in ("", "?", "b!", "cde")]
#: Bytes of one token: 2 (key and value) × 2 layers × 2 KV heads × 16 numbers × 4 bytes.
TOKEN_BYTES = 512


@pytest.fixture(scope="module")
def toy() -> LoadedModel:
    return load_model("toy", device="cpu")


@pytest.fixture(scope="module", params=["same-concurrency", "same-memory"])
def result(request, toy) -> Comparison:
    torch.set_num_threads(1)
    return compare(toy, PROMPTS, mode=request.param, max_tokens=MAX_TOKENS, max_model_len=MAX_MODEL_LEN)


@pytest.fixture(scope="module")
def same_concurrency(toy) -> Comparison:
    torch.set_num_threads(1)
    return compare(toy, PROMPTS, max_tokens=MAX_TOKENS, max_model_len=MAX_MODEL_LEN)


@pytest.fixture(scope="module")
def same_memory(toy) -> Comparison:
    torch.set_num_threads(1)
    return compare(toy, PROMPTS, mode="same-memory", max_tokens=MAX_TOKENS, max_model_len=MAX_MODEL_LEN)


# What comes out


def test_the_json_has_the_promised_keys(result):
    numbers = json.loads(json.dumps(result.to_json()))
    assert {
        "model", "dtype", "device", "threads", "requests", "mode", "runs", "transformers_tokens_per_s",
        "tokens_equal_transformers", "blocks_leaked",
    } <= numbers.keys()  # fmt: skip
    for run in numbers["runs"]:
        assert {
            "name", "kv_reserved_peak_bytes", "kv_used_peak_bytes", "utilization", "output_tokens_per_s",
            "ttft_mean_s", "prefix_hit_rate", "preemptions",
        } <= run.keys()  # fmt: skip
    assert [run["name"] for run in numbers["runs"]] == list(RUNS)


def test_it_says_what_ran(result):
    assert (result.model, result.dtype, result.device, result.threads) == ("toy", "float32", "cpu", 1)
    assert (result.requests, result.prompt_tokens) == (4, sum(len(prompt) for prompt in PROMPTS))
    assert result.output_tokens <= 4 * MAX_TOKENS


def test_the_tokens_are_transformers_own_and_no_block_is_lost(result):
    assert result.tokens_equal_transformers
    assert result.blocks_leaked == 0


def test_rates_and_times_are_above_zero(result):
    assert result.transformers_tokens_per_s > 0
    for run in result.runs:
        assert run.output_tokens_per_s > 0
        assert run.ttft_mean_s > 0


def test_utilization_is_what_is_used_over_what_is_reserved(result):
    for run in result.runs:
        assert run.utilization == pytest.approx(run.kv_used_peak_bytes / run.kv_reserved_peak_bytes)
        assert 0 < run.utilization <= 1
        assert run.kv_reserved_peak_bytes <= result.pool_bytes


# What the numbers are at the same concurrency: all four requests run at once in every engine


def test_contiguous_reserves_the_longest_sequence_for_every_request(same_concurrency):
    run = same_concurrency.run("contiguous")
    assert run.kv_reserved_peak_bytes == 4 * MAX_MODEL_LEN * TOKEN_BYTES == same_concurrency.pool_bytes
    assert run.utilization < 0.45, "the requests reach some 105 of 256 tokens"


def test_paged_reserves_whole_blocks_and_each_request_its_own(same_concurrency):
    # The last output token's keys and values are never needed.
    blocks = sum(blocks_for(len(prompt) + MAX_TOKENS - 1, 16) for prompt in PROMPTS)
    assert same_concurrency.run("paged").kv_reserved_peak_bytes == blocks * 16 * TOKEN_BYTES


def test_with_a_prefix_cache_the_shared_blocks_are_reserved_once(same_concurrency):
    shared = 96 // 16
    own = sum(blocks_for(len(prompt) + MAX_TOKENS - 1, 16) - shared for prompt in PROMPTS)
    assert same_concurrency.run("paged+prefix").kv_reserved_peak_bytes == (shared + own) * 16 * TOKEN_BYTES


def test_each_step_of_the_article_takes_less_memory_than_the_one_before(same_concurrency):
    contiguous, paged, with_prefix = (run.kv_reserved_peak_bytes for run in same_concurrency.runs)
    assert with_prefix < paged < contiguous


def test_the_same_tokens_are_held_whether_paged_or_not_and_fewer_where_they_are_shared(same_concurrency):
    contiguous, paged, with_prefix = (run.kv_used_peak_bytes for run in same_concurrency.runs)
    assert contiguous == paged == sum(len(prompt) + MAX_TOKENS - 1 for prompt in PROMPTS) * TOKEN_BYTES
    assert with_prefix == paged - 3 * 96 * TOKEN_BYTES


def test_only_the_prefix_cache_hits_and_nobody_is_preempted(same_concurrency):
    hit_rate = 3 * 96 / sum(len(prompt) for prompt in PROMPTS)
    assert [run.prefix_hit_rate for run in same_concurrency.runs] == [0, 0, pytest.approx(hit_rate)]
    assert [run.preemptions for run in same_concurrency.runs] == [0, 0, 0]


# At the same memory: room for two contiguous requests


def test_all_runs_get_the_memory_of_two_contiguous_requests(same_memory):
    assert same_memory.pool_bytes == 2 * MAX_MODEL_LEN * TOKEN_BYTES
    assert same_memory.run("contiguous").kv_reserved_peak_bytes == same_memory.pool_bytes
    assert same_memory.run("contiguous").kv_used_peak_bytes < same_memory.pool_bytes / 2


def test_paged_fills_that_memory_with_more_requests(same_memory, same_concurrency):
    assert same_memory.run("paged").kv_used_peak_bytes > 1.8 * same_memory.run("contiguous").kv_used_peak_bytes
    assert same_memory.run("paged+prefix").kv_reserved_peak_bytes == (
        same_concurrency.run("paged+prefix").kv_reserved_peak_bytes
    ), "shared, all four fit into it at once"


def test_a_model_that_is_shorter_than_the_longest_sequence_asked_for_sets_the_limit(toy):
    result = compare(toy, PROMPTS[:1], max_tokens=2, max_model_len=100_000)
    assert result.max_model_len == toy.max_model_len == 2048
    assert result.run("contiguous").kv_reserved_peak_bytes == 2048 * TOKEN_BYTES


def test_every_step_and_the_last_part_can_be_watched(toy):
    seen, transformers = [], []

    def on_step(name, report, done, expected):
        assert not transformers, "transformers comes last"
        seen.append((name, report.step, done, expected))

    watch = {"on_step": on_step, "on_transformers": lambda: transformers.append(1)}
    compare(toy, PROMPTS[:2], max_tokens=3, max_model_len=128, **watch)
    # Prompt and first token in one step, then one token a step.
    assert seen == [(name, step, 2 * step, 6) for name in RUNS for step in (1, 2, 3)]
    assert transformers == [1]


# When something is wrong


def run_named(name: str, reserved: int = 1000, rate: float = 10.0) -> Run:
    return Run(name, reserved, 500, 0.5, rate, 0.1, 0.0, 0)


@pytest.fixture
def made_up() -> Comparison:
    return Comparison(
        model="m", dtype="float32", device="cpu", threads=1, requests=8, mode="same-concurrency", pool_bytes=4000,
        max_model_len=2048, prompt_tokens=800, output_tokens=80,
        runs=(run_named("contiguous", 4000), run_named("paged", 2000), run_named("paged+prefix", 1000, 25.0)),
        transformers_tokens_per_s=12.0, tokens_equal_transformers=True, blocks_leaked=0,
    )  # fmt: skip


def test_the_verdict_holds_paged_with_prefix_against_contiguous(made_up):
    assert "used 25% of the cache memory" in made_up.verdict()
    assert "2.5× its output tokens a second" in made_up.verdict()
    assert "Same tokens as transformers, no block leaked" in made_up.verdict()
    assert "\n" not in made_up.verdict()


def test_where_tokens_differ_the_verdict_names_no_number(made_up):
    verdict = replace(made_up, tokens_equal_transformers=False).verdict()
    assert verdict == "The tokens differ from transformers' own: nothing above counts."


def test_where_blocks_leaked_the_verdict_says_how_many_and_no_other_number(made_up):
    assert replace(made_up, blocks_leaked=3).verdict() == "3 blocks leaked: nothing above counts."


def test_wrong_tokens_in_one_run_are_noticed(toy, monkeypatch):
    from pagedkv_lab.engine import engine as engine_module

    sample = engine_module.sample
    monkeypatch.setattr(engine_module, "sample", lambda *args: [(token + 1) % 256 for token in sample(*args)])
    assert not compare(toy, PROMPTS[:2], max_tokens=2, max_model_len=128).tokens_equal_transformers


def test_leaked_blocks_are_counted_over_all_runs(toy, monkeypatch):
    monkeypatch.setattr(Engine, "_finish", lambda self, seq, reason: forget(self, seq, reason))

    def forget(engine, seq, reason):
        """Finish, and keep the blocks."""
        seq.finish_reason = reason
        engine.scheduler.remove(seq)

    result = compare(toy, ["x" * 20], max_tokens=2, max_model_len=128)
    assert result.blocks_leaked == 1 + 2 + 2, "one row, then the two blocks of a run each"


# transformers' own


def test_transformers_tokens_end_with_the_end_token_and_do_not_depend_on_the_padding(toy):
    prompts = [toy.encode(prompt) for prompt in ("a", "something longer than that")]
    alone = [transformers_generate(toy, [prompt], 8)[0][0] for prompt in prompts]
    together, seconds = transformers_generate(toy, prompts, 8)
    assert together == alone
    assert seconds > 0
    end = alone[0][2]
    toy.hf.generation_config.eos_token_id = end
    try:
        first, second = transformers_generate(toy, prompts, 8)[0]
    finally:
        toy.hf.generation_config.eos_token_id = toy.tokenizer.eos_token_id
    assert first == alone[0][: alone[0].index(end) + 1]
    assert second[: len(first)] == alone[1][: len(first)]


# The requests


def test_the_demo_s_prompts_share_more_than_512_tokens_and_differ_after_them():
    tokenizer = AutoTokenizer.from_pretrained(_bundled_dense_copy(), local_files_only=True)
    chats = shared_system_prompt()
    assert len(chats) == 8
    options = {"add_generation_prompt": True, "return_dict": True}
    ids = [tokenizer.apply_chat_template(chat, **options)["input_ids"] for chat in chats]
    columns = zip(*ids, strict=False)
    shared = next(i for i, column in enumerate(columns) if len(set(column)) > 1)
    assert shared > 512
    assert len({tuple(tokens[shared:]) for tokens in ids}) == 8
    assert max(map(len, ids)) + 32 <= 2048, "prompt and output fit into what contiguous sets aside"


def test_more_requests_than_questions_are_still_all_different():
    chats = shared_system_prompt(20)
    assert len({chat[-1]["content"] for chat in chats}) == 20
    assert len({chat[0]["content"] for chat in chats}) == 1
    assert [chat[-1]["content"] for chat in chats[: len(QUESTIONS)]] == list(QUESTIONS)


# The command


@pytest.fixture
def short_prompts(monkeypatch):
    monkeypatch.setattr(terminal, "shared_system_prompt", lambda: PROMPTS[:2])


@pytest.mark.parametrize(("option", "mode"), [([], "same-concurrency"), (["--same-memory"], "same-memory")])
def test_demo_writes_its_numbers_and_shows_them(short_prompts, tmp_path, capsys, option, mode):
    file = tmp_path / "demo.json"
    assert main(["demo", "--model", "toy", "--json", str(file), *option]) == 0
    numbers = json.loads(file.read_text())
    assert (numbers["model"], numbers["mode"], numbers["requests"]) == ("toy", mode, 2)
    assert [run["name"] for run in numbers["runs"]] == list(RUNS)
    assert numbers["tokens_equal_transformers"] is True
    assert numbers["blocks_leaked"] == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for word in (*RUNS, "transformers", "Same tokens as transformers, no block leaked."):
        assert word in " ".join(shown.out.split())


@pytest.mark.parametrize(("changes", "verdict"), [
    ({"tokens_equal_transformers": False}, "The tokens differ"),
    ({"blocks_leaked": 2}, "2 blocks leaked"),
])  # fmt: skip
def test_demo_exits_with_1_where_its_verdict_is_no(made_up, monkeypatch, tmp_path, capsys, changes, verdict):
    monkeypatch.setattr(terminal, "compare", lambda *args, **options: replace(made_up, **changes))
    file = tmp_path / "demo.json"
    assert main(["demo", "--model", "toy", "--json", str(file)]) == 1
    assert verdict in capsys.readouterr().out
    assert json.loads(file.read_text())["requests"] == 8, "the numbers are written all the same"


def test_demo_on_a_model_too_short_for_the_prompts_is_told_in_one_line(capsys):
    """The toy has a token for every byte: the system prompt alone is longer than its 2,048."""
    assert main(["demo", "--model", "toy"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("pagedkv: The prompt has ")
    assert "max_model_len is 2048" in line


def test_demo_on_a_model_that_can_not_be_had_is_told_in_one_line(capsys):
    assert main(["demo", "--model", "some-lab/some-model"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "`hf download some-lab/some-model`" in line


def test_demo_refuses_a_file_that_can_not_be_written_before_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(terminal, "load_model", lambda name: pytest.fail("it ran"))
    file = tmp_path / "nowhere" / "demo.json"
    assert main(["demo", "--model", "toy", "--json", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"pagedkv: {file}: No such file or directory"


def test_demo_that_is_refused_leaves_numbers_from_before_as_they_were(tmp_path):
    file = tmp_path / "demo.json"
    file.write_text("{}")
    assert main(["demo", "--model", "some-lab/some-model", "--json", str(file)]) == 2
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("used", "cached", "total", "bar"),
    [
        (0, 0, 10, "·" * 32),
        (10, 0, 10, "█" * 32),
        (0, 10, 10, "▒" * 32),
        (5, 5, 20, "█" * 8 + "▒" * 8 + "·" * 16),
        (1, 1, 5000, "█▒" + "·" * 30),
        (4999, 1, 5000, "█" * 32),
    ],
)
def test_the_bar_of_the_pool_is_as_wide_whatever_is_in_it_and_shows_even_one_block(used, cached, total, bar):
    assert terminal.pool_bar(used, cached, total).plain == bar


def test_in_a_terminal_each_run_has_a_line_with_its_pool_and_how_far_it_is(toy):
    console = Console(file=StringIO(), force_terminal=True, width=120, color_system=None)
    display = terminal.DemoDisplay(console)
    with display.running():
        watch = {"on_step": display.on_step, "on_transformers": display.on_transformers}
        compare(toy, PROMPTS[:2], max_tokens=3, max_model_len=128, **watch)
    shown = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", console.file.getvalue())  # less what moves the cursor
    last = [line for line in shown.splitlines() if line][-4:]
    for name, line in zip(RUNS, last, strict=False):
        assert re.search(rf"{re.escape(name)} .* used \(peak +\d+\) of .* 6 of up to 6 tokens", line), line
    assert "transformers generate()" in " ".join(last[3].split())


def test_the_engine_of_the_demo_is_the_one_that_generates(toy):
    """`compare` runs its own loop; what comes out is what `generate` gives."""
    engine = Engine(toy, num_gpu_blocks=32, max_model_len=128)
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=MAX_TOKENS), use_tqdm=False)
    expected, _ = transformers_generate(toy, [toy.encode(prompt) for prompt in PROMPTS], MAX_TOKENS)
    assert [output.token_ids for output in outputs] == expected
