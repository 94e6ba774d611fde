"""A term in a lesson leads, in JupyterLab, to its place on the glossary's page, and from there to other terms."""

from pathlib import Path

from lab_page import Notebook, notebook_of
from nbformat.v4 import new_output

from pagedkv_lab.course.glossary import key_terms

GLOSSARY = Path(__file__).resolve().parents[2] / "notebooks/glossary.ipynb"

#: Whether the heading of this text can be seen, in the notebook that is in front.
_IN_SIGHT = """heading => {
    const notebook = window.jupyterapp.shell.currentWidget.content.node;
    const found = [...notebook.querySelectorAll('h3')].find((h) => h.textContent.replace('¶', '').trim() === heading);
    if (!found) return false;
    const at = found.getBoundingClientRect(), frame = notebook.getBoundingClientRect();
    return at.height > 0 && at.top >= frame.top - 2 && at.bottom <= frame.bottom + 2;
}"""
_NAME = "() => window.jupyterapp.shell.currentWidget.context.path"


def lesson_with(*terms: str):
    """A notebook as it is committed: the table of these terms as an output, not run here."""
    notebook = notebook_of("key_terms(...)")
    table = {"text/markdown": key_terms(*terms)._repr_markdown_(), "text/plain": repr(key_terms(*terms))}
    notebook.cells[0].outputs = [new_output("execute_result", data=table, execution_count=1)]
    return notebook


def follow(notebook: Notebook, text: str) -> None:
    notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) a", has_text=text).first.click()


def test_a_term_leads_to_its_meaning_and_on_to_other_terms(lab, open_notebook):
    (lab.root / "glossary.ipynb").write_bytes(GLOSSARY.read_bytes())
    notebook = open_notebook(lesson_with("slot", "utilization"))
    follow(notebook, "utilization")
    notebook.wait_for(f"() => ({_NAME})() === 'glossary.ipynb'")
    notebook.wait_for(_IN_SIGHT, "utilization")
    assert not notebook.page.evaluate(_IN_SIGHT, "Glossary")
    follow(notebook, "Slots")
    notebook.wait_for(_IN_SIGHT, "slot")
