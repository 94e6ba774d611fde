"""Outputs lose what differs from run to run, and nothing that a reader looks at."""

import pytest
from nbformat.v4 import new_output

from pagedkv_lab.course.builder.scrub import WIDGET_VIEW, Scrubber

SCRUBBER = Scrubber({"/h/user": "~", "/h/user/lab": "pagedkv-lab", "/": "never"})


def stream(text, name="stdout"):
    cleaned = SCRUBBER.clean([new_output("stream", name=name, text=text)])
    return cleaned[0].text if cleaned else None


def display(**data):
    cleaned = SCRUBBER.clean([new_output("display_data", data)])
    return cleaned[0].data if cleaned else None


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("<function f at 0x7f3a2b4c5d60>", "<function f at 0x...>"),
        ("<object at 0x10a2b3c4d>", "<object at 0x...>"),
        ("pointer 0x7F3A2B4C5D60.", "pointer 0x...."),
        ("/tmp/ipykernel_123/4567.py:3: UserWarning", "<cell>:3: UserWarning"),
        ("/var/folders/x/ipykernel_9/1.py", "<cell>"),
        ("File /h/user/lab/pagedkv_lab/x.py:3", "File pagedkv-lab/pagedkv_lab/x.py:3"),
        ("/h/user/other", "~/other"),
        ("'/h/user'", "'~'"),
    ],
)
def test_what_belongs_to_one_run_or_one_machine_is_replaced(text, cleaned):
    assert stream(text) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "640x480",
        "0xff",
        "0xdeadbeef",
        "sha256 0x7f3a2b4c5d607f3a2b4c5d607f3a2b4c5d607f3a2b4c5d60",
        "/h/users/lab",
        "/h/user-b",
        "a / b",
        "100% of 3/4 [sic]",
    ],
)
def test_what_only_looks_like_it_stays(text):
    assert stream(text) == text


def test_errors_are_cleaned_in_every_line():
    error = new_output("error", ename="E", evalue="at 0x7f3a2b4c5d60", traceback=["/h/user/lab/a.py", "x"])
    [cleaned] = SCRUBBER.clean([error])
    assert (cleaned.evalue, cleaned.traceback) == ("at 0x...", ["pagedkv-lab/a.py", "x"])


@pytest.mark.parametrize(
    "bar",
    [
        "100%|██████████| 10/10 [00:01<00:00,  7.51it/s]",
        "Loading weights:  50%|█████     | 5/10 [00:00<00:00, 31.20it/s, layer=3]",
        "12.3kB [00:00, 4.1MB/s]",
        "tokens:   7%|▋         | 1.20k/16.4k [00:00<?, ?tok/s]",
    ],
)
def test_a_progress_bar_on_stderr_is_gone_and_what_stands_beside_it_stays(bar):
    assert stream(f"  0%|   \r{bar}\r{bar}\nwatch out\n", name="stderr") == "watch out\n"
    assert stream(f"\r{bar}\n", name="stderr") is None


def test_an_overwritten_line_is_shown_as_it_ends():
    assert stream("1\r2\r3\nnext\r\n") == "3\nnext\n"


def test_a_widget_leaves_its_picture_or_text_and_no_id():
    assert display(**{WIDGET_VIEW: {"model_id": "a1"}, "image/svg+xml": "<svg/>", "text/plain": "Pool"}) == {
        "image/svg+xml": "<svg/>",
        "text/plain": "Pool",
    }


@pytest.mark.parametrize(
    "data",
    [
        {WIDGET_VIEW: {"model_id": "a1"}},
        {WIDGET_VIEW: {"model_id": "a1"}, "text/plain": "Output()"},
        {WIDGET_VIEW: {"model_id": "a1"}, "text/plain": "  0%|          | 0/3 [00:00<?, ?it/s]"},
    ],
)
def test_a_widget_with_nothing_to_show_leaves_nothing(data):
    assert display(**data) is None


def test_text_inside_json_is_cleaned_and_pictures_are_not():
    picture = "iVBOR/0x7f3a2b4c5d60/h/user/lab="
    data = display(**{"application/json": {"a": ["/h/user/lab", 3]}, "image/png": picture})
    assert data == {"application/json": {"a": ["pagedkv-lab", 3]}, "image/png": picture}
