"""A part as a module of its own: its source, and what that uses of its notebook.

    from pagedkv_lab.errors import OutOfBlocks      imported in some cell

    FIRST = 0                                       a constant of another cell

    def lowest(blocks): ...                         a function of a third one

    class BlockAllocator: ...                       the part

Knows Python's scopes, and where the source of a notebook's cells is to be found. Does not know exercises, and writes
no files.
"""

import __future__

import ast
import builtins
import enum
import linecache
import math
import re
import symtable
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import unwrap
from types import CodeType, ModuleType
from typing import Any

#: Modules made from kept sources are called this and the exercise's name. They exist in no other process.
KEPT_PREFIX = "pagedkv_kept_"
#: Constants are kept up to this many characters.
_MOST_CHARACTERS = 50_000
#: Names of the "files" that IPython, ipykernel and Colab compile cells under.
_CELL = re.compile(r"ipykernel_\d+|ipython-input")
#: Objects of these modules are made anew by the statement that made them: a lock, a deque, a counter, a pattern.
_MADE_ANEW = {"_thread", "threading", "itertools", "collections", "functools", "re", "random", "typing", "fractions"}
_NOTHING = object()


class CannotKeep(Exception):
    """Why a part can't live without its notebook: a clause that goes on from "because"."""


def standalone(name: str, part: Any) -> str:
    """The source of a module in which `name` is `part`: a function, a class, or whatever else a cell calls so.

    Raises CannotKeep.
    """
    gathering = _Gathering()
    namespace = _namespace_of(part)
    own_name = gathering.add(name, part, namespace)
    if gathering.missing:
        uses = ", ".join(f"`{missing}` ({why})" for missing, why in gathering.missing.items())
        raise CannotKeep(f"it uses {uses}")
    return gathering.text() + (f"\n\n{name} = {own_name}\n" if own_name != name else "")


@dataclass
class _Item:
    """A statement to keep, and the items that it needs: `now`, to run at all; `later`, when what it makes is called."""

    source: str
    now: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)


@dataclass
class _Gathering:
    """What has been found so far: import lines, statements by the name they make, and what can't be kept."""

    imports: dict[str, None] = field(default_factory=dict)
    items: dict[str, _Item] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any, namespace: Mapping[str, Any]) -> str:
        """Gather what makes `value`, which `namespace` calls `name`, and all that it needs. Returns its name there.

        Raises CannotKeep where there is no source for it.
        """
        if (statement := _statement_of(name, value, namespace)) is None:
            raise CannotKeep(_why_no_source(value))
        source, tree, made = statement
        if made in self.values and self.values[made] is not value:
            raise CannotKeep(f"it uses two different things that are called `{made}`")
        self.values[made] = value
        if made not in self.items:
            self.items[made] = item = _Item(source)
            now, later = _names_in(source)
            for code in _codes(value):
                if code.co_flags & __future__.annotations.compiler_flag:
                    self.imports["from __future__ import annotations"] = None
            self._import_submodules(tree, namespace)
            item.now = {found for used in sorted(now - {made}) if (found := self._need(used, namespace))}
            item.later = {found for used in sorted(later - {made}) if (found := self._need(used, namespace))}
        return made

    def _need(self, name: str, namespace: Mapping[str, Any]) -> str | None:
        """Gather what a kept statement calls `name`. Returns the name of the item that it is; None for an import.

        A name that nothing is called by is built in, or stands on a path that was never taken.
        """
        if name not in namespace or name in self.missing or (name.startswith("__") and name.endswith("__")):
            return None
        value = namespace[name]
        if name in self.values and self.values[name] is value:
            return name if name in self.items else None
        if hasattr(builtins, name) and getattr(builtins, name) is value:
            return None
        try:
            if line := _import_line(name, value):
                self._remember(name, value)
                self.imports[line] = None
                return None
            if _is_of_a_notebook(value, namespace):
                made = self.add(name, value, _namespace_of(value, namespace))
                if made == name:
                    return name
                self._remember(name, value)
                self.items[name] = _Item(f"{name} = {made}", now={made})
                return name
            return self._add_constant(name, value, namespace)
        except CannotKeep as why:
            self.missing[name] = str(why)
            return None

    def _add_constant(self, name: str, value: Any, namespace: Mapping[str, Any]) -> str | None:
        """A value as text; or the statement that made it, where running that again is harmless."""
        statement = _newest_binding(name, namespace)
        if statement and isinstance(statement[1], ast.Import | ast.ImportFrom):
            self._remember(name, value)
            self.imports[statement[0].strip()] = None
            return None
        begins_as = statement[1].value if statement and isinstance(statement[1], ast.Assign | ast.AnnAssign) else None
        is_literal = begins_as is not None and _is_literal(begins_as)
        changes = isinstance(value, list | dict | set)
        if (text := _as_text(value)) is not None and not (changes and is_literal):
            self._remember(name, value)
            self.items[name] = _Item(f"{name} = {text}")
        elif begins_as is not None and (is_literal or _may_run_again(begins_as, value)):
            self.add(name, value, namespace)
        else:
            raise CannotKeep(_what_it_is(value))
        return name

    def _remember(self, name: str, value: Any) -> None:
        if name in self.values and self.values[name] is not value:
            raise CannotKeep("two different things have this name")
        self.values[name] = value

    def _import_submodules(self, tree: ast.AST, namespace: Mapping[str, Any]) -> None:
        """`import concurrent.futures` binds `concurrent` only: the use of `concurrent.futures` tells."""
        for node in ast.walk(tree):
            dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            root = namespace.get(dotted.partition(".")[0])
            if dotted in sys.modules and isinstance(root, ModuleType) and dotted.startswith(root.__name__ + "."):
                self.imports[f"import {dotted}"] = None

    def text(self) -> str:
        """The module: imports, then statements, each below those that it needs in order to run."""
        order: list[str] = []
        begun: set[str] = set()

        def place(name: str) -> None:
            if name in begun:
                return
            begun.add(name)
            for needed in sorted(self.items[name].now):
                place(needed)
                for reached in self._reached_from(needed):  # a decorator is called, with all that it calls
                    place(reached)
            order.append(name)

        for name in reversed(self.items):  # what was found later is what the others need
            place(name)
        lines = sorted(self.imports, key=lambda line: "__future__" not in line)
        blocks = ["\n".join(lines)] if lines else []
        blocks += [self.items[name].source.rstrip() for name in order]
        return "\n\n\n".join(blocks) + "\n"

    def _reached_from(self, name: str) -> list[str]:
        found, queue = [], [name]
        while queue:
            item = self.items[queue.pop()]
            new = [needed for needed in sorted(item.now | item.later) if needed not in found]
            found += new
            queue += new
        return found


