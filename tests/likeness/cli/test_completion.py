"""Completion in bash itself, by the script that `likeness --show-completion bash` prints."""

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

_TAB = """
eval "$(likeness --show-completion bash)"
tab() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _likeness_completion likeness
    echo "${COMPREPLY[*]}"
}
tab likeness ree
tab likeness keys ""
tab likeness embed --batch
tab likeness embed --on ""
tab likeness search my-
"""


def test_bash_completes_commands_options_and_their_values(tmp_path: Path) -> None:
    command = tmp_path / "likeness"
    command.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n", "utf-8")
    with command.open("a") as file:
        file.write("from likeness.__main__ import main\nmain()\n")
    command.chmod(0o755)
    bash = ["bash", "--norc", "-c", _TAB]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(bash, env=environment, capture_output=True, text=True, check=True, timeout=120)
    # Collections are not completed, so bash completes file names.
    assert done.stdout.splitlines() == ["reembed", "add list remove", "--batch-size", "local ray", ""]
