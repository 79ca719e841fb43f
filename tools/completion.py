# SPDX-License-Identifier: Apache-2.0
"""Write the shells' completion files of both commands: tools/completion.py DIRECTORY.

Below DIRECTORY they lie where the shells look below /usr/local/share.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from xdp_router.cli.main import main as cli
from xdp_router.daemon.main import main as daemon

PLACES = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}
COMMANDS: dict[str, click.Command] = {"xdp-router": cli, "xdp-routerd": daemon}


def write(directory: Path) -> list[Path]:
    """Returns the files."""
    written = []
    for shell, place in PLACES.items():
        kind = get_completion_class(shell)
        assert kind is not None
        for name, command in COMMANDS.items():
            variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
            path = directory / place.format(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(kind(command, {}, name, variable).source())
            path.chmod(0o644)
            written.append(path)
    return written


if __name__ == "__main__":
    write(Path(sys.argv[1]))
