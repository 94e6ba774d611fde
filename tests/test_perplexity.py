"""What a quantized cache costs in quality: the goals on a part of the text, and what the suite reports."""

import math
from functools import cache

import pytest
import torch

from benchmarks import perplexity, suites, table
from benchmarks.perplexity import AUTO, CACHES, TEXT, Scorer
from pagedkv_lab.sizing import KV_CACHE_DTYPES, KVQuantization

BY_NAME = {way.name: way for way in CACHES}


@pytest.fixture(scope="module")
def scorer():
    return Scorer(num_tokens=401)


@pytest.fixture(scope="module")
def exact(scorer):
    return scorer.surprise(AUTO)


@pytest.fixture(scope="module")
def costs(scorer, exact):
    """What a cache costs: the increase in perplexity, its standard error, and how far single tokens are off."""

    @cache
    def costs(name):
        surprise = scorer.surprise(BY_NAME[name])
        plain, spread = math.exp(exact.mean()), (surprise - exact).std().item()
        return math.exp(surprise.mean()) - plain, plain * spread / math.sqrt(len(exact)), spread

    return costs


def test_the_exact_cache_gives_the_models_own_perplexity(scorer, exact):
    ids = torch.tensor(scorer.token_ids)
    with torch.inference_mode():
        logits = scorer.model.hf(ids[None]).logits[0, :-1].float()
    own = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")
    assert len(exact) == 400
    torch.testing.assert_close(exact, own, rtol=1e-3, atol=1e-3)


def test_int8_costs_at_most_two_hundredths(costs):
    """As far as so short a text can tell: rounding alone moves the increase by most of its standard error. Single
    tokens tell more: 7 bits instead of 8 would double how far they are off."""
    increase, standard_error, spread = costs("int8")
    assert BY_NAME["int8"].goal == 0.02
    assert increase - 2 * standard_error < 0.02
    assert 0 < spread < 0.05


def test_int4_with_keys_by_channel_costs_at_most_a_half_and_something(costs):
    increase, _, spread = costs("int4")
    assert BY_NAME["int4"].goal == 0.5
    assert 0.02 < increase < 0.5
    assert spread < 0.2


def test_int4_with_keys_by_token_costs_several_times_as_much(costs):
    assert costs("int4, keys by token")[0] > 3 * costs("int4")[0]


def test_the_suite_measures_the_engines_options_and_both_ways_for_each_number_of_bits():
    assert {BY_NAME[name].quantization for name in ("int8", "int4")} == {KV_CACHE_DTYPES[n] for n in ("int8", "int4")}
    of = {way.quantization for way in CACHES} - {None}
    assert of == {KVQuantization(bits, axis) for bits in (8, 4) for axis in ("token", "channel")}


def test_the_text_is_long_enough(scorer):
    assert 1500 <= len(scorer.model.encode(TEXT.read_text(encoding="utf-8"))) - 1 <= 2000


def test_the_quick_suite_runs_and_its_file_makes_rows(tmp_path, capsys):
    file = tmp_path / "perplexity.json"
    assert suites.run_suite("perplexity", json_file=file, quick=True) == 0
    assert "127 predicted tokens of perplexity_text.txt, blocks of 16" in capsys.readouterr().out
    result = table.read_results(tmp_path)["perplexity"]
    assert [row["cache"] for row in result["rows"]] == [way.name for way in CACHES]
    assert [row["data_bytes_per_token"] for row in result["rows"]] == [46_080, 11_520, 11_520, 5_760, 5_760]
    assert [row["scale_bytes_per_token"] for row in result["rows"]] == [0, 360, 900, 720, 1_800]
    assert result["rows"][0]["increase"] == 0


def test_a_row_of_the_table_tells_perplexity_its_increase_and_the_bytes():
    def row(cache, value, data, scales):
        return {
            "cache": cache, "perplexity": value, "increase": value - 9, "standard_error": 0.0071, "goal": None,
            "data_bytes_per_token": data, "scale_bytes_per_token": scales,
        }  # fmt: skip

    rows = [row("auto", 9.0, 4000, 0), row("int8", 9.0128, 1000, 62.25)]
    assert list(map(str, table.perplexity_rows({"dtype": "float32", "rows": rows}))) == [
        "| perplexity, keys and values in int8: 1,000 + 62 bytes a token | 9.013 (+0.013 ± 0.007) "
        "| float32, 4,000 bytes a token: 9.000 |  |  |"
    ]


def test_the_terminals_table_names_the_goals():
    rows = [
        {
            "cache": way.name, "perplexity": 9.0, "increase": 0.0, "standard_error": 0.0, "goal": way.goal,
            "data_bytes_per_token": 1, "scale_bytes_per_token": 0,
        }
        for way in CACHES
    ]  # fmt: skip
    shown = {"model": "m", "dtype": "float32", "text": "t", "predicted_tokens": 1, "block_size": 16, "rows": rows}
    lines = perplexity.table(shown).splitlines()
    assert len(lines) == 1 + len(CACHES) + 1
    assert "+0.02" in lines[2]
    assert "+0.5" in lines[5]
