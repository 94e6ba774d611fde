"""The engine's tests also run on parts of the article's shape, which lie with the tests of the block layer."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "blocks"))
