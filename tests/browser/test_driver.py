"""The driver of the browser tests itself: a notebook with a widget runs, and what should be noticed is noticed."""

import pytest
from lab_page import Canvas

#: A counter that draws: each click asks the kernel, the kernel's number comes back, the square moves.
WIDGET = '''
import anywidget
import traitlets

class Counter(anywidget.AnyWidget):
    _esm = """
    export default { render({ model, el }) {
        el.innerHTML = '<button>more</button> <output></output> <canvas width=200 height=100></canvas>';
        const draw = () => {
            el.querySelector('canvas').style.width = '100px';
            const pen = el.querySelector('canvas').getContext('2d');
            pen.fillStyle = 'rgb(0, 158, 115)';
            pen.fillRect(20 * model.get('count'), 0, 20, 20);
            el.querySelector('output').textContent = model.get('count');
        };
        el.querySelector('button').onclick = () => model.send('more');
        model.on('change:count', draw);
        draw();
    } };
    """
    count = traitlets.Int(0).tag(sync=True)

    def __init__(self):
        super().__init__()
        self.on_msg(lambda widget, content, buffers: setattr(self, "count", self.count + 1))

counter = Counter()
counter
'''


def test_a_widget_talks_to_its_kernel_and_draws(open_notebook):
    notebook = open_notebook(WIDGET)
    notebook.run_all()
    page = notebook.page
    page.get_by_role("button", name="more").click()
    page.locator("output", has_text="1").wait_for()
    canvas = Canvas(page.locator("canvas"))
    green = (0, 158, 115, 255)
    # The canvas has two pixels for one CSS pixel: squares are 10 wide where the pointer is.
    assert canvas.pixels([(5, 5), (15, 5), (25, 5), (15, 15)]) == [green, green, (0, 0, 0, 0), (0, 0, 0, 0)]
    assert notebook.kernel.ask("counter.count") == 1
    assert notebook.failed_cells() == []


def test_a_kernel_starts_each_test_with_nothing_of_the_test_before(open_notebook):
    notebook = open_notebook("from ipywidgets import Widget")
    notebook.run_all()
    assert notebook.kernel.ask("'counter' in globals()") is False
    assert notebook.page.locator("canvas").count() == 0


def test_a_running_cell_can_be_interrupted_and_the_next_one_runs(open_notebook):
    notebook = open_notebook("import time\nwhile True: time.sleep(0.01)", "after = 1")
    notebook.begin_cell(0)
    notebook.page.get_by_text("[*]").wait_for()
    notebook.interrupt()
    notebook.wait_until_done()
    assert notebook.failed_cells() == ["KeyboardInterrupt: "]
    notebook.run_cell(1)
    assert notebook.kernel.ask("after") == 1


def test_the_theme_can_be_changed(open_notebook):
    notebook = open_notebook("0")
    background = "() => getComputedStyle(document.body).getPropertyValue('--jp-layout-color1')"
    light = notebook.page.evaluate(background)
    notebook.set_theme("dark")
    assert notebook.page.evaluate(background) != light


def test_a_failed_cell_is_named(open_notebook):
    notebook = open_notebook("1 / 0")
    notebook.run_all()
    assert notebook.failed_cells() == ["ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    "script",
    [
        "() => fetch('https://example.org/x').catch(() => 0)",
        "() => { new Image().src = 'http://example.org/x.png' }",
        "() => { new WebSocket('wss://example.org/socket') }",
        "() => import('https://example.org/module.js').catch(() => 0)",
    ],
)
def test_a_request_to_another_host_is_noticed_and_gets_nowhere(lab_page, watch, script):
    page = lab_page.page
    with page.expect_event("console", lambda message: message.type == "error"):
        page.evaluate(script)
    assert len(watch.foreign) == 1
    assert "//example.org/" in watch.foreign[0]
    watch.clear()


def test_what_lies_in_the_page_itself_is_no_request_to_another_host(lab_page, watch):
    page = lab_page.page
    read = "address => fetch(address).then(answer => answer.text())"
    assert page.evaluate(read, "data:text/plain,x") == "x"
    assert page.evaluate("() => fetch(URL.createObjectURL(new Blob(['y']))).then(answer => answer.text())") == "y"


@pytest.mark.parametrize("script", ["console.error('wrong')", "setTimeout(() => { throw new Error('wrong') })"])
def test_an_error_on_the_console_is_noticed(lab_page, watch, script):
    page = lab_page.page
    page.evaluate(f"() => {{ {script} }}")
    page.wait_for_timeout(50)
    assert len(watch.errors) == 1
    assert "wrong" in watch.errors[0]
    watch.clear()