# Where things are from


def _namespace_of(value: Any, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The globals that its code sees: those of its notebook or module."""
    for thing in (value, getattr(value, "func", None), type(value)):  # `func` is what a partial calls
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        if hasattr(unwrap(thing), "__globals__"):
            return unwrap(thing).__globals__
        if module is not None and not _is_importable(module.__name__):
            return vars(module)
    return vars(sys.modules["__main__"]) if default is None else default


def _is_importable(module: str) -> bool:
    return module != "__main__" and not module.startswith(KEPT_PREFIX)


def _is_of_a_notebook(value: Any, namespace: Mapping[str, Any]) -> bool:
    """Whether a cell, or the part's own module, defines this function or class, or the class of this object."""
    module = getattr(value, "__module__", None) if callable(value) else type(value).__module__
    return module is not None and (module == namespace.get("__name__") or not _is_importable(module))


def _import_line(name: str, value: Any) -> str | None:
    """How to import it under this name; None where it isn't importable, or not found again where it says it is from."""
    if isinstance(value, ModuleType):
        if not _is_importable(value.__name__):
            return None
        return f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")
    module, called = getattr(value, "__module__", None), getattr(value, "__qualname__", None) or ""
    if not isinstance(module, str) or not called.isidentifier() or not _is_importable(module):
        return None
    if getattr(sys.modules.get(module), called, None) is not value:
        return None
    return f"from {module} import {called}" + (f" as {name}" if name != called else "")


# Where their source is

_Statement = tuple[str, ast.stmt, str]  # its text, its tree, the name that it makes


def _statement_of(name: str, value: Any, namespace: Mapping[str, Any]) -> _Statement | None:
    """The statement of a cell that made this value: its own `def` or `class`, or the newest that makes this name."""
    called = getattr(value, "__name__", name)
    called = called if isinstance(called, str) and getattr(value, "__qualname__", called) == called else name
    for code in _codes(value):
        source = "".join(linecache.getlines(code.co_filename))
        for statement in _statements(source, called):
            if _first_line(statement[1]) <= code.co_firstlineno <= (statement[1].end_lineno or 0):
                return statement
    names = [each for each in (name, called) if namespace.get(each, _NOTHING) is value]
    return next((found for each in names if (found := _newest_binding(each, namespace))), None)


def _newest_binding(name: str, namespace: Mapping[str, Any]) -> _Statement | None:
    for source in _sources(namespace):
        if statements := _statements(source, name):
            return statements[-1]
    return None


def _sources(namespace: Mapping[str, Any]) -> Iterator[str]:
    """The cells of the notebook that this is the namespace of, the one that ran last first; or the module's source."""
    if file := namespace.get("__file__"):
        yield "".join(linecache.getlines(file))
        return
    cells = [cell for cell in reversed(namespace.get("In") or ()) if isinstance(cell, str)]
    cells += [
        "".join(entry[2]) for file, entry in reversed(linecache.cache.items()) if _CELL.search(file) and entry[2:]
    ]
    for cell in cells:
        yield cell
        yield from _inside_cell_magic(cell)


def _inside_cell_magic(cell: str) -> Iterator[str]:
    """What stands below `%%time` or the like."""
    if "run_cell_magic" in cell:
        for node in ast.walk(_parse(cell)):
            if isinstance(node, ast.Call) and len(node.args) == 3 and ast.unparse(node.func).endswith("run_cell_magic"):
                yield str(getattr(node.args[2], "value", ""))


def _statements(source: str, name: str) -> list[_Statement]:
    """The statements at the top level of a source that make this name, `name += 1` and loops aside."""
    if name not in source:
        return []
    lines = source.splitlines()
    return [
        ("\n".join(lines[_first_line(statement) - 1 : statement.end_lineno]), statement, name)
        for statement in _parse(source).body
        if not isinstance(statement, ast.AugAssign | ast.For) and name in _made_by(statement)
    ]


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))])


