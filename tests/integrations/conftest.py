"""Scripts that torchrun runs hold no tests, and import trainers that may not be installed."""

collect_ignore_glob = ["*_run.py"]
