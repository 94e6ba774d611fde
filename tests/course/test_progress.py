"""Progress: where it is kept, that a broken file costs nothing, that notebooks can write at the same time."""

import json
import multiprocessing
import os
from dataclasses import fields

import pytest

from pagedkv_lab.course.checks.registry import exercises
from pagedkv_lab.course.folder import home
from pagedkv_lab.course.progress import ENGINE_PARTS, Progress, progress, remember


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def some_function(x):
    return x + 1


def kv_bytes_per_token(num_layers, num_kv_heads, head_dim, bytes_per_number):
    return int(2 * num_layers * num_kv_heads * head_dim * bytes_per_number)


def test_nothing_is_written_by_looking(folder):
    assert progress().passed == frozenset()
    assert not folder.exists()


def test_a_pass_is_remembered_across_processes(folder):
    assert remember("blocks_for", some_function) == ""
    assert json.loads((folder / "progress.json").read_text())["passed"].keys() == {"blocks_for"}
    assert progress().passed == {"blocks_for"}


def test_the_first_pass_keeps_its_date(folder):
    remember("blocks_for", some_function)
    before = (folder / "progress.json").read_text()
    remember("blocks_for", some_function)
    assert (folder / "progress.json").read_text() == before


def test_an_exercise_that_no_longer_exists_is_not_counted_and_not_lost(folder):
    remember("an_old_exercise", some_function)
    remember("blocks_for", some_function)
    assert progress().passed == {"blocks_for"}
    assert "an_old_exercise" in (folder / "progress.json").read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"passed": 3}', "\x00\x01", "null"])
def test_an_unreadable_file_is_set_aside_and_said(folder, text):
    folder.mkdir()
    (folder / "progress.json").write_text(text)
    shown = progress()
    assert "could not be read. It was kept as progress-unreadable-1.json" in str(shown)
    assert (folder / "progress-unreadable-1.json").read_text() == text
    assert remember("blocks_for", some_function) == ""
    assert progress().passed == {"blocks_for"}


def test_an_unreadable_file_is_said_by_the_check_that_finds_it(folder):
    folder.mkdir()
    (folder / "progress.json").write_bytes(b"\xff\xfe")
    assert "could not be read" in remember("blocks_for", some_function)
    assert progress().passed == {"blocks_for"}


def test_a_place_that_cannot_be_written_is_a_sentence_not_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PAGEDKV_HOME", str(tmp_path / "file" / "home"))
    assert remember("blocks_for", some_function).startswith("This pass could not be remembered in")
    assert progress().passed == frozenset()


def _remember_many(names):
    for name in names:
        assert remember(name, some_function) == ""


def test_notebooks_that_write_at_the_same_time_lose_nothing(folder):
    names = [f"exercise_{i}" for i in range(20)]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_remember_many, args=(names[i::2],)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert set(json.loads((folder / "progress.json").read_text())["passed"]) == set(names)


def test_home_is_the_variable_then_the_course_then_the_users_data(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_HOME", str(tmp_path / "chosen"))
    assert home() == tmp_path / "chosen"
    monkeypatch.delenv("PAGEDKV_HOME")
    chapter = tmp_path / "course_folder" / "exercises" / "01_kv_sizing"
    chapter.mkdir(parents=True)
    for here in (chapter, chapter.parent, chapter.parent.parent):
        monkeypatch.chdir(here)
        assert home() == tmp_path / "course_folder" / ".pagedkv"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    if not any((parent / name).is_dir() for parent in elsewhere.parents for name in ("exercises", "notebooks")):
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        assert home().name == "pagedkv-lab"
    (elsewhere / "pyproject.toml").write_text('[project]\nname = "pagedkv_lab"\n')
    assert home() == elsewhere / ".pagedkv"


def test_running_a_solution_is_not_solving_it(tmp_path, monkeypatch):
    monkeypatch.delenv("PAGEDKV_HOME", raising=False)
    for name in ("exercises", "solutions/01_kv_sizing"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "solutions" / "01_kv_sizing")
    remember("kv_bytes_per_token", some_function)
    assert progress().passed == {"kv_bytes_per_token"}
    monkeypatch.chdir(tmp_path / "exercises")
    assert progress().passed == frozenset()


def test_what_is_shown(folder):
    text = str(progress())
    assert "0 of 8 parts of this engine are yours." in text
    assert "Next: exercise 0.1, Blocks for a number of tokens, in exercises/00_start_here." in text
    for name in ("blocks_for", "kv_bytes_per_token", "num_blocks_that_fit", "kv_bytes_from_config"):
        remember(name, some_function)
    text = str(progress())
    assert "●○○●○ ★  2 of 5, and the stretch" in text
    assert "2 of 8 parts of this engine are yours: kv_bytes_per_token, num_blocks_that_fit." in text
    assert "Next: exercise 1.2" in text
    assert progress().as_dict()["next"] == "contiguous_bytes"


def test_a_part_that_is_kept_and_one_whose_source_is_lost(folder):
    remember("kv_bytes_per_token", kv_bytes_per_token)
    text = str(progress())
    assert "1 of 8 parts of this engine is yours: kv_bytes_per_token." in text
    assert "Kept for later chapters, where mine() loads them: kv_bytes_per_token." in text
    assert progress().as_dict()["parts_kept"] == ["kv_bytes_per_token"]
    (folder / "parts" / "kv_bytes_per_token.py").write_text("def kv_bytes_per_token(:")
    text = str(progress())
    assert "1 of 8 parts of this engine is yours" in text
    assert (
        "kv_bytes_per_token passed, but its source is not kept: open its notebook, and run the cells of exercise 1.1"
        in text
    )
    (folder / "parts" / "kv_bytes_per_token.py").unlink()
    assert "source is not kept" in progress()._repr_html_()
    assert progress().as_dict()["parts_kept"] == []


def test_an_exercise_that_is_no_part_is_not_said_to_be_lost(folder):
    remember("blocks_for", lambda x: x)
    assert "not kept" not in str(progress())


def test_of_two_exercises_for_one_slot_either_makes_it_yours(folder):
    remember("CachingAllocator", some_function)
    assert progress().owned_parts == ["BlockAllocator"]


def test_when_all_is_done_nothing_is_next():
    done = Progress(progress().chapters, frozenset(exercises()))
    assert done.next_exercise is None
    assert "nothing is left" in str(done)


def test_the_parts_are_those_that_the_engine_takes():
    from pagedkv_lab.engine import Parts

    assert set(ENGINE_PARTS) == {field.name for field in fields(Parts)} - {"watch"}
    assert {exercise.slot for exercise in exercises().values()} <= {"", *ENGINE_PARTS}


def test_no_temporary_files_are_left(folder):
    remember("blocks_for", some_function)
    remember("kv_bytes_per_token", kv_bytes_per_token)
    assert sorted(os.listdir(folder)) == ["parts", "progress.json", "progress.lock"]
    assert os.listdir(folder / "parts") == ["kv_bytes_per_token.py"]


def test_the_command_shows_and_writes_it(folder, tmp_path, capsys):
    from pagedkv_lab.cli import main

    remember("blocks_for", some_function)
    assert main(["progress", "--json", str(tmp_path / "progress.json")]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1" in shown
    assert str(folder) in shown
    assert json.loads((tmp_path / "progress.json").read_text())["chapters"]["00_start_here"] == {"blocks_for": True}
