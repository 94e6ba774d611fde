"""What `check` does around the diagnosis: what it shows, what it raises, what it remembers, what it refuses."""

import json
import subprocess
import sys

import pytest

from pagedkv_lab.course import CheckFailed, check, examine, progress, require
from pagedkv_lab.course.checks import UnknownExercise
from pagedkv_lab.course.checks.registry import chapters, exercises


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def blocks_for(num_tokens, block_size):
    return -(-num_tokens // block_size)


def test_a_pass_is_shown_with_what_was_tried_and_remembered(capsys):
    check(blocks_for=blocks_for)
    shown = capsys.readouterr().out
    assert "✓ `blocks_for` passed: 12 cases, all right." in shown
    assert "Tried: a full last block" in shown
    assert "blocks_for" in progress().passed


def test_a_failure_says_what_is_wrong_with_an_example_and_a_hint_and_is_not_remembered():
    with pytest.raises(CheckFailed) as caught:
        check(blocks_for=lambda num_tokens, block_size: num_tokens // block_size)
    text = str(caught.value)
    assert "It rounds down." in text
    assert "blocks_for(num_tokens=1, block_size=4)" in text
    assert "Open hint 1" in text
    assert not progress().passed


def test_a_stub_is_said_to_be_a_stub():
    def kv_bytes_per_token(*args):
        """Nothing here."""

    with pytest.raises(CheckFailed, match=r"`kv_bytes_per_token` returned None\. It's still the stub"):
        check(kv_bytes_per_token=kv_bytes_per_token)


def test_several_at_once_remember_those_that_pass_and_raise_for_the_first_that_does_not(capsys):
    with pytest.raises(CheckFailed) as caught:
        check(contiguous_bytes=lambda *args: None, blocks_for=blocks_for)
    assert caught.value.report.exercise == "contiguous_bytes"
    assert progress().passed == {"blocks_for"}


def test_a_pass_stays_when_a_later_version_fails():
    check(blocks_for=blocks_for)
    with pytest.raises(CheckFailed):
        check(blocks_for=lambda *args: None)
    assert progress().passed == {"blocks_for"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check(blocks_fro=blocks_for), "Did you mean blocks_for"),
        (lambda: check(zzz=blocks_for), "The exercises are blocks_for, kv_bytes_per_token"),
        (lambda: check(blocks_for), r"check\(blocks_for=blocks_for\)"),
        (lambda: check(), r"check\(your_function=your_function\)"),
    ],
)
def test_a_call_that_names_no_exercise_says_how_to_call(call, message):
    with pytest.raises(UnknownExercise, match=message):
        call()


def test_require_lets_right_functions_through_in_silence(capsys):
    require(blocks_for=blocks_for)
    assert capsys.readouterr().out == ""
    assert not progress().passed


def test_require_says_which_exercise_to_finish():
    with pytest.raises(
        CheckFailed, match=r"needs `num_blocks_that_fit`, which is still the stub. Finish exercise 1\.4"
    ):
        require(blocks_for=blocks_for, num_blocks_that_fit=lambda *args: None)
    with pytest.raises(CheckFailed, match=r"is not right yet\. It rounds down\..*Finish exercise 0\.1"):
        require(blocks_for=lambda n, size: n // size)


def test_the_html_has_words_beside_the_colour_and_no_raw_markup():
    html = examine("blocks_for", lambda *args: "<b>")._repr_html_()
    assert "is not right yet" in html
    assert "✗" in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "var(--jp-error-color1, #" in html


def test_printing_is_shown_only_with_the_case_that_fails(capsys):
    def chatty(num_tokens, block_size):
        print("tokens", num_tokens)
        return num_tokens // block_size + (num_tokens == 1)

    report = examine("blocks_for", chatty)
    assert capsys.readouterr().out == ""
    assert not report.passed


def test_a_raise_names_the_line_of_the_learners_code():
    def divides(num_tokens, block_size):
        rest = num_tokens % block_size
        return block_size // (rest - rest)

    report = examine("blocks_for", divides)
    assert report.diagnosis.detail.endswith("return block_size // (rest - rest)")
    assert "ZeroDivisionError" in report.diagnosis.message


def test_float_answers_pass_with_a_remark():
    report = examine("kv_bytes_per_token", lambda L, h, d, b: 2.0 * L * h * d * b)
    assert report.passed
    assert "floats" in report.notes[0]


def test_exercises_have_unique_names_numbers_and_chapters():
    listed = [exercise for chapter in chapters() for exercise in chapter.exercises]
    assert len(listed) == len(exercises()) == len({exercise.number for exercise in listed})
    assert [chapter.folder for chapter in chapters()] == sorted(chapter.folder for chapter in chapters())


def test_a_failing_check_ends_a_script_with_an_error_and_its_message(tmp_path):
    script = "from pagedkv_lab.course import check\ncheck(blocks_for=lambda n, size: None)\n"
    environment = {"PAGEDKV_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", env=environment, check=False
    )
    assert ran.returncode == 1
    assert "`blocks_for` returned None. It's still the stub" in ran.stderr


def test_checks_need_neither_torch_nor_ipython():
    script = (
        "import sys, json\nimport pagedkv_lab.course.checks\nfrom pagedkv_lab.course import examine\n"
        "examine('blocks_for', lambda n, size: 0)\n"
        "print(json.dumps([name for name in ('torch', 'transformers', 'IPython') if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == []
