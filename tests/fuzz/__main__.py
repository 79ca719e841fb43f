# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.fuzz``: run the targets one after another with atheris, or repeat a finding.

What was found interesting stays in build/fuzz/NAME and is where the next run begins. A finding is
written to build/fuzz/NAME-*.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import load, names

CORPUS = Path("build/fuzz")


def main() -> int:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    parser.add_argument("--seconds", type=int, default=300, help="for each target (default 300)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help=f"default {CORPUS}")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="only check these bytes")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.targets) - set(names())
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; expected: {', '.join(names())}")
    targets = options.targets or names()
    if options.repeat:
        if len(options.targets) != 1:
            parser.error("--repeat wants one NAME")
        load(targets[0]).check(options.repeat.read_bytes())
        print(f"{targets[0]}: {options.repeat} is no finding")
        return 0
    if options.here:
        fuzz(targets[0], options.seconds, options.corpus)
    failed = [name for name in targets if not run(name, options.seconds, options.corpus)]
    if failed:
        print(f"fuzz: findings or failures in: {', '.join(failed)}", file=sys.stderr)
        return 1
    print(f"fuzz: no findings in {', '.join(targets)}, {options.seconds} s each")
    return 0


def run(name: str, seconds: int, corpus: Path) -> bool:
    """Fuzz in a process of its own: libFuzzer ends it. Return whether nothing was found."""
    print(f"fuzz: {name}, {seconds} s", flush=True)
    command = [sys.executable, "-m", "tests.fuzz", name, "--here"]
    command += ["--seconds", str(seconds), "--corpus", str(corpus)]
    if subprocess.run(command, timeout=seconds + 300).returncode == 0:
        return True
    print(
        f"fuzz: {name}: a finding is written to {corpus}/{name}-*. To see it again: "
        f"{sys.executable} -m tests.fuzz {name} --repeat FILE; once mended, add its bytes to SEEDS",
        file=sys.stderr,
    )
    return False


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Run libFuzzer on one target; does not return."""
    import atheris

    with atheris.instrument_imports(include=["xdp_router.gateway"]):
        target = load(name)
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    arguments = [
        f"fuzz_{name}",
        f"-max_total_time={seconds}",
        # libFuzzer never passes the longest seed's size by itself when this is not given.
        f"-max_len={max(4096, 2 * max(map(len, target.seeds), default=0))}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={corpus}/{name}-",
    ]
    if target.words:
        words = "".join(
            '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words
        )
        (corpus / f"{name}.dict").write_text(words)
        arguments.append(f"-dict={corpus}/{name}.dict")
    atheris.Setup([*arguments, str(folder)], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
