"""A notebook without a kernel: cells that run in a `__main__` of their own, their source where IPython puts it."""

import linecache
import sys
from itertools import count
from types import ModuleType

_numbers = count()


class Cells:
    """Call it with a cell's source to run that cell; its names are then in `.names`."""

    def __init__(self, monkeypatch):
        self.module = ModuleType("__main__")
        self.names = vars(self.module)
        monkeypatch.setitem(sys.modules, "__main__", self.module)

    def __call__(self, source: str) -> None:
        file = f"/tmp/ipykernel_0/{next(_numbers)}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec", dont_inherit=True), self.names)

    def __getitem__(self, name: str):
        return self.names[name]
