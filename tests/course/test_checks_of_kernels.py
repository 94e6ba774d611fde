"""The check of a kernel where no kernel can run: no pass, and in words; and the memory that a kernel runs in."""

import pytest
import torch

from pagedkv_lab.course.checks import CheckFailed, check, examine
from pagedkv_lab.course.checks import triton_decode as module
from pagedkv_lab.course.checks.guarded_memory import GuardedMemory, with_room
from pagedkv_lab.course.checks.report import NOT_CHECKED, UNWRITTEN


def written(*args):
    raise NameError("name 'decode_kernel' is not defined")


@pytest.fixture
def no_triton(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)


def test_without_triton_it_is_not_checked_and_no_pass(no_triton):
    report = examine("triton_decode", written)
    assert not report.passed
    assert report.diagnosis.code == NOT_CHECKED
    assert "was not checked" in str(report)
    assert "pip install triton" in str(report)


def test_without_triton_the_cell_fails_in_words(no_triton):
    with pytest.raises(CheckFailed) as failed:
        check(triton_decode=written)
    assert failed.value.line.startswith("It was NOT checked, and it is no pass: Triton is not installed")


def test_a_stub_is_called_one_without_triton_too(no_triton):
    assert examine("triton_decode", lambda *args: None).diagnosis.code == UNWRITTEN


def test_triton_that_neither_interprets_nor_has_a_gpu(monkeypatch):
    language = pytest.importorskip("triton.language")
    monkeypatch.setattr(language, "cdiv", object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = examine("triton_decode", written)
    assert report.diagnosis.code == NOT_CHECKED
    assert "Restart the kernel" in str(report)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, 3),
        lambda: torch.zeros(2, 3),
        lambda: torch.empty_like(torch.ones(2, 3)),
        lambda: torch.ones(2, 3).new_empty(2, 3),
        lambda: torch.full((2, 3), 7.0),
        lambda: torch.ones(2, 3).clone(),
        lambda: torch.ones(2, 3) * 0,
        lambda: torch.empty(2, 3, dtype=torch.float16),
    ],
)
def test_what_is_written_beside_a_new_tensor_shows(make):
    for step, beside in ((5, False), (6, True), (-1, True)):
        with GuardedMemory() as memory:
            made = make()
        assert made.shape == (2, 3)
        place = made.storage_offset() + step
        torch.empty(0, dtype=made.dtype).set_(made.untyped_storage())[place] = float("nan")
        assert memory.written_beside == beside


def test_new_tensors_are_what_they_should_be():
    with GuardedMemory():
        assert torch.zeros(3).tolist() == [0.0, 0.0, 0.0]
        assert torch.full((2,), 7.0).tolist() == [7.0, 7.0]
        assert torch.empty(4).isnan().all()
        ones = torch.ones(4)
        assert ones.view(2, 2).data_ptr() == ones.data_ptr()
        assert ones.fill_(2.0) is ones
    assert with_room(torch.arange(6).view(2, 3), 9).tolist() == [[0, 1, 2], [3, 4, 5]]
