"""What a part takes along when it leaves its notebook: each case is cells, and what the part then does alone."""

import subprocess
import sys

import pytest
from cells import Cells

from pagedkv_lab.course.standalone import CannotKeep, standalone


@pytest.fixture
def cells(monkeypatch):
    return Cells(monkeypatch)


def alone(source, expression):
    """What an expression is in a fresh process that has run the source and nothing else."""
    script = f"{source}\nprint(repr(({expression})))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{source}\n{ran.stderr}"
    return ran.stdout.strip()


#: name: (cells, an expression over `part`, what it is)
CASES = {
    "a function": (["def part(x):\n    return x + 1"], "part(1)", "2"),
    "a class": (["class part:\n    def go(self):\n        return 7"], "part().go()", "7"),
    "an import of another cell": (
        ["import heapq", "def part(x):\n    return heapq.nsmallest(1, x)"],
        "part([2, 1])",
        "[1]",
    ),
    "an import under another name": (["import numpy as np", "def part():\n    return int(np.int64(3))"], "part()", "3"),
    "a submodule": (
        ["import concurrent.futures", "def part():\n    return concurrent.futures.ThreadPoolExecutor.__name__"],
        "part()",
        "'ThreadPoolExecutor'",
    ),
    "a name from a module": (
        ["from collections import deque", "def part():\n    return list(deque([1]))"],
        "part()",
        "[1]",
    ),
    "a name under another name": (
        ["from collections import deque as queue", "def part():\n    return list(queue([1]))"],
        "part()",
        "[1]",
    ),
    "something imported that is neither function nor class": (
        ["from string import digits\nfrom numpy import add", "def part():\n    return digits + str(add(1, 2))"],
        "part()",
        "'01234567893'",
    ),
    "an import in an if": (
        [
            "try:\n    from math import no_such\nexcept ImportError:\n    no_such = None",
            "def part():\n    return no_such",
        ],
        "part()",
        "None",
    ),
    "a fallback function": (
        [
            "try:\n    import no_such_module\nexcept ImportError:\n    def double(x):\n        return 2 * x",
            "def part():\n    return double(2)",
        ],
        "part()",
        "4",
    ),
    "helpers of helpers": (
        ["def low(x):\n    return x - 1", "def high(x):\n    return low(x) * 2", "def part(x):\n    return high(x)"],
        "part(3)",
        "4",
    ),
    "helpers that call each other": (
        [
            "def even(n):\n    return n == 0 or odd(n - 1)",
            "def odd(n):\n    return n != 0 and even(n - 1)",
            "def part(n):\n    return even(n)",
        ],
        "part(10)",
        "True",
    ),
    "a helper defined below": (["def part():\n    return helper()", "def helper():\n    return 5"], "part()", "5"),
    "numbers and text": (
        [
            "SIZE, NAME = 16, 'a'\nRATE = 0.5\nNOTHING = None\nLOTS = float('inf')",
            "def part():\n    return SIZE, NAME, RATE, NOTHING, LOTS",
        ],
        "part()",
        "(16, 'a', 0.5, None, inf)",
    ),
    "containers": (
        ["T = (1, (2,))\nL = [1]\nD = {'a': {1, 2}}\nF = frozenset({3})", "def part():\n    return T, L, D, F"],
        "part()",
        "((1, (2,)), [1], {'a': {1, 2}}, frozenset({3}))",
    ),
    "the newest value": (["SIZE = 16", "def part():\n    return SIZE", "SIZE = 32"], "part()", "32"),
    "a memory that has been filled is empty again": (
        [
            "seen = {}\nfound = set()",
            "def part(x):\n    seen[x] = found.add(x)\n    return len(seen), len(found)",
            "part(1)",
        ],
        "part(2)",
        "(1, 1)",
    ),
    "a counter of its own": (
        ["calls = 0", "def part():\n    global calls\n    calls += 1\n    return calls"],
        "part(), part()",
        "(1, 2)",
    ),
    "a constant made by arithmetic": (
        ["import torch", "KIND = torch.float32", "def part():\n    return str(KIND)"],
        "part()",
        "'torch.float32'",
    ),
    "a lock, a deque, a pattern": (
        [
            "import re, threading\nfrom collections import deque",
            "lock = threading.Lock()\nqueue = deque([1])\nword = re.compile('a+')\nMISSING = object()",
            "def part():\n    with lock:\n        return list(queue), word.match('aab')[0], MISSING is MISSING",
        ],
        "part()",
        "([1], 'aa', True)",
    ),
    "base classes": (
        ["class Base:\n    def go(self):\n        return self.number", "class part(Base):\n    number = 4"],
        "part().go()",
        "4",
    ),
    "a base class that makes its own subclass": (
        ["class part:\n    def child(self):\n        return Child()", "class Child(part):\n    pass"],
        "isinstance(part().child(), part)",
        "True",
    ),
    "an error of one's own": (
        [
            "class Full(Exception):\n    pass",
            "def part():\n    try:\n        raise Full('x')\n    except Full as error:\n        return str(error)",
        ],
        "part()",
        "'x'",
    ),
    "a dataclass": (
        [
            "from dataclasses import dataclass, field",
            "@dataclass\nclass Block:\n    number: int\n    holders: list = field(default_factory=list)",
            "def part():\n    return Block(3)",
        ],
        "part()",
        "Block(number=3, holders=[])",
    ),
    "a dataclass that is the part": (
        ["import dataclasses", "@dataclasses.dataclass(frozen=True)\nclass part:\n    x: int = 2\n"],
        "part()",
        "part(x=2)",
    ),
    "an enum": (
        [
            "import enum",
            "class State(enum.Enum):\n    FREE = 0\n    USED = 1\nSTART = State.FREE",
            "def part():\n    return START.name, State.USED.value",
        ],
        "part()",
        "('FREE', 1)",
    ),
    "a named tuple": (
        [
            "from collections import namedtuple\nfrom typing import NamedTuple",
            "Pair = namedtuple('Pair', 'a b')\nclass One(NamedTuple):\n    c: int",
            "def part():\n    return Pair(1, 2), One(3)",
        ],
        "part()",
        "(Pair(a=1, b=2), One(c=3))",
    ),
    "an object of a class": (
        [
            "class Missing:\n    def __repr__(self):\n        return 'missing'",
            "MISSING = Missing()",
            "def part():\n    return MISSING",
        ],
        "part()",
        "missing",
    ),
    "a decorator": (
        [
            "def twice(f):\n    return lambda x: both(f, x)",
            "def both(f, x):\n    return f(f(x))",
            "@twice\ndef part(x):\n    return x * 3",
        ],
        "part(1)",
        "9",
    ),
    "a cache": (
        ["from functools import lru_cache", "@lru_cache(maxsize=None)\ndef part(x):\n    return x * 2"],
        "part(4)",
        "8",
    ),
    "defaults and annotations": (
        ["SIZE = 8\nclass Block: ...", "def part(n=SIZE, block: Block = None) -> 'Unknown':\n    return n"],
        "part()",
        "8",
    ),
    "annotations that are never run": (
        ["from __future__ import annotations\ndef part(x: NotYet) -> Neither:\n    return x"],
        "part(1)",
        "1",
    ),
    "comprehensions and nested functions": (
        [
            "K = 3",
            "class part:\n    table = [x * K for x in range(2)]\n"
            "    def go(self):\n        def inner():\n            return [K + y for y in self.table]\n"
            "        return inner()",
        ],
        "part().go()",
        "[3, 6]",
    ),
    "a local name that is also a tensor of the notebook": (
        ["import torch\nblock = torch.zeros(3)", "def part(blocks):\n    return [block for block in blocks]"],
        "part([1])",
        "[1]",
    ),
    "a lambda with a name": (["part = lambda x: x + 1"], "part(1)", "2"),
    "a closure with a name": (
        ["def make(n):\n    def add(x):\n        return x + n\n    return add", "part = make(3)"],
        "part(1)",
        "4",
    ),
    "a partial with a name": (
        ["from functools import partial\ndef add(a, b):\n    return a + b", "part = partial(add, 3)"],
        "part(1)",
        "4",
    ),
    "a class made by a function": (
        ["def make(n):\n    class Inner:\n        number = n\n    return Inner", "part = make(3)"],
        "part().number",
        "3",
    ),
    "another name": (["class Mine:\n    x = 1", "part = Mine"], "part.x", "1"),
    "a cell that defines two": (["def part():\n    return other()\n\n\ndef other():\n    return 2"], "part()", "2"),
    "properties, static and class methods": (
        [
            "N = 2",
            "class part:\n    @property\n    def a(self):\n        return N\n"
            "    @staticmethod\n    def b():\n        return N\n    @classmethod\n    def c(cls):\n        return N",
        ],
        "part().a, part.b(), part.c()",
        "(2, 2, 2)",
    ),
    "super": (
        [
            "class Base:\n    def __init__(self):\n        self.x = 1",
            "class part(Base):\n    def __init__(self):\n        super().__init__()",
        ],
        "part().x",
        "1",
    ),
    "a cell that ran twice": (["def part():\n    return 1"] * 2, "part()", "1"),
    "a cell that was changed and ran again": (
        ["def part():\n    return 1", "def part():\n    return 2"],
        "part()",
        "2",
    ),
    "an older version, still in use": (
        [
            "class part:\n    def go(self):\n        return 1",
            "kept = part",
            "class part:\n    def go(self):\n        return 2",
            "part = kept",
        ],
        "part().go()",
        "1",
    ),
    "text over several lines, and umlauts": (
        ['def part():\n    """Ü.\n\n    more\n    """\n    return """a\nb"""'],
        "part()",
        "'a\\nb'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_does_the_same_alone(cells, case):
    sources, expression, expected = CASES[case]
    for source in sources:
        cells(source)
    assert alone(standalone("part", cells["part"]), expression) == expected


def test_it_reads_like_a_module(cells):
    cells("import heapq\nfrom collections import deque")
    cells("FIRST = 2")
    cells("def lowest(blocks):\n    # the smallest\n    return heapq.nsmallest(FIRST, blocks)")
    cells("unused = 3\ndef part(blocks):\n    return lowest(deque(blocks))")
    assert standalone("part", cells["part"]) == (
        "from collections import deque\n"
        "import heapq\n\n\n"
        "FIRST = 2\n\n\n"
        "def lowest(blocks):\n"
        "    # the smallest\n"
        "    return heapq.nsmallest(FIRST, blocks)\n\n\n"
        "def part(blocks):\n"
        "    return lowest(deque(blocks))\n"
    )


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        (
            ["import torch\nweights = torch.zeros(3)", "def part():\n    return weights"],
            "`weights` (a Tensor, which lives in this notebook only)",
        ),
        (["import os\nlog = open(os.devnull)", "def part():\n    log.read()"], "`log` (a TextIOWrapper, "),
        (
            [
                "import torch\nw = torch.zeros(3)\ndef helper():\n    return w",
                "class part:\n    def go(self):\n        helper()",
            ],
            "`w` (a Tensor",
        ),
        (
            ["big = list(range(10**5))", "def part():\n    return big"],
            "`big` (a list of 100,000 items, which is too much",
        ),
        (["import torch\nall = [torch.zeros(1)]", "def part():\n    return all"], "`all` (a list of 1 items"),
        (["def part():\n    return helper()", "helper = [lambda: 1][0]"], "`helper`"),
    ],
)
def test_what_it_cannot_take_along_is_named(cells, sources, why):
    for source in sources:
        cells(source)
    if "helper =" in sources[-1]:  # no call: the list is written anew, and its first lambda is the helper
        assert alone(standalone("part", cells["part"]), "part()") == "1"
        return
    with pytest.raises(CannotKeep) as caught:
        standalone("part", cells["part"])
    assert why in str(caught.value)


def test_a_lambda_in_the_call_has_no_source_even_where_a_cell_has_that_name(cells):
    cells("def part(x):\n    '''The stub.'''")
    cells("given = [lambda x: x]")
    with pytest.raises(CannotKeep, match="a lambda that no cell gives a name to"):
        standalone("part", cells["given"][0])


def test_what_a_function_made_has_no_source_without_a_name(cells):
    cells("def make():\n    def inner():\n        return 1\n    return inner")
    with pytest.raises(CannotKeep, match="made inside a function"):
        standalone("part", cells["make"]())


@pytest.mark.parametrize("thing", [len, 3, [].append, "text"])
def test_what_has_no_source_at_all(cells, thing):
    with pytest.raises(CannotKeep, match="no source"):
        standalone("part", thing)


def test_two_things_with_one_name(cells):
    cells("def helper():\n    return 1\n\ndef old():\n    return helper()")
    other = Cells.__new__(Cells)
    other.module, other.names = cells.module, dict(cells.names)
    other("def helper():\n    return 2\n\ndef new():\n    return helper()")
    cells.names["new"] = other["new"]
    cells("def part():\n    return old() + new()")
    with pytest.raises(CannotKeep, match="helper"):
        standalone("part", cells["part"])
