"""Views are tested on the engine tests' tiny models, and on parts of the article's shape from the block layer's."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("engine", "blocks")]
