"""How many runs there are, and from which seed on."""

import os
from typing import Final

FIRST: Final = int(os.environ.get("TICKOVER_TEST_SIM_FIRST", "1"))
COUNT: Final = int(os.environ.get("TICKOVER_TEST_OPERATIONS_SEEDS", "100"))
SEEDS: Final = range(FIRST, FIRST + COUNT)
ENOUGH: Final = 100  # seeds, to meet all kinds of events
