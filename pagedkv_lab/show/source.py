"""The package's own code as course text, so that text and code can't drift apart.

Knows `inspect`. Does not know what it shows.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Source:
    """Python code and where it is from. Highlighted in a notebook, by the notebook's own theme; plain elsewhere."""

    module: str
    code: str

    def _repr_markdown_(self) -> str:
        return f"From `{self.module.replace('.', '/')}.py`:\n\n```python\n{self.code}\n```"

    def __repr__(self) -> str:
        return f"# {self.module.replace('.', '/')}.py\n{self.code}"


def show_source(*things: Callable[..., Any] | type) -> Source:
    """The source of functions or classes of one module, one below the other.

    Raises TypeError for what has no Python source, ValueError where they are from different modules.
    """
    modules = {getattr(thing, "__module__", None) for thing in things}
    if len(modules) != 1:
        raise ValueError("show functions and classes of one module at a time, at least one")
    pieces = []
    for thing in things:
        try:
            pieces.append(textwrap.dedent(inspect.getsource(thing)).strip())
        except OSError as error:
            raise TypeError(f"there is no Python source for {thing!r}") from error
    return Source(modules.pop(), "\n\n\n".join(pieces))
