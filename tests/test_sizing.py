"""The arithmetic of KV cache memory: the article's numbers exactly, and what must hold for all others."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.sizing import (
    BUILT_IN_SHAPES,
    DTYPE_BYTES,
    GiB,
    KiB,
    MiB,
    ModelShape,
    block_table_bytes,
    blocks_for,
    contiguous_bytes,
    contiguous_requests_that_fit,
    dtype_bytes,
    human_bytes,
    kv_bytes_per_token,
    llama_parameters,
    num_blocks_that_fit,
    paged_bytes,
    paged_requests_that_fit,
    parse_bytes,
    utilization,
)

LLAMA_13B = BUILT_IN_SHAPES["Llama-2-13B"]
TOKEN_13B = LLAMA_13B.kv_bytes_per_token("float16")


# The article, section 1 and section 2.2: Llama-2-13B's shape in float16


def test_a_token_of_a_13b_model_takes_800_kib():
    per_layer = kv_bytes_per_token(num_layers=1, num_kv_heads=40, head_dim=128, bytes_per_number=2)
    assert per_layer == 20480 == 20 * KiB
    assert TOKEN_13B == 40 * per_layer == 800 * KiB


def test_a_request_with_2048_slots_takes_1_5625_gib_which_the_article_calls_1_6_gb():
    reserved = contiguous_bytes(num_requests=1, max_model_len=2048, bytes_per_token=TOKEN_13B)
    assert reserved == 1.5625 * GiB
    assert reserved == 1_677_721_600
    assert human_bytes(reserved) == "1.56 GiB"


def test_16_requests_take_25_gib_where_the_article_multiplies_its_rounded_1_6_gb_to_25_6():
    reserved = contiguous_bytes(16, 2048, TOKEN_13B)
    assert reserved == 25 * GiB
    assert reserved / 1e9 == pytest.approx(26.84, abs=0.005)
    assert reserved / 1e9 > 25.6


def test_32_users_with_2048_tokens_take_over_50_gb_twice_what_the_weights_take():
    cache = contiguous_bytes(32, 2048, TOKEN_13B)
    assert cache == 50 * GiB
    assert cache > 50e9
    weights = LLAMA_13B.weight_bytes("float16")
    assert weights / 1e9 == pytest.approx(26.03, abs=0.005), "the article's 26 GB"
    assert cache > 2 * weights


def test_20_blocks_of_16_tokens_take_250_mib_and_16_requests_of_them_3_9_gib():
    block = paged_bytes([16], block_size=16, bytes_per_token=TOKEN_13B)
    assert block == 12.5 * MiB
    request = paged_bytes([20 * 16], 16, TOKEN_13B)
    assert request == 250 * MiB
    assert paged_bytes([20 * 16] * 16, 16, TOKEN_13B) == 4000 * MiB
    assert 4000 * MiB / GiB == pytest.approx(3.9, abs=0.01)


def test_paging_takes_less_than_a_sixth_of_pre_allocation_in_the_article_s_example():
    assert contiguous_bytes(16, 2048, TOKEN_13B) / paged_bytes([320] * 16, 16, TOKEN_13B) == 6.4


def test_300_tokens_of_2048_reserved_slots_are_under_15_percent_and_paged_over_98():
    assert utilization(300, 2048) == pytest.approx(0.1465, abs=0.0001)
    assert blocks_for(300, 16) == 19
    assert utilization(300, 19 * 16) == pytest.approx(0.987, abs=0.001)


def test_17_tokens_in_blocks_of_16_leave_all_but_one_slot_of_the_second_block_empty():
    assert blocks_for(17, 16) == 2
    assert utilization(17, 2 * 16) == 17 / 32


def test_the_block_table_of_8192_tokens_takes_2_kib_and_four_times_that_with_blocks_of_4():
    assert blocks_for(8192, 16) == 512
    assert block_table_bytes(8192, 16) == 2 * KiB
    assert block_table_bytes(8192, 4) == 8 * KiB


def test_100_requests_share_the_128_blocks_of_a_2048_token_system_prompt():
    pool = 228 * 16 * TOKEN_13B
    fits = paged_requests_that_fit(pool, 2048 + 16, 16, TOKEN_13B, shared_tokens=2048)
    assert blocks_for(2048, 16) == 128
    assert fits == 100
    assert paged_requests_that_fit(pool, 2048 + 16, 16, TOKEN_13B) == 1, "without sharing"


def test_a_token_of_tinyllama_takes_22_kib_so_the_article_s_2_1_gb_can_not_come_from_its_cache():
    token = BUILT_IN_SHAPES["TinyLlama"].kv_bytes_per_token("float16")
    assert token == 22 * KiB
    assert contiguous_bytes(8, 2048, token) == 352 * MiB
    assert BUILT_IN_SHAPES["TinyLlama"].weight_bytes("float16") / 1e9 == pytest.approx(2.2, abs=0.001)


# Shapes


@pytest.mark.parametrize(
    ("name", "parameters", "kind", "token_bytes"),
    [
        ("Llama-2-13B", 13_015_864_320, "MHA", 800 * KiB),
        ("TinyLlama", 1_100_048_384, "GQA", 22 * KiB),
        ("SmolLM2-135M", 134_515_008, "GQA", 22.5 * KiB),
        ("Llama-3-8B", 8_030_261_248, "GQA", 128 * KiB),
    ],
)
def test_built_in_shapes_have_their_models_parameters_and_bytes_a_token(name, parameters, kind, token_bytes):
    shape = BUILT_IN_SHAPES[name]
    assert shape.name == name
    assert shape.num_parameters == parameters
    assert shape.attention_kind == kind
    assert shape.kv_bytes_per_token("float16") == token_bytes


def test_attention_is_mha_gqa_or_mqa_by_its_key_value_heads():
    def kind(num_key_value_heads: int) -> str:
        return ModelShape("model", 1, 8, num_key_value_heads, 64).attention_kind

    assert (kind(8), kind(4), kind(2), kind(1)) == ("MHA", "GQA", "GQA", "MQA")


def test_weights_scale_with_the_dtype_and_need_a_known_number_of_parameters():
    shape = ModelShape("model", 1, 8, 8, 64, num_parameters=1001)
    sizes = {dtype: shape.weight_bytes(dtype) for dtype in ("float32", "float16", "int8", "int4")}
    assert sizes == {"float32": 4004, "float16": 2002, "int8": 1001, "int4": 501}
    with pytest.raises(ValueError, match="mystery: the number of parameters is unknown"):
        ModelShape("mystery", 1, 8, 8, 64).weight_bytes()


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_a_dtype_is_known_by_its_name_and_by_torch_s(dtype):
    assert dtype_bytes(dtype) == dtype_bytes(f"torch.{dtype}") == DTYPE_BYTES[dtype]


def test_bytes_a_token_scale_with_the_dtype():
    sizes = {dtype: LLAMA_13B.kv_bytes_per_token(dtype) for dtype in ("float32", "bfloat16", "int8", "int4")}
    assert sizes == {"float32": 1600 * KiB, "bfloat16": 800 * KiB, "int8": 400 * KiB, "int4": 200 * KiB}
    assert kv_bytes_per_token(1, 1, 1, 0.5) == 1, "two packed numbers"


@pytest.mark.parametrize("dtype", ["half", "float", "", "torch.int32", "fp16"])
def test_an_unknown_dtype_is_refused_with_those_to_choose_from(dtype):
    with pytest.raises(ValueError, match=r"is not known here; choose one of float64, .*int4"):
        dtype_bytes(dtype)


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 100,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


def without(*names: str) -> dict:
    return {key: value for key, value in CONFIG.items() if key not in names}


def test_a_shape_is_read_from_a_config_mapping():
    shape = ModelShape.from_config(CONFIG, "mine")
    assert shape == ModelShape("mine", 3, 8, 2, 8, num_parameters=shape.num_parameters, max_position_embeddings=512)
    by_hand = 3 * (64 * 64 * 2 + 64 * 16 * 2 + 3 * 64 * 100 + 2 * 64) + 2 * 1000 * 64 + 64
    assert shape.num_parameters == by_hand


def test_a_shape_is_read_from_a_config_object():
    class HuggingFaceConfig:
        def to_dict(self) -> dict:
            return CONFIG | {"_name_or_path": "org/model"}

    shape = ModelShape.from_config(HuggingFaceConfig())
    assert (shape.name, shape.head_dim) == ("org/model", 8)


def test_a_shape_is_read_from_a_config_file_or_the_model_s_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    other_file = tmp_path / "variant.json"
    other_file.write_text(json.dumps(CONFIG))
    for path in (folder, str(folder), folder / "config.json"):
        assert ModelShape.from_config(path) == ModelShape.from_config(CONFIG, "my-model")
    assert ModelShape.from_config(other_file).name == "variant"
    assert ModelShape.from_config(folder, "called otherwise").name == "called otherwise"


def test_gpt2_s_names_for_its_sizes_are_understood():
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
    shape = ModelShape.from_config(gpt2)
    assert shape == ModelShape("gpt2", 12, 12, 12, 64, num_parameters=None, max_position_embeddings=1024)
    assert shape.attention_kind == "MHA"
    assert shape.kv_bytes_per_token("float16") == 36 * KiB


def test_a_head_dim_of_its_own_goes_before_hidden_size_by_heads():
    assert ModelShape.from_config(CONFIG | {"head_dim": 32}).head_dim == 32
    assert ModelShape.from_config(CONFIG | {"head_dim": None}).head_dim == 8
    assert ModelShape.from_config(without("hidden_size") | {"head_dim": 32}).head_dim == 32


def test_without_key_value_heads_every_head_keeps_its_own():
    assert ModelShape.from_config(without("num_key_value_heads")).num_key_value_heads == 8
    assert ModelShape.from_config(CONFIG | {"num_key_value_heads": None}).num_key_value_heads == 8


def test_the_decoder_s_sizes_of_a_multimodal_config_lie_in_its_text_config():
    config = {"model_type": "vision", "num_hidden_layers": 99, "text_config": CONFIG}
    assert ModelShape.from_config(config, "mine") == ModelShape.from_config(CONFIG, "mine")


def test_what_a_config_lacks_is_named_all_of_it():
    with pytest.raises(ValueError, match=r"^this config is not a decoder's config: it lacks num_hidden_layers$"):
        ModelShape.from_config(without("num_hidden_layers"))
    with pytest.raises(
        ValueError,
        match=r"^bert is .* it lacks num_hidden_layers, num_attention_heads, hidden_size or head_dim$",
    ):
        ModelShape.from_config({}, "bert")


@pytest.mark.parametrize("field", ["vocab_size", "intermediate_size", "hidden_size"])
def test_without_what_the_parameters_depend_on_their_number_is_unknown_and_the_rest_is_read(field):
    shape = ModelShape.from_config(without(field) | {"head_dim": 8})
    assert shape.num_parameters is None
    assert shape.kv_bytes_per_token("float16") == 2 * 3 * 2 * 8 * 2


def test_a_file_that_holds_no_config_is_refused_by_name(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="list holds no model config: its JSON is not an object"):
        ModelShape.from_config(tmp_path / "list.json")
    with pytest.raises(ValueError, match="Expecting property name"):
        ModelShape.from_config(tmp_path / "broken.json")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        ModelShape.from_config(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_key_value_heads": 8},
        {"num_key_value_heads": 1},
        {"tie_word_embeddings": True},
        {"head_dim": 16},
    ],
    ids=str,
)
def test_llama_parameters_are_as_many_as_transformers_builds(change):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = CONFIG | {"tie_word_embeddings": False} | change
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if k != "model_type"}))
    assert llama_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


# What holds for all sizes

lengths = st.lists(st.integers(0, 5000), max_size=20)
block_sizes = st.integers(1, 300)
tokens = st.integers(1, 10**6)


@given(st.integers(0, 10**6), block_sizes)
def test_the_blocks_of_a_sequence_hold_it_and_one_less_would_not(num_tokens, block_size):
    blocks = blocks_for(num_tokens, block_size)
    assert blocks * block_size >= num_tokens
    assert (blocks - 1) * block_size < num_tokens or blocks == 0


@given(lengths, block_sizes, tokens)
def test_paging_never_reserves_a_whole_block_of_empty_slots_for_a_sequence(lengths, block_size, token_bytes):
    """At most block_size - 1 slots a sequence are reserved and empty."""
    reserved = paged_bytes(lengths, block_size, token_bytes)
    used = sum(lengths) * token_bytes
    assert used <= reserved <= used + len(lengths) * (block_size - 1) * token_bytes


@given(st.integers(1, 5000), st.integers(1, 50), tokens)
def test_pre_allocation_is_paging_with_one_block_as_long_as_the_longest_request(longest, requests, token_bytes):
    lengths = [1 + (longest - 1) * i // requests for i in range(requests)]
    paged = paged_bytes(lengths, block_size=longest, bytes_per_token=token_bytes)
    assert paged == contiguous_bytes(requests, longest, token_bytes)
    memory = 7 * longest * token_bytes + longest
    fit = paged_requests_that_fit(memory, longest, longest, token_bytes)
    assert fit == contiguous_requests_that_fit(memory, longest, token_bytes)


@given(lengths, block_sizes, tokens)
def test_blocks_of_one_token_waste_nothing_and_no_size_takes_less(lengths, block_size, token_bytes):
    least = paged_bytes(lengths, 1, token_bytes)
    assert least == sum(lengths) * token_bytes
    assert paged_bytes(lengths, block_size, token_bytes) >= least


@given(st.integers(0, 10**12), block_sizes, tokens)
def test_as_many_blocks_fit_as_fit_and_not_one_more(memory, block_size, token_bytes):
    fit = num_blocks_that_fit(memory, block_size, token_bytes)
    assert fit * block_size * token_bytes <= memory < (fit + 1) * block_size * token_bytes


@given(st.integers(0, 10**12), st.integers(1, 10**5), tokens)
def test_as_many_contiguous_requests_fit_as_fit_and_not_one_more(memory, longest, token_bytes):
    fit = contiguous_requests_that_fit(memory, longest, token_bytes)
    assert contiguous_bytes(fit, longest, token_bytes) <= memory < contiguous_bytes(fit + 1, longest, token_bytes)


def blocks_of_requests(requests: int, tokens_each: int, block_size: int, shared_tokens: int) -> set:
    """The blocks that these requests hold, one by one: full blocks of the prefix are held in common."""
    blocks: set = set()
    for request in range(requests):
        own = 0
        for i in range(blocks_for(tokens_each, block_size)):
            is_shared = (i + 1) * block_size <= min(shared_tokens, tokens_each)
            own += not is_shared
            blocks.add(("shared", i) if is_shared else (request, i))
        if own == 0:
            blocks.add((request, "next token"))
    return blocks


@given(
    pool=st.integers(0, 40),
    tokens_each=st.integers(1, 30),
    block_size=st.integers(1, 6),
    shared=st.integers(0, 35),
)
def test_as_many_paged_requests_fit_as_counting_them_one_by_one_finds(pool, tokens_each, block_size, shared):
    by_hand = next(
        requests - 1
        for requests in itertools.count(1)
        if len(blocks_of_requests(requests, tokens_each, block_size, shared)) > pool
    )
    memory = pool * block_size * 10 + 9
    assert paged_requests_that_fit(memory, tokens_each, block_size, 10, shared_tokens=shared) == by_hand


def test_a_memory_below_zero_fits_nothing():
    """What is left after weights that are larger than the card."""
    assert num_blocks_that_fit(-5, 16, 100) == 0
    assert contiguous_requests_that_fit(-5, 16, 100) == 0
    assert paged_requests_that_fit(-5, 16, 16, 100) == 0
    assert paged_requests_that_fit(50 * 1600, 16, 16, 100, shared_tokens=16) == 49
    assert paged_requests_that_fit(1600, 64, 16, 100, shared_tokens=48) == 0, "the prefix alone doesn't fit"


@pytest.mark.parametrize("block_size", [0, -16])
def test_a_block_without_slots_is_refused(block_size):
    with pytest.raises(ValueError, match=f"block_size must be at least 1, not {block_size}"):
        blocks_for(10, block_size)


def test_no_tokens_take_no_blocks_and_waste_nothing():
    assert blocks_for(0, 16) == 0
    assert paged_bytes([], 16, 100) == paged_bytes([0, 0], 16, 100) == 0
    assert block_table_bytes(0, 16) == 0
    assert utilization(0, 0) == 1.0


@given(lengths.filter(any), block_sizes)
def test_utilization_is_between_0_and_1(lengths, block_size):
    reserved = sum(blocks_for(n, block_size) for n in lengths) * block_size
    assert 0 < utilization(sum(lengths), reserved) <= 1


# Sizes as text


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("24GB", 24 * 10**9),
        ("24GiB", 24 * GiB),
        ("24 gib", 24 * GiB),
        ("24g", 24 * 10**9),
        ("512MB", 512 * 10**6),
        ("512 MiB", 512 * MiB),
        ("800KiB", 800 * KiB),
        ("1.5k", 1500),
        ("0.5GiB", GiB // 2),
        ("2TB", 2 * 10**12),
        ("1TiB", 1 << 40),
        (" 7 B ", 7),
        ("7", 7),
        ("1e9", 10**9),
        ("4.35GB", 4_350_000_000),
        (4096, 4096),
        (1e9, 10**9),
    ],
)
def test_a_size_may_be_written_in_any_usual_way(text, num_bytes):
    assert parse_bytes(text) == num_bytes
    assert isinstance(parse_bytes(text), int)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "GB",
        "ib",
        "lots",
        "24XB",
        "24GBB",
        "24BB",
        "24KBiB",
        "24iB",
        "24bib",
        "24 G B",
        "2 4GB",
        "1.5.2GB",
        "1,5GB",
        "0",
        "0GB",
        "0.2",
        "-24GB",
        -1,
        0,
        0.4,
        "nan",
        "inf",
        "-inf",
        "1e999GB",
        "1e-10GB",
        float("inf"),
        float("nan"),
        None,
        True,
        "24GB of it",
    ],
)
def test_what_is_no_size_above_zero_is_refused_with_how_to_write_one(text):
    with pytest.raises(ValueError, match=r"above zero; write it like 24GB, 24GiB or 512MB") as caught:
        parse_bytes(text)
    assert str(caught.value).startswith(f"{text!r} is not a memory size"), "it is said as it was written"


@given(st.integers(1, 2**53), st.sampled_from(["", "b", "B", " b"]))
def test_whole_bytes_are_read_exactly(num_bytes, unit):
    assert parse_bytes(f"{num_bytes}{unit}") == parse_bytes(num_bytes) == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KiB, "1 KiB"),
        (800 * KiB, "800 KiB"),
        (22.5 * KiB, "22.5 KiB"),
        (12.5 * MiB, "12.5 MiB"),
        (250 * MiB, "250 MiB"),
        (1.5625 * GiB, "1.56 GiB"),
        (25 * GiB, "25 GiB"),
        (1600 * GiB, "1600 GiB"),
        (-2 * GiB, "-2 GiB"),
        (99.97 * MiB, "100 MiB"),
    ],
)
def test_bytes_are_shown_with_a_binary_unit_and_three_digits(num_bytes, text):
    assert human_bytes(num_bytes) == text


@given(st.integers(1, 10**14))
def test_what_is_shown_reads_back_to_half_a_percent(num_bytes):
    assert math.isclose(parse_bytes(human_bytes(num_bytes)), num_bytes, rel_tol=0.005)
