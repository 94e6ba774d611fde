"""The CPU kernels are compiled when `make` sets up, and the engine does without them where numba is missing."""

import json
from pathlib import Path

import pytest
from tiny_models import own_tokens, random_prompt, tiny_model

from pagedkv_lab.attention import numba_paged
from pagedkv_lab.engine import Engine, SamplingParams, compile_kernels, glue

needs_numba = pytest.mark.skipif(not numba_paged.HAS_NUMBA, reason="numba is not installed: nothing is compiled")


def tokens(**options) -> tuple[str, list[int]]:
    engine = Engine(tiny_model("llama"), num_gpu_blocks=16, max_model_len=64, **options)
    output = engine.generate([random_prompt(20)], SamplingParams(max_tokens=8), use_tqdm=False)[0]
    return engine.attn_backend, output.token_ids


@needs_numba
def test_once_they_are_compiled_no_step_waits_for_a_compiler(monkeypatch):
    compile_kernels.compile_kernels()
    for module in ("attention.numba_kernel", "attention.numba_prefill", "engine.glue_kernels"):
        monkeypatch.setattr(f"pagedkv_lab.{module}.address_of", lambda function: pytest.fail(f"compiled {function}"))
    compile_kernels.compile_kernels()
    assert tokens() == ("numba_paged", own_tokens(tiny_model("llama"), random_prompt(20), 8))


def test_without_numba_there_is_nothing_to_compile_and_the_tokens_are_the_same(monkeypatch):
    for module in (numba_paged, glue, compile_kernels):
        monkeypatch.setattr(module, "HAS_NUMBA", False)
    compile_kernels.compile_kernels()
    assert tokens() == ("torch_paged", own_tokens(tiny_model("llama"), random_prompt(20), 8))


def test_a_backend_that_needs_numba_is_refused_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(numba_paged, "HAS_NUMBA", False)
    with pytest.raises(ValueError, match=r"numba_paged.*needs numba"):
        tokens(attn_backend="numba_paged")


def test_no_built_notebook_shows_what_a_compiler_or_a_library_said_on_stderr():
    root = Path(__file__).resolve().parents[2]
    notebooks = [*root.glob("notebooks/*.ipynb"), *root.glob("solutions/*/*.ipynb")]
    assert notebooks
    for path in notebooks:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            said = [out["text"] for out in cell.get("outputs", []) if out.get("name") == "stderr"]
            assert not said, f"{path.name}, cell {cell['id']}: {said}"
