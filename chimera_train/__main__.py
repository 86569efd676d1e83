"""``python -m chimera_train`` is ``chimera-train``, for where scripts are not on the path."""

from chimera_train.cli.main import main

main()
