"""Every lesson runs from top to bottom, and then again in the same kernel."""

import pytest
from twice import notebooks_in, run_twice

NOTEBOOKS = notebooks_in("notebooks")


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_a_notebook_runs_twice_in_the_same_kernel(path, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_twice(NOTEBOOKS[path], tmp_path)
