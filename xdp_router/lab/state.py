# SPDX-License-Identifier: Apache-2.0
"""What a kept lab consists of, on disk, so that any later process can use it or take it down.

Names are written before the things are made, so a builder that is killed leaves nothing unknown.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from .errors import LabError
from .processes import Process
from .spec import LabSpec

FILE = "state.json"
VERSION = 1


@dataclass(slots=True)
class LabState:
    """A kept lab. ``complete`` is false from the beginning of ``up`` to its end."""

    directory: Path
    prefix: str
    netns_dir: Path
    spec: LabSpec
    complete: bool = False
    processes: list[Process] = field(default_factory=list)

    @property
    def bpffs(self) -> Path:
        """Where the lab's own bpffs is mounted."""
        return self.directory / "bpf"

    def add_process(self, name: str, pid: int) -> None:
        """Remember a running process, so that ``down`` ends it; a namesake that ended goes."""
        kept = [entry for entry in self.processes if entry.name != name or entry.alive]
        self.processes = [*kept, Process.of(name, pid)]
        self.save()

    def process(self, name: str) -> Process | None:
        """The newest process of that name which is running."""
        running = [entry for entry in self.processes if entry.name == name and entry.alive]
        return running[-1] if running else None

    def save(self) -> None:
        """Replace the file in one step. Raises OSError."""
        values = {
            "version": VERSION,
            "prefix": self.prefix,
            "netns_dir": str(self.netns_dir),
            "spec": self.spec.as_json(),
            "complete": self.complete,
            "processes": [dataclasses.asdict(entry) for entry in self.processes],
        }
        aside = self.directory / f".{FILE}.{os.getpid()}"
        aside.write_text(json.dumps(values, indent=2) + "\n")
        aside.replace(self.directory / FILE)

    @classmethod
    def load(cls, directory: Path) -> LabState | None:
        """The lab kept in a directory, or None. Raises LabError for a file that is not ours."""
        path = directory / FILE
        try:
            values = json.loads(path.read_text())
            if values["version"] != VERSION:
                raise ValueError(f"version {values['version']}, expected {VERSION}")
            return cls(
                directory=directory,
                prefix=values["prefix"],
                netns_dir=Path(values["netns_dir"]),
                spec=LabSpec.from_json(values["spec"]),
                complete=values["complete"],
                processes=[Process(**entry) for entry in values["processes"]],
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, LabError) as error:
            raise LabError(
                f"{path} can't be read ({error}): run 'xdp-router lab down', then 'lab up'"
            ) from error
