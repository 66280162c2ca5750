"""A process between the harness and the training software: when the harness dies, however it dies, so do the ranks.

Started as ``python -m benchmarks.guard COMMAND...`` in a session of its own with a pipe from the harness as standard
input. The pipe ends when the harness closes it or is killed; then every process of the run is ended. The guard ends
with the command's exit code, 128 + n where signal n ended it.
"""

import os
import subprocess
import sys
import threading

from .process_tree import RUN_VARIABLE, end_run

STANDARD_INPUT = 0


def main(command: list[str]) -> int:
    """Run ``command`` to its end, or to the end of standard input."""
    run_id = os.environ[RUN_VARIABLE]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end_with_harness() -> None:
        while os.read(STANDARD_INPUT, 1):
            pass
        child.kill()
        end_run(run_id)
        os._exit(1)

    threading.Thread(target=end_with_harness, daemon=True).start()
    code = child.wait()
    # Ranks may outlive the agent that started them.
    end_run(run_id)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
