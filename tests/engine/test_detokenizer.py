"""Text as it comes, token by token: letters are whole, stop strings are cut, and in the end nothing is missing."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import letters_model, tiny_model

from pagedkv_lab.engine.detokenizer import Detokenizer

TEXTS = ["plain", "äöü", "naïve café", "日本語", "👍", "a👩‍👩‍👧b", "🇩🇪!", "mixed: é日👍\n end"]


def bytes_tokenizer() -> Any:
    """A byte for a token: every letter beyond ASCII takes several."""
    return tiny_model("toy").tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_a_letter_of_several_tokens_comes_whole_or_not_at_all(text):
    tokenizer = bytes_tokenizer()
    tokens = tokenizer(text)["input_ids"]
    assert len(tokens) == len(text.encode())
    detokenizer = Detokenizer(tokenizer)
    for token in tokens:
        assert detokenizer.push(token) is False
        assert text.startswith(detokenizer.text), "half a letter was given out"
    assert detokenizer.text == text


@settings(max_examples=80)
@given(st.text(max_size=12))
def test_any_text_comes_back_as_it_was(text):
    tokenizer = bytes_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    for token in tokenizer(text)["input_ids"]:
        detokenizer.push(token)
    assert detokenizer.text == text


@settings(max_examples=80)
@given(st.lists(st.integers(0, 256), max_size=16))
def test_in_the_end_the_text_is_what_the_tokenizer_makes_of_all_tokens_at_once(tokens):
    """Also where the bytes are no text at all, and where special tokens are among them."""
    tokenizer = bytes_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    for token in tokens:
        detokenizer.push(token)
    detokenizer.finish()
    assert detokenizer.text == tokenizer.decode(tokens, skip_special_tokens=True)


def test_half_a_letter_is_held_back_until_nothing_comes_any_more():
    tokenizer = bytes_tokenizer()
    tokens = tokenizer("ok 👍")["input_ids"]
    detokenizer = Detokenizer(tokenizer)
    for token in tokens[:-1]:
        detokenizer.push(token)
    assert detokenizer.text == "ok "
    detokenizer.finish()
    assert detokenizer.text == tokenizer.decode(tokens[:-1])
    assert detokenizer.text.startswith("ok ")
    assert len(detokenizer.text) > 3


def test_special_tokens_are_no_text():
    tokenizer = bytes_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    for token in [*tokenizer("ab")["input_ids"], tokenizer.eos_token_id]:
        detokenizer.push(token)
    detokenizer.finish()
    assert detokenizer.text == "ab"


# Stop strings


def push_text(detokenizer: Detokenizer, text: str, tokenizer: Any) -> int | None:
    """Push token by token until a stop string is met. Returns how many tokens it took, None if it never was."""
    for i, token in enumerate(tokenizer(text)["input_ids"], 1):
        if detokenizer.push(token):
            return i
    return None


@pytest.mark.parametrize("stop", ["l", "llo", "o w", " ", "world"])
def test_a_stop_string_over_several_tokens_is_met_with_its_last_one_and_cut_off(stop):
    text = "hello world"
    detokenizer = Detokenizer(bytes_tokenizer(), [stop])
    took = push_text(detokenizer, text, bytes_tokenizer())
    assert took == text.index(stop) + len(stop)
    assert detokenizer.text == text[: text.index(stop)]
    detokenizer.finish()
    assert detokenizer.text == text[: text.index(stop)], "what was cut off came back"


def test_a_stop_string_in_the_middle_of_a_token_is_met():
    tokenizer = letters_model().tokenizer
    detokenizer = Detokenizer(tokenizer, ["bc"])
    assert push_text(detokenizer, "abcdef", tokenizer) == 2  # "ab", "cd"
    assert detokenizer.text == "a"
    detokenizer.finish()
    assert detokenizer.text == "a"


def test_a_stop_string_of_letters_that_take_several_tokens_is_met():
    detokenizer = Detokenizer(bytes_tokenizer(), ["👍é"])
    assert push_text(detokenizer, "so 👍👍é!", bytes_tokenizer()) == 3 + 4 + 4 + 2
    assert detokenizer.text == "so 👍"


def test_where_two_stop_strings_are_met_at_once_the_one_that_begins_first_counts():
    tokenizer = letters_model().tokenizer
    for stops in (["d", "c"], ["c", "d"], ["cd", "d"]):
        detokenizer = Detokenizer(tokenizer, stops)
        assert push_text(detokenizer, "abcdef", tokenizer) == 2
        assert detokenizer.text == "ab"


def test_the_end_of_a_stop_string_alone_is_not_one():
    detokenizer = Detokenizer(bytes_tokenizer(), ["abab!"])
    assert push_text(detokenizer, "ababab! and more", bytes_tokenizer()) == 7
    assert detokenizer.text == "ab"


# What a stream may show


def test_what_may_become_a_stop_string_is_not_shown_yet():
    tokenizer = bytes_tokenizer()
    detokenizer = Detokenizer(tokenizer, ["END", "##"])
    shown = []
    for token in tokenizer("aE bEN c#d##")["input_ids"]:
        detokenizer.push(token)
        if (text := detokenizer.text[: detokenizer.safe_length]) not in shown:
            shown.append(text)
    # E, EN and # wait until what follows says that they were no stop string; the last two are one.
    assert shown == ["a", "aE ", "aE b", "aE bEN ", "aE bEN c", "aE bEN c#d"]


@settings(max_examples=150)
@given(st.text("abc", max_size=14), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_what_was_shown_once_is_never_taken_back(text, stops):
    tokenizer = bytes_tokenizer()
    detokenizer = Detokenizer(tokenizer, stops)
    shown = ""
    for token in tokenizer(text)["input_ids"]:
        stopped = detokenizer.push(token)
        if stopped:
            break
        assert detokenizer.text[: detokenizer.safe_length].startswith(shown)
        shown = detokenizer.text[: detokenizer.safe_length]
    detokenizer.finish()
    assert detokenizer.text.startswith(shown)
    # The text ends where the first stop string is complete, at the beginning of the one that begins first there.
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        begins = [min(ends) - len(stop) for stop in stops if text[: min(ends)].endswith(stop)]
        assert detokenizer.text == text[: min(begins)]
    else:
        assert detokenizer.text == text


class SlowTokenizer:
    """One without a Rust core: all there is is `decode`."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_a_tokenizer_without_a_fast_core_gives_the_same(text):
    detokenizer = Detokenizer(SlowTokenizer())
    for token in text.encode():
        detokenizer.push(token)
        assert text.startswith(detokenizer.text)
    assert detokenizer.text == text
