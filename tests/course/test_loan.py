"""`mine`: whose part goes into which slot, and what is said about those that can't."""

from dataclasses import fields

import pytest
from right_parts import ALLOCATOR

from pagedkv_lab.course import mine
from pagedkv_lab.course.checks import UnknownExercise
from pagedkv_lab.course.keeping import path_of
from pagedkv_lab.course.names import sentence_for
from pagedkv_lab.course.progress import ENGINE_PARTS
from pagedkv_lab.engine import Parts

SIZE = "def kv_bytes_per_token(layers, heads, dim, size):\n    return int(2 * layers * heads * dim * size)\n"


def right(layers, heads, dim, size):
    return int(2 * layers * heads * dim * size)


def wrong(layers, heads, dim, size):
    return int(layers * heads * dim * size)


def write(name, source):
    """What an earlier chapter kept."""
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


def test_with_nothing_done_all_parts_are_the_packages():
    my = mine()
    assert my.names == []
    assert my.problems == ()
    assert my.parts == Parts()
    assert "0 of 8 parts of this engine are yours." in str(my)


def test_a_part_of_this_notebook_goes_in():
    my = mine(kv_bytes_per_token=right)
    assert my.names == ["kv_bytes_per_token"]
    assert my.parts.kv_bytes_per_token is right
    assert "1 of 8 parts of this engine is yours." in str(my)
    assert "exercise 1.1, this notebook" in str(my)


def test_a_kept_part_goes_in_and_stays_the_same_object():
    write("kv_bytes_per_token", SIZE)
    my = mine()
    assert my.parts.kv_bytes_per_token(22, 4, 64, 2) == 22528
    assert my.parts.kv_bytes_per_token is mine().parts.kv_bytes_per_token
    assert "exercise 1.1, kept" in str(my)


def test_this_notebooks_part_goes_before_a_kept_one():
    write("kv_bytes_per_token", SIZE)
    assert mine(kv_bytes_per_token=right).parts.kv_bytes_per_token is right


def test_of_two_kept_parts_for_one_slot_the_later_exercise_goes_in():
    write("BlockAllocator", ALLOCATOR.format(name="BlockAllocator"))
    assert mine().parts.BlockAllocator.__name__ == "BlockAllocator"
    assert mine()["BlockAllocator"].exercise.number == "2.1"
    write("CachingAllocator", ALLOCATOR.format(name="CachingAllocator"))
    assert mine().parts.BlockAllocator.__name__ == "CachingAllocator"
    assert "exercise 5.2, CachingAllocator, kept" in str(mine())


def test_a_later_exercises_broken_part_leaves_the_earlier_one_in():
    write("BlockAllocator", ALLOCATOR.format(name="BlockAllocator"))
    write("CachingAllocator", "class CachingAllocator(NoSuchBase): ...\n")
    my = mine()
    assert my.parts.BlockAllocator.__name__ == "BlockAllocator"
    (problem,) = my.problems
    assert "CachingAllocator.py does not load: NameError" in problem
    assert "run the cells of exercise 5.2 again. In its place: the BlockAllocator that you kept." in problem


def test_a_wrong_part_of_this_notebook_falls_back_to_the_kept_one_with_a_sentence():
    write("kv_bytes_per_token", SIZE)
    my = mine(kv_bytes_per_token=wrong)
    assert my.parts.kv_bytes_per_token(22, 4, 64, 2) == 22528
    (problem,) = my.problems
    assert problem.startswith("`kv_bytes_per_token` of this notebook is not right: ")
    assert problem.endswith("In its place: the kv_bytes_per_token that you kept.")


def test_the_stub_falls_back_to_the_package():
    my = mine(kv_bytes_per_token=lambda *args: None)
    assert my.names == []
    assert my.problems == ("`kv_bytes_per_token` of this notebook is still the stub. In its place: the package's.",)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (SIZE.replace("2 *", "3 *"), "is not right: "),
        (SIZE.replace("2 * layers", "2 * *"), "is not Python: "),
        ("import no_such_module\n" + SIZE, "does not load: ModuleNotFoundError: No module named 'no_such_module'"),
        ("", "does not define `kv_bytes_per_token`"),
        (SIZE.replace("return", "while True: pass\n    return"), "did not come back within 2 seconds"),
    ],
)
def test_a_kept_file_that_is_broken_falls_back_and_says_which_why_and_what_to_do(source, says):
    path = write("kv_bytes_per_token", source)
    my = mine()
    assert my.parts == Parts()
    (problem,) = my.problems
    assert problem.startswith(str(path))
    assert says in problem
    assert problem.endswith("To keep it anew, run the cells of exercise 1.1 again. In its place: the package's.")


def test_an_unreadable_file_falls_back():
    path = write("kv_bytes_per_token", SIZE)
    path.write_bytes(b"\xff\xfe\x00")
    (problem,) = mine().problems
    assert problem.startswith(f"{path} is there, but it can't be read.")


def test_a_file_that_is_edited_is_looked_at_again():
    write("kv_bytes_per_token", SIZE)
    assert mine().names
    write("kv_bytes_per_token", SIZE.replace("2 *", "3 *"))
    assert not mine().names
    write("kv_bytes_per_token", SIZE)
    assert mine().names


def test_names_that_are_no_part_are_refused_with_what_is():
    with pytest.raises(UnknownExercise, match="Did you mean BlockTable"):
        mine(BlockTabel=right)
    with pytest.raises(UnknownExercise, match="slot_mapping is an exercise, but no part of the engine"):
        mine(slot_mapping=right)


def test_the_slots_are_those_of_the_engine():
    assert [loan.slot for loan in mine().loans] == list(ENGINE_PARTS)
    assert set(ENGINE_PARTS) <= {field.name for field in fields(Parts)}


def test_it_looks_the_same_every_time_and_has_no_raw_markup():
    write("kv_bytes_per_token", SIZE.replace("2 *", "None<b> *"))
    assert str(mine()) == str(mine())
    html = mine()._repr_html_()
    assert "<b>" not in html
    assert "yours comes with exercise 2.1" in html


def test_a_missing_name_that_was_kept_says_how_to_get_it():
    error = NameError("name 'BlockAllocator' is not defined", name="BlockAllocator")
    assert "the cell of exercise 2.1 defines it" in sentence_for(error, top_level=True)
    write("BlockAllocator", ALLOCATOR.format(name="BlockAllocator"))
    said = sentence_for(error, top_level=True)
    assert "you have passed it" in said
    assert "`BlockAllocator = mine().parts.BlockAllocator`" in said
    error = NameError("name 'mine' is not defined", name="mine")
    assert sentence_for(error, top_level=True) == "`mine` is the course's: `from pagedkv_lab.course import mine`."