def _made_by(statement: ast.stmt) -> set[str]:
    """The global names that a top-level statement makes."""
    try:
        table = symtable.symtable(ast.unparse(statement), "<statement>", "exec")
    except SyntaxError:  # an `await`, which a notebook allows
        return set()
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a function, and of the methods that a class itself has."""
    value = unwrap(value)
    if code := getattr(value, "__code__", None):
        yield code
    elif isinstance(value, type):
        for member in vars(value).values():
            member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            code = getattr(unwrap(member), "__code__", None)
            if code is not None and getattr(unwrap(member), "__qualname__", "").startswith(value.__qualname__ + "."):
                yield code


# What they use


def _names_in(source: str) -> tuple[set[str], set[str]]:
    """Global names that a statement uses: when it runs itself, and when what it defines is called."""
    now: set[str] = set()
    later: set[str] = set()

    def collect(table: symtable.SymbolTable, runs_now: bool) -> None:
        for symbol in table.get_symbols():
            is_global = table.get_type() == "module" or symbol.is_global()
            if is_global and (symbol.is_referenced() or symbol.is_declared_global()):
                (now if runs_now else later).add(symbol.get_name())
        for child in table.get_children():
            is_function = child.get_type() == "function" and not re.fullmatch(r"\w+comp|genexpr", child.get_name())
            collect(child, runs_now and not is_function)

    collect(symtable.symtable(source, "<statement>", "exec"), True)
    return now, later - now


def _as_text(value: Any) -> str | None:
    """A constant as Python writes it: numbers, text, and what is made of those. None for anything else."""
    try:
        text = _write(value)
    except (TypeError, RecursionError):
        return None
    return text if len(text) <= _MOST_CHARACTERS else None


def _write(value: Any) -> str:
    if value is None or value is ... or type(value) in (bool, int, str, bytes, complex, range):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if type(value) is dict:
        return "{" + ", ".join(f"{_write(key)}: {_write(item)}" for key, item in value.items()) + "}"
    if type(value) is tuple:
        return "(" + "".join(f"{_write(item)}, " for item in value) + ")"
    if type(value) is list:
        return "[" + ", ".join(map(_write, value)) + "]"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}([{', '.join(sorted(map(_write, value)))}])"
    raise TypeError(type(value).__name__)


def _is_literal(expression: ast.expr) -> bool:
    """`{}`, `[1, 2]` and also `set()`: what a list or a dict was before anything was put in."""
    if isinstance(expression, ast.Call) and ast.unparse(expression) in ("set()", "dict()", "list()"):
        return True
    try:
        ast.literal_eval(expression)
    except (ValueError, SyntaxError, TypeError):
        return False
    return True


def _may_run_again(expression: ast.expr, value: Any) -> bool:
    """Whether making the value anew is cheap and means the same: no call at all, or something small of Python's own."""
    if not any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(expression)):
        return True
    small = type(value) is object or type(value).__module__ in _MADE_ANEW
    return small or callable(value) or isinstance(value, enum.Enum)


def _what_it_is(value: Any) -> str:
    if isinstance(value, list | dict | set | tuple | str | bytes):
        return f"a {type(value).__name__} of {len(value):,} items, which is too much or not plain"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}, which lives in this notebook only"


def _why_no_source(value: Any) -> str:
    if getattr(value, "__name__", "") == "<lambda>":
        return "a lambda that no cell gives a name to has no source: write it with `def`"
    if "<locals>" in getattr(value, "__qualname__", ""):
        return "it was made inside a function, and no cell gives it this name: define it at the top of a cell"
    kind = "" if callable(value) else f" (it is an object of {type(value).__name__})"
    return f"Python has no source for it here{kind}: define it with `def` or `class` in a cell"
