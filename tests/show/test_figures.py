"""Every figure comes out the same each time; the sizing figures say the numbers that `sizing` computes."""

import matplotlib
import numpy as np
import pytest
from looking import is_on_the_page, pixels
from reports import step

from pagedkv_lab import show
from pagedkv_lab.course.outline import COURSE
from pagedkv_lab.show import figures
from pagedkv_lab.show.style import INK
from pagedkv_lab.sizing import BUILT_IN_SHAPES

LENGTHS = [57, 300, 1040, 16]
LLAMA = BUILT_IN_SHAPES["Llama-2-13B"]
TABLES = {"A": [7, 2], "B": [7, 2]}
TOKENS = {"A": list("abcde"), "B": list("abcde")}
REPORTS = [step(1, ran=[(1, 0, 5, "prefill")]), step(2, ran=[(1, 0, 1, "decode")], finished=[1])]

FIGURES = {
    "bytes_per_token": lambda: show.bytes_per_token(list(BUILT_IN_SHAPES.values()), ("float16", "int8")),
    "contiguous_against_paged": lambda: show.contiguous_against_paged(LENGTHS, 2048, 16),
    "memory_by_kind": lambda: show.memory_by_kind({"a": {"weights": 26e9, "kept free": 8e9}}, 80e9),
    "users_that_fit": lambda: show.users_that_fit(10**10, 819_200, 2048, 16, 128),
    "waste_by_block_size": lambda: show.waste_by_block_size(LENGTHS, (8, 16, 32)),
    "memory_over_time": lambda: figures.memory_over_time({"weights": [5e9] * 9, "filled": range(9), "free": [1e9] * 9}),
    "footprint_over_time": lambda: figures.footprint_over_time({"paged": ([4, 8, 8], [1, 5, 7])}),
    "block_table_arrows": lambda: figures.block_table_arrows(TABLES, TOKENS, block_size=4, num_blocks=9),
    "copy_on_write": lambda: figures.copy_on_write(
        (TABLES, TOKENS), (TABLES | {"B": [7, 3]}, TOKENS | {"B": [*"abcdef"]}), block_size=4
    ),
    "hash_chains": lambda: figures.hash_chains(
        {"A": list("abcdefgh"), "B": list("abcdxyzwv")}, {"A": [b"12", b"34"], "B": [b"12", b"56"]}, block_size=4
    ),
    "attention_reads": lambda: figures.attention_reads([[29, 28, 9]], [[7, 2]], [6], block_size=4, num_blocks=9),
    "schedule_gantt": lambda: figures.schedule_gantt(REPORTS),
    "latency_distributions": lambda: figures.latency_distributions({"one": ([0.1, 0.2], [0.01, None])}),
    "course_map": lambda: figures.course_map(COURSE),
    "hit_rate_by_capacity": lambda: figures.hit_rate_by_capacity({"LRU": {100: 0.1, 1000: 0.4}}, no_limit=0.5),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_comes_out_the_same_each_time(name):
    first, second = FIGURES[name](), FIGURES[name]()
    assert first.png() == first.png() == second.png()


@pytest.mark.parametrize("name", FIGURES)
def test_drawing_changes_no_global_setting(name):
    before = dict(matplotlib.rcParams)
    FIGURES[name]().png()
    assert dict(matplotlib.rcParams) == before


def test_every_figure_is_tested_here():
    assert set(FIGURES) == set(figures.__all__)


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_is_transparent_and_text_is_legible_on_light_and_on_dark(name):
    image = pixels(FIGURES[name]())
    assert (image[:6, :6, 3] == 0).all()
    ink = matplotlib.colors.to_rgb(INK)
    assert ((np.abs(image[..., :3] - ink).max(axis=-1) < 0.02) & (image[..., 3] > 0.98)).any()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows_in_one_line_that_ends(name):
    says = str(FIGURES[name]())
    assert says.endswith(".")
    assert "\n" not in says
    assert not says.endswith("..")


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_drawn_beyond_the_edge(name):
    assert is_on_the_page(FIGURES[name]())


def test_bytes_per_token_says_each_model_in_each_dtype():
    assert str(show.bytes_per_token([LLAMA], ("float16", "int8"))) == (
        "Cache bytes a token: Llama-2-13B in float16 800 KiB; Llama-2-13B in int8 400 KiB."
    )


def test_contiguous_against_paged_says_what_is_reserved_and_filled():
    # 1,413 tokens; 4 x 2,048 slots; blocks 4 + 19 + 65 + 1 = 89, 1,424 slots.
    assert str(show.contiguous_against_paged(LENGTHS, 2048, 16)) == (
        "4 requests hold 1,413 tokens: contiguous reserves 8,192 slots and fills 17.2%; "
        "paged, blocks of 16 reserves 1,424 slots and fills 99.2%."
    )


def test_users_that_fit_says_both_ends_of_each_line():
    # 10**10 bytes are 762 blocks of 16 x 819,200 bytes.
    assert str(show.users_that_fit(10**10, 819_200, 2048, 16)).endswith("contiguous 5 to 5; paged 762 to 5.")


def test_waste_by_block_size_says_waste_and_table_length():
    assert "16: 6.2% of the slots empty, 4 table entries a sequence" in str(show.waste_by_block_size([60], (16,)))


def test_memory_of_an_unknown_kind_is_refused_by_name():
    with pytest.raises(ValueError, match="magic"):
        show.memory_by_kind({"a": {"magic": 1e9}})


class TestSource:
    def test_is_the_source_itself_under_the_files_name(self):
        from pagedkv_lab import sizing

        shown = show.show_source(sizing.contiguous_bytes)
        assert repr(shown).startswith("# pagedkv_lab/sizing.py\ndef contiguous_bytes(")
        assert "return num_requests * max_model_len * bytes_per_token" in repr(shown)
        assert "```python\ndef contiguous_bytes(" in shown._repr_markdown_()

    def test_several_stand_one_below_the_other(self):
        from pagedkv_lab import sizing

        text = repr(show.show_source(sizing.blocks_for, sizing.paged_bytes))
        assert 0 < text.index("def blocks_for") < text.index("def paged_bytes")

    def test_of_two_modules_is_refused(self):
        from pagedkv_lab import sizing
        from pagedkv_lab.blocks import BlockTable

        with pytest.raises(ValueError, match="one module"):
            show.show_source(sizing.blocks_for, BlockTable)

    def test_of_something_without_source_is_refused(self):
        with pytest.raises(TypeError):
            show.show_source(len)


def test_a_notebook_shows_the_sharp_picture_also_where_pyplot_is_used():
    """The inline backend registers a formatter for every matplotlib figure; ours must win."""
    import subprocess
    import sys

    code = """
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
from IPython.core.pylabtools import select_figure_formats
shell.display_formatter.active_types = shell.display_formatter.format_types
select_figure_formats(shell, {"png"})
from pagedkv_lab import show
picture = show.waste_by_block_size([60], (8, 16))
data, metadata = shell.display_formatter.format(picture)
assert data["image/png"] and metadata["image/png"] == {"width": 780, "height": 240}, metadata
assert data["text/plain"].startswith("By block size"), data["text/plain"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
