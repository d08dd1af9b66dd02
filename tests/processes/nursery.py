"""What simulated runtimes in processes of their own are forked from (see ``mortal``): imported
once, for seconds, and only there, because it leaves torch out of its process.
"""

import tests.simulated.__main__  # noqa: F401 - comes first: it leaves torch out
from tests.processes import mortal  # noqa: F401 - whose function a fork runs
from tests.simulated.words import pocket_words

pocket_words()
