"""The environment of these tests is what it claims to be, and a widget works in it."""

import importlib.metadata
from pathlib import Path

import pytest
from lab_page import Canvas

ROOT = Path(__file__).resolve().parents[2]
FLOOR = [
    line.split("==")
    for line in (ROOT / "constraints-colab.txt").read_text().splitlines()
    if line and not line.startswith("#")
]

WIDGET = '''
import anywidget
import traitlets

class Counter(anywidget.AnyWidget):
    _esm = """
    export default { render({ model, el }) {
        el.innerHTML = '<button>one more</button> <output></output> <canvas width=200 height=100></canvas>';
        const draw = () => {
            const places = model.get('places');
            const pen = el.querySelector('canvas').getContext('2d');
            pen.fillStyle = 'rgb(0, 158, 115)';
            pen.fillRect(20 * places.getUint8(0), 0, 20, 20);
            el.querySelector('output').textContent = places.byteLength;
        };
        el.querySelector('button').onclick = () => model.send({ more: 1 });
        model.on('change:places', draw);
        draw();
    } };
    """
    places = traitlets.Bytes(b"\\x00").tag(sync=True)

    def __init__(self):
        super().__init__()
        self.on_msg(lambda widget, content, buffers: self.add(content["more"]))

    def add(self, more):
        self.places = bytes([self.places[0] + more]) + self.places

counter = Counter()
counter
'''


@pytest.mark.parametrize(("name", "version"), FLOOR)
def test_what_is_imported_is_colabs(name, version):
    assert importlib.metadata.version(name) == version


def test_the_kernel_has_the_same_versions(kernel):
    names = [name for name, _ in FLOOR]
    found = kernel.ask(f"[__import__('importlib.metadata').metadata.version(name) for name in {names}]")
    assert found == [version for _, version in FLOOR]


def test_a_widget_talks_to_its_kernel_and_draws(open_notebook):
    notebook = open_notebook(WIDGET)
    notebook.run_all()
    page = notebook.page
    page.get_by_role("button", name="one more").click()
    page.locator("output", has_text="2").wait_for()
    green = (0, 158, 115, 255)
    assert Canvas(page.locator("canvas")).pixels([(5, 5), (25, 5), (45, 5)]) == [green, green, (0, 0, 0, 0)]
    assert notebook.kernel.ask("list(counter.places)") == [1, 0]
