"""Everything that a release needs, as a list of commands: ``python -m aot.release_check``.

Each check is a command that a person can run by itself. What cannot run on this machine, because it
needs a GPU, a registry or GitHub, is listed by name and never counted as done.
"""

from aot.release_check.checks import CHECKS, Check
from aot.release_check.elsewhere import ELSEWHERE, Elsewhere
from aot.release_check.run import Outcome, Summary, run_checks

__all__ = ["CHECKS", "ELSEWHERE", "Check", "Elsewhere", "Outcome", "Summary", "run_checks"]
