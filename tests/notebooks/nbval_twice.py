"""A plugin of pytest: nbval runs every notebook again in the same kernel, from top to bottom.

    PYTHONPATH=tests/notebooks pytest -p nbval_twice --nbval-lax notebooks

A learner scrolls back and runs a cell once more; nothing may break on what the first run has left behind. The first run
is nbval's own. In the second one outputs may differ (a check that has passed before says so), errors may not happen.
"""

import itertools
from collections import defaultdict

import pytest
from nbval.plugin import IPyNbCell


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind the cells of each notebook, the same ones again."""
    twice = []
    for _, cells in itertools.groupby(items, key=lambda item: item.parent):
        cells = list(cells)
        twice += [*cells, *map(again, filter(is_cell, cells))]
    items[:] = twice


def is_cell(item: pytest.Item) -> bool:
    return isinstance(item, IPyNbCell)


def again(cell: IPyNbCell) -> IPyNbCell:
    """The same cell, whose output is not compared."""
    options = defaultdict(bool, cell.options, check=False)
    return IPyNbCell.from_parent(
        cell.parent, name=f"{cell.name}, again", cell_num=cell.cell_num, cell=cell.cell, options=options
    )
