"""The browser's half: every file is in it, in one scope, and none asks the network for anything."""

import re
from collections import Counter
from importlib.resources import files

import pytest

from pagedkv_lab.show import bundle
from pagedkv_lab.show.view import View

WEB = sorted(path.name for path in files("pagedkv_lab.show").joinpath("web").iterdir() if path.is_file())
NAMES_OF_FORMATS = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}


def without_comments(script: str) -> str:
    return re.sub(r"(?m)^\s*//.*$|/\*[\s\S]*?\*/", "", script)


def test_every_file_is_used_and_is_in_the_bundle_once():
    assert sorted([*bundle.SCRIPTS, *bundle.STYLES, "page.html"]) == WEB
    for name in bundle.SCRIPTS:
        assert bundle.widget_module().count(bundle.read(name)) == 1
        assert bundle.page_script().count(bundle.read(name)) == 1
    for name in bundle.STYLES:
        assert bundle.style().count(bundle.read(name)) == 1


def test_the_order_is_the_list_s():
    positions = [bundle.widget_module().index(bundle.read(name)) for name in bundle.SCRIPTS]
    assert positions == sorted(positions)


def test_the_module_exports_what_a_widget_needs_and_the_page_starts_itself():
    assert bundle.widget_module().endswith("\nexport default { initialize, render };\n")
    assert bundle.page_script().endswith("\nshowPage();\n")
    for name in ("initialize", "render", "showPage"):
        assert re.search(rf"(?m)^(async )?function {name}\(", bundle.widget_module())


def test_a_widget_carries_all_of_it():
    assert str(View._esm) == bundle.widget_module()
    assert str(View._css) == bundle.style()


@pytest.mark.parametrize("name", WEB)
def test_no_file_asks_the_network_for_anything(name):
    text = bundle.read(name)
    assert set(re.findall(r"\b(?:https?|wss?|ftp)://[^\s\"'`)<]+", text)) <= NAMES_OF_FORMATS
    assert not re.search(r"[\"'`(]//[a-z0-9-]+\.[a-z]", text), "an address without a scheme is one, too"
    code = without_comments(text)
    asks = r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|sendBeacon|Worker)\s*\("
    assert not re.search(asks, code)
    assert not re.search(r"@import|\bimport\b\s*[({\"'*\w]", code)
    assert not re.search(r"url\(\s*['\"]?(?!data:|#)", code)


@pytest.mark.parametrize("name", bundle.SCRIPTS)
def test_a_script_says_what_it_is_and_leaves_exports_to_the_bundle(name):
    script = bundle.read(name)
    assert script.startswith("// "), "its first words say what it is"
    assert script.endswith("\n")
    assert not re.search(r"(?m)^\s*(export|import)\b", without_comments(script))


def test_no_two_scripts_define_the_same_name():
    """They share one scope: a second definition would be a syntax error, and no file would run."""
    defined = Counter()
    for name in bundle.SCRIPTS:
        script = without_comments(bundle.read(name))
        defined.update(re.findall(r"(?m)^(?:async )?(?:function\*?|class|const|let|var) (\w+)", script))
        for names in re.findall(r"(?m)^(?:const|let|var) [\[{]([^=]*)[\]}] =", script):
            defined.update(re.findall(r"\w+(?=\s*(?:,|$))", names))
    assert [name for name, count in defined.items() if count > 1] == []
    assert len(defined) > 30


def test_all_that_python_puts_into_the_page_has_a_place_there():
    page = bundle.read("page.html")
    places = re.findall(r"\{\{(\w+)\}\}", page)
    assert set(places) == {"fallback", "recording", "script", "style", "title"}
    assert "default-src 'none'" in page, "the page may not ask for anything either"
