"""The tiny course, as sources and built."""

import shutil
from pathlib import Path

import pytest
from tiny_course import CHAPTER, write_course

from pagedkv_lab.course.builder.build import build_chapter
from pagedkv_lab.course.builder.pages import build_pages


@pytest.fixture(scope="session")
def built_once(tmp_path_factory) -> Path:
    """The tiny course with its notebooks built. Look, don't touch."""
    root = write_course(tmp_path_factory.mktemp("course"))
    build_chapter(root, CHAPTER)
    build_pages(root)
    return root


@pytest.fixture
def built(built_once, tmp_path) -> Path:
    """A built tiny course of the test's own."""
    return shutil.copytree(built_once, tmp_path / "course-of-its-own")


@pytest.fixture
def course(tmp_path) -> Path:
    """The tiny course's sources, not built."""
    return write_course(tmp_path)
