"""``python -m balancer`` is the command ``balancer``."""

from balancer.cli.start import main

if __name__ == "__main__":
    main()
