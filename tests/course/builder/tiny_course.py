"""A course of one tiny chapter, as an author would write it."""

from pathlib import Path

CHAPTER = "00_tiny"

LESSON = """\
# %% [markdown]
# # A tiny lesson
#
# It says something.

# %%
print("two", "words")

# %% tags=["raises-exception"]
1 / 0

# %%
import matplotlib.pyplot as plt

plt.plot([1, 2, 3])
plt.title("a line")
plt.show()

# %% id="noisy"
import os
import sys
import warnings
from pathlib import Path

from tqdm import tqdm

for _ in tqdm(range(3)):
    pass
warnings.warn("careful")
print(Path.cwd(), os.environ["PAGEDKV_HOME"], sys.prefix)
object()

# %% id="bars"
import ipywidgets
from rich.progress import track
from tqdm.auto import tqdm as any_tqdm

for _ in track(range(3)):
    pass
for _ in any_tqdm(range(3)):
    pass
ipywidgets.IntSlider(value=3)
"""

WORKBOOK = '''\
# %% [markdown]
# # Tiny exercises

# %% nbgrader={"grade_id": "double", "grade": false, "solution": true, "locked": false, "schema_version": 3}
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    # Return twice x (1 line).
    return 2 * x
    ### END SOLUTION


# %% nbgrader={"grade_id": "double_test", "grade": true, "solution": false, "points": 2, "schema_version": 3}
print(double(2))
### BEGIN HIDDEN TESTS
assert double(4) == 8
### END HIDDEN TESTS
'''


def write_course(root: Path, lesson: str = LESSON, workbook: str = WORKBOOK, repository: str = "") -> Path:
    folder = root / "course" / CHAPTER
    folder.mkdir(parents=True, exist_ok=True)
    (root / "pyproject.toml").write_text(f'[tool.pagedkv]\nrepository = "{repository}"\n')
    (folder / "lesson.py").write_text(lesson)
    (folder / "workbook.py").write_text(workbook)
    return root
