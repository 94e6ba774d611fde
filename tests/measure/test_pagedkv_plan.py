"""`pagedkv plan`: the numbers, where they are read from, and what it says to bad input."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_lab.cli import main
from pagedkv_lab.measure.model_size import KVLayers, ModelSize
from pagedkv_lab.measure.plan import Plan
from pagedkv_lab.measure.plan_report import rows, verdict
from pagedkv_lab.measure.read_model import read_model_size
from pagedkv_lab.sizing import BUILT_IN_SHAPES

GB = 10**9
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}


def write_config(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_safetensors(file, shape):
    size = 4 * math.prod(shape)
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


def plan_of(model, **options):
    defaults = {"memory_bytes": 40 * GB, "users": 32, "tokens": 2048}
    return Plan(read_model_size(model), **(defaults | options))


def run(capsys, *arguments):
    """Exit status, output, and the lines on stderr."""
    status = main(["plan", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err.splitlines()


# The arithmetic.


def test_a_token_of_llama_2_13b_takes_800_kib_and_the_line_says_how():
    plan = plan_of("Llama-2-13B")
    assert plan.bytes_per_token == 819_200
    assert dict(rows(plan))["A token's cache"] == (
        "2 (key and value) x 40 layers x 40 KV heads x 128 numbers x 2 bytes"
        " = 819,200 bytes = 800 KiB a token"
    )


def test_the_weights_of_llama_2_13b_are_its_published_parameters_in_two_bytes_each():
    assert plan_of("Llama-2-13B").weight_bytes == 13_015_864_320 * 2


def test_contiguous_reserves_the_longest_sequence_and_paged_whole_blocks():
    plan = plan_of("TinyLlama", tokens=17, block_size=16)
    assert plan.contiguous_bytes_per_user == 2048 * plan.bytes_per_token
    assert plan.paged_bytes_per_user == 32 * plan.bytes_per_token
    shorter = plan_of("TinyLlama", tokens=17, max_model_len=100)
    assert shorter.contiguous_bytes_per_user == 100 * plan.bytes_per_token


def test_ten_percent_stay_free_unless_told_otherwise():
    assert plan_of("TinyLlama").usable_bytes == 36 * GB
    assert plan_of("TinyLlama", gpu_memory_utilization=0.5).usable_bytes == 20 * GB


def test_the_verdict_says_how_many_do_fit_when_not_all_do():
    plan = plan_of("Llama-2-13B")
    assert (plan.paged_users, plan.contiguous_users, plan.fits) == (5, 2, False)
    assert verdict(plan).startswith("32 users of 2,048 tokens do not fit: 5 do (contiguous: 2).")


def test_the_verdict_says_that_all_fit_and_what_is_left():
    plan = plan_of("TinyLlama", memory_bytes=24 * GB)
    assert plan.fits
    assert plan.left_bytes == plan.cache_bytes - 32 * plan.paged_bytes_per_user
    assert verdict(plan).startswith("32 users of 2,048 tokens fit, and 16.7 GiB are left")


def test_weights_that_do_not_fit_alone_are_named_with_both_numbers():
    plan = plan_of("Llama-2-13B", memory_bytes=24 * GB)
    assert plan.paged_users == plan.contiguous_users == 0
    assert "the weights alone take 24.2 GiB and 20.1 GiB may be used" in verdict(plan)


@given(
    name=st.sampled_from(sorted(BUILT_IN_SHAPES)),
    users=st.integers(1, 1000),
    tokens=st.integers(1, 2048),
    block_size=st.sampled_from([1, 4, 16, 128]),
    utilization=st.floats(0.01, 1),
    dtype=st.sampled_from(["float32", "float16", "int8", "int4"]),
)
def test_the_memory_that_it_asks_for_is_just_enough(name, users, tokens, block_size, utilization, dtype):
    options = {"users": users, "tokens": tokens, "block_size": block_size, "dtype": dtype}
    options["gpu_memory_utilization"] = utilization
    needed = plan_of(name, **options).memory_needed_bytes
    assert plan_of(name, memory_bytes=needed, **options).fits
    assert not plan_of(name, memory_bytes=needed - 1, **options).fits


@given(st.integers(1, 80 * GB), st.integers(1, 2048), st.integers(1, 64))
def test_what_fits_never_takes_more_than_there_is(memory, tokens, block_size):
    plan = plan_of("TinyLlama", memory_bytes=memory, tokens=tokens, block_size=block_size)
    room = max(0, plan.cache_bytes)
    assert plan.paged_users * plan.paged_bytes_per_user <= room
    assert plan.contiguous_users * plan.contiguous_bytes_per_user <= room
    assert (plan.paged_users + 1) * plan.blocks_per_user > plan.num_blocks


def test_layers_of_different_sizes_are_added_up():
    layers = (KVLayers(25, 4, 256, 256), KVLayers(5, 4, 512, 512))
    model = ModelSize("mixed", "GQA", layers, 10**9, "counted", None, 4096)
    plan = Plan(model, 40 * GB, users=1, tokens=1)
    assert plan.bytes_per_token == 2 * 2 * (25 * 4 * 256 + 5 * 4 * 512)
    assert "25 layers x 4 KV heads x 256 numbers x 2 bytes + 2 (key" in dict(rows(plan))["A token's cache"]


# Quantized caches.


@pytest.mark.parametrize(("kv_cache_dtype", "share"), [("int8", 2), ("int4", 4)])
@pytest.mark.parametrize("name", sorted(BUILT_IN_SHAPES))
def test_apart_from_scales_a_quantized_token_takes_half_and_a_quarter_of_16_bits(name, kv_cache_dtype, share):
    plan = plan_of(name, kv_cache_dtype=kv_cache_dtype)
    assert plan.data_bytes_per_token * share == plan_of(name).bytes_per_token == plan.plain_bytes_per_token
    assert plan.bytes_per_token == plan.data_bytes_per_token + plan.scale_bytes_per_token


def test_data_and_scales_of_a_token_are_told_apart_with_what_they_are_of_a_plain_one():
    plan = plan_of("SmolLM2-135M", kv_cache_dtype="int8")
    told = dict(rows(plan))
    assert told["A token's cache"].endswith("x 64 numbers x 1 bytes = 11,520 bytes of data")
    # 30 layers, 3 heads, one float16 scale for a key and one for a value.
    assert told["Its scales"] == "360 bytes, blocks of 16: 11,520 + 360 bytes = 11.6 KiB a token"
    assert told["Beside float16"] == "23,040 bytes a token: the data are 0.5 of that, with scales 0.516"
    assert "Tails" not in told


def test_int4_has_scales_by_channel_that_a_block_shares_and_tails():
    plan = plan_of("SmolLM2-135M", kv_cache_dtype="int4", block_size=16)
    # Scale and zero: for a value 4 bytes a token, for 64 channels of keys 4 bytes each a block of 16.
    assert plan.scale_bytes_per_token == 30 * 3 * (4 + 4 * 64 // 16) == 1_800
    assert plan_of("SmolLM2-135M", kv_cache_dtype="int4", block_size=32).scale_bytes_per_token == 30 * 3 * (4 + 8)
    assert plan.tail_bytes_per_user == 2 * 16 * 23_040
    assert plan.paged_bytes_per_user == 128 * 16 * (5_760 + 1_800) + 2 * 16 * 23_040
    told = dict(rows(plan))
    assert told["Tails"] == "2 partly filled blocks a user in float16 x 16 tokens x 22.5 KiB = 720 KiB a user"
    assert "x 118 KiB + 720 KiB of tails = 15.5 MiB a user" in told["Paged"]
    assert "beside the tails of 32 users" in told["Cache"]


@given(
    name=st.sampled_from(sorted(BUILT_IN_SHAPES)),
    kv_cache_dtype=st.sampled_from(["int8", "int4"]),
    users=st.integers(1, 500),
    tokens=st.integers(1, 2048),
    block_size=st.sampled_from([1, 7, 16, 24]),
    memory=st.integers(GB // 2, 80 * GB),
)
def test_what_fits_of_a_quantized_cache_fits_with_scales_and_tails(
    name, kv_cache_dtype, users, tokens, block_size, memory
):
    options = {"users": users, "tokens": tokens, "block_size": block_size, "kv_cache_dtype": kv_cache_dtype}
    plan = plan_of(name, memory_bytes=memory, **options)
    room = max(0, plan.cache_bytes)
    assert plan.paged_users * plan.paged_bytes_per_user <= room < (plan.paged_users + 1) * plan.paged_bytes_per_user
    needed = plan.memory_needed_bytes
    assert plan_of(name, memory_bytes=needed, **options).fits
    assert not plan_of(name, memory_bytes=needed - 1, **options).fits
    # The engine's pool holds the users, too: its blocks are those that fit beside the tails.
    if plan.fits:
        assert plan.num_blocks >= users * plan.blocks_per_user


def test_more_users_fit_the_fewer_bits_a_number_has():
    users = [plan_of("Llama-2-13B", kv_cache_dtype=dtype).paged_users for dtype in ("auto", "int8", "int4")]
    assert users == [5, 11, 17]


def test_odd_heads_are_refused_in_int4():
    model = ModelSize("odd", "MHA", (KVLayers(2, 4, 9, 9),), 10**6, "counted", None, 4096)
    with pytest.raises(ValueError, match="these keys have 9 a head: take int8"):
        Plan(model, GB, users=1, tokens=1, kv_cache_dtype="int4")
    assert Plan(model, GB, users=1, tokens=1, kv_cache_dtype="int8").data_bytes_per_token == 2 * 4 * 18


# Where a model's size comes from.


@pytest.mark.parametrize("name", ["Llama-2-13B", "llama-2-13b", "LLAMA-2-13B"])
def test_a_built_in_name_is_found_in_any_case(name):
    assert read_model_size(name).name == "Llama-2-13B"


def test_a_folder_and_its_config_json_are_the_same_model(tmp_path):
    write_config(tmp_path, **LLAMA)
    assert read_model_size(tmp_path) == read_model_size(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("model_type", "config", "expected"),
    [
        ("gpt2", {}, ("MHA", (KVLayers(12, 12, 64, 64),), 124_439_808, 1024)),
        ("falcon", {"num_hidden_layers": 1}, ("MQA", (KVLayers(1, 1, 64, 64),), None, 2048)),
        ("qwen3", {"num_hidden_layers": 1, "num_key_value_heads": 4, "head_dim": 128}, None),
    ],
)
def test_the_models_own_code_says_what_it_caches(tmp_path, model_type, config, expected):
    size = read_model_size(write_config(tmp_path, model_type=model_type, **config))
    assert "building the model" in size.parameters_from
    if expected is None:
        assert size.kv_layers == (KVLayers(1, 4, 128, 128),)
        return
    attention, layers, parameters, longest = expected
    assert (size.attention, size.kv_layers, size.max_model_len) == (attention, layers, longest)
    assert parameters in (None, size.num_parameters)


def test_layers_without_keys_are_not_counted_and_the_plan_says_so(tmp_path):
    config = {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
    config |= {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    config |= {"num_experts": 2, "num_experts_per_tok": 1, "vocab_size": 64}
    size = read_model_size(write_config(tmp_path, model_type="qwen3_next", **config))
    assert size.kv_layers == (KVLayers(1, 2, 32, 32),)
    assert "3 of 4 layers keep no keys of their own and are not counted" in size.notes


def test_a_sliding_window_is_told_and_counted_in_full(tmp_path):
    size = read_model_size(write_config(tmp_path, **LLAMA | {"model_type": "mistral", "sliding_window": 32}))
    assert size.kv_layers == (KVLayers(2, 2, 16, 16),)
    assert any("the last 32 tokens" in note for note in size.notes)


def test_quantized_files_keep_the_number_of_parameters_of_the_model(tmp_path):
    plain = read_model_size(write_config(tmp_path, **LLAMA)).num_parameters
    write_config(tmp_path, **LLAMA, quantization_config={"quant_method": "gptq", "bits": 4})
    write_safetensors(tmp_path / "model.safetensors", [3, 5])
    size = read_model_size(tmp_path)
    assert size.num_parameters == plain
    assert size.stored_bytes == (tmp_path / "model.safetensors").stat().st_size


@pytest.fixture
def without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)


def test_without_transformers_a_llama_is_counted_from_its_fields_and_the_plan_says_so(tmp_path, monkeypatch):
    write_config(tmp_path, **LLAMA)
    built = read_model_size(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    counted = read_model_size(tmp_path)
    assert counted.num_parameters == built.num_parameters
    assert counted.kv_layers == built.kv_layers
    assert counted.parameters_from == "counted as a Llama's, from the config's fields"
    assert any("transformers is missing" in note for note in counted.notes)


@pytest.mark.usefixtures("without_transformers")
def test_without_transformers_the_files_beside_the_config_are_counted_first(tmp_path):
    write_config(tmp_path, **LLAMA)
    write_safetensors(tmp_path / "model-1.safetensors", [3, 5])
    write_safetensors(tmp_path / "model-2.safetensors", [7])
    size = read_model_size(tmp_path)
    assert (size.num_parameters, size.parameters_from) == (22, "counted in its safetensors files")


@pytest.mark.usefixtures("without_transformers")
def test_the_safetensors_index_alone_tells_the_weight_of_a_model_that_nobody_can_count(tmp_path):
    fields = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    write_config(tmp_path, **fields)
    with pytest.raises(ValueError, match="number of its parameters is unknown"):
        read_model_size(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 12345}}')
    plan = plan_of(tmp_path, tokens=16)
    assert plan.weight_bytes == 12345
    assert "as its files are stored" in dict(rows(plan))["Weights"]


def test_reading_a_model_loads_no_weights_and_opens_no_socket(tmp_path, monkeypatch):
    import socket

    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert read_model_size(write_config(tmp_path, **LLAMA)).num_parameters
    auto_map = {"AutoConfig": "somebody/model--config.Config", "AutoModelForCausalLM": "somebody/model--m.M"}
    write_config(tmp_path, **LLAMA | {"model_type": "brand_new", "auto_map": auto_map})
    assert "as a Llama's" in read_model_size(tmp_path).parameters_from


# The command line.

GOOD = ("--memory", "24GB", "--users", 32, "--tokens", 2048)


def test_piped_output_is_plain_one_line_a_number_and_ends_in_the_verdict():
    command = [sys.executable, "-m", "pagedkv_lab.cli", "plan", "Llama-3-8B", *map(str, GOOD)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert lines[0] == "Llama-3-8B (GQA, float16) on 24 GB"
    assert lines[-1].startswith("Verdict: 32 users of 2,048 tokens do not fit: 20 do (contiguous: 5).")
    assert done.stderr == ""


def test_json_has_all_numbers_and_the_verdict(tmp_path, capsys):
    file = tmp_path / "plan.json"
    status, _, _ = run(capsys, "Llama-3-8B", *GOOD, "--json", file)
    numbers = json.loads(file.read_text())
    assert status == 0
    assert numbers["kv_bytes_per_token"] == 131_072
    assert numbers["weight_bytes"] == 2 * numbers["parameters"] == 2 * 8_030_261_248
    assert numbers["kv_cache_bytes"] == numbers["usable_bytes"] - numbers["weight_bytes"]
    assert numbers["paged"]["users_that_fit"] == 20
    assert numbers["contiguous"] == {"bytes_per_user": 2**30, "bytes": 2**35, "users_that_fit": 5}
    assert numbers["block_table_bytes_per_user"] == 512
    assert numbers["verdict"].startswith("32 users")


@pytest.mark.parametrize(("kv_cache_dtype", "data", "scales"), [("auto", 23_040, 0), ("int8", 11_520, 360)])
def test_json_has_data_and_scales_of_a_token_apart(tmp_path, capsys, kv_cache_dtype, data, scales):
    file = tmp_path / "plan.json"
    status, out, _ = run(capsys, "SmolLM2-135M", *GOOD, "--kv-cache-dtype", kv_cache_dtype, "--json", file)
    numbers = json.loads(file.read_text())
    assert status == 0
    assert numbers["kv_cache_dtype"] == kv_cache_dtype
    assert (numbers["kv_data_bytes_per_token"], numbers["kv_scale_bytes_per_token"]) == (data, scales)
    assert numbers["kv_bytes_per_token"] == data + scales
    assert numbers["kv_tail_bytes_per_user"] == 0
    assert ("cache in int8" in out.splitlines()[0]) == (kv_cache_dtype == "int8")


def test_json_has_a_share_of_scales_that_is_no_whole_number(tmp_path, capsys):
    file = tmp_path / "plan.json"
    run(capsys, "SmolLM2-135M", *GOOD, "--kv-cache-dtype", "int4", "--block-size", 7, "--json", file)
    numbers = json.loads(file.read_text())
    assert numbers["kv_scale_bytes_per_token"] == pytest.approx(30 * 3 * (4 + 4 * 64 / 7))
    assert numbers["kv_tail_bytes_per_user"] == 2 * 7 * 23_040


def test_help_says_what_the_option_does(capsys):
    status, out, _ = run(capsys, "--help")
    words = " ".join(out.replace("│", " ").split())
    assert status == 0
    assert "--kv-cache-dtype" in words
    assert "half and a quarter of 16 bits" in words


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Llama-2-31B", *GOOD), "Did you mean Llama-2-13B?"),
        (("meta-llama/llama-3-8b-hf", *GOOD), "Did you mean Llama-3-8B?"),
        (("no/such/config.json", *GOOD), "No built-in shape and no file is called 'no/such/config.json'"),
        (("TinyLlama", "--memory", "rubbish", *GOOD[2:]), "'rubbish' is not a memory size"),
        (("TinyLlama", "--memory", "-3GB", *GOOD[2:]), "'-3GB' is not a memory size"),
        (("TinyLlama", *GOOD, "--users", 0), "--users must be from 1"),
        (("TinyLlama", *GOOD, "--tokens", -1), "--tokens must be from 1"),
        (("TinyLlama", *GOOD, "--users", "many"), "'--users'"),
        (("TinyLlama", *GOOD, "--block-size", 0), "--block-size must be from 1"),
        (("TinyLlama", *GOOD, "--max-model-len", 0), "--max-model-len must be from 1"),
        (("TinyLlama", *GOOD, "--max-model-len", 100), "--tokens 2,048 is more than --max-model-len, 100"),
        (("TinyLlama", *GOOD, "--tokens", 4096), "more than what TinyLlama was made for, 2,048"),
        (("TinyLlama", *GOOD, "--gpu-memory-utilization", 1.1), "above 0 and at most 1, not 1.1"),
        (("TinyLlama", *GOOD, "--gpu-memory-utilization", 0), "above 0 and at most 1, not 0"),
        (("TinyLlama", *GOOD, "--gpu-memory-utilization", "nan"), "above 0 and at most 1, not nan"),
        (("TinyLlama", *GOOD, "--dtype", "float12"), "dtype 'float12' is not known"),
        (("TinyLlama", *GOOD, "--kv-cache-dtype", "fp8"), "kv_cache_dtype must be auto, int8, int4, not 'fp8'"),
        (("TinyLlama", *GOOD, "--json", "no/such/folder/plan.json"), "folder/plan.json: No such file"),
        (("TinyLlama", *GOOD[2:]), "--memory"),
    ],
)
def test_bad_input_ends_in_one_clear_line_and_status_2(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert len(err) == 1
    assert says in err[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "its JSON is not an object"),
        ("{}", "it lacks num_hidden_layers, num_attention_heads"),
        (b"\xff\xfe", "is not JSON"),
        ('{"model_type": "vit"}', "vit models don't generate text"),
        ('{"model_type": "bert", "num_hidden_layers": 1}', "bert models keep no keys"),
        ('{"model_type": "t5", "is_encoder_decoder": true}', "encoder-decoder"),
        (json.dumps(LLAMA | {"model_type": "x", "architectures": ["XForMaskedLM"]}), "XForMaskedLM"),
        (json.dumps(LLAMA | {"model_type": "x", "num_attention_heads": 0}), "not a decoder's config"),
        (json.dumps(LLAMA | {"model_type": "x", "num_hidden_layers": "two"}), "not a decoder's config"),
        (json.dumps(LLAMA | {"model_type": ["x"], "num_hidden_layers": -1}), "not all above 0"),
        (json.dumps(LLAMA | {"num_hidden_layers": "two"}), "not a decoder's config"),
    ],
)
def test_a_file_that_is_no_decoders_config_is_refused_in_one_line(text, says, tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    status, out, err = run(capsys, file, *GOOD, "--max-model-len", 4096)
    assert status == 2
    assert out == ""
    assert len(err) == 1
    assert says in err[0]


def test_a_folder_without_a_config_is_refused_in_one_line(tmp_path, capsys):
    status, _, err = run(capsys, tmp_path, *GOOD)
    assert status == 2
    assert len(err) == 1
    assert "config.json can't be read" in err[0]
