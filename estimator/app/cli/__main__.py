"""``python -m estimator.app.cli``: the program without its console script."""

from .main import main

main()
