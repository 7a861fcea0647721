"""The start of the `greedyfed` command: while its modules load, Ctrl-C just ends it."""

import signal


def main() -> None:
    """Entry point; `experiments.cli` obeys signals once it is loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from experiments.cli import main as command

    command()


if __name__ == "__main__":
    main()
