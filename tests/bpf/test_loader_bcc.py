# SPDX-License-Identifier: Apache-2.0
"""What the bcc loader does before the kernel sees anything, and how it fails."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.descriptors import open_descriptors
from tests.support.privileges import require_root
from xdp_router import ebpf
from xdp_router.adapters.bpf_ctypes import UnsupportedHost
from xdp_router.adapters.loader_bcc import (
    BccLoader,
    CompileError,
    inline_headers,
    replace_map_fds,
)

_BLOCK_BCC = """
import sys
sys.modules["bcc"] = None
from xdp_router.adapters.loader_bcc import BccLoader
from xdp_router import ebpf
try:
    BccLoader({"m": ""}, "m", ebpf.BCC_INCLUDE).open()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_headers_are_inlined_once_and_relative_to_their_file() -> None:
    """Each local header's text appears once, system headers stay, and lines stay findable."""
    sources = {
        "main.c": '#include <linux/bpf.h>\n#include "lib/a.h"\n#include "abi.h"\nint main_line4;\n',
        "lib/a.h": '#include "../abi.h"\nint a;\n',
        "abi.h": "int abi;\n",
    }
    text = inline_headers(sources, "main.c")
    assert text.count("int abi;") == 1
    assert text.count("int a;") == 1
    assert "#include <linux/bpf.h>" in text
    assert '#include "' not in text
    assert '#line 4 "main.c"\nint main_line4;' in text


def test_a_missing_header_is_named() -> None:
    """An include of a file that is not packaged names file and header."""
    with pytest.raises(CompileError, match=r"main\.c.*nothing\.h"):
        inline_headers({"main.c": '#include "nothing.h"\n'}, "main.c")


def test_only_map_references_are_replaced() -> None:
    """Map loads get the new fd; a constant with the same number stays, as does its second half."""

    def imm64(source: int, value: int, upper: int = 0) -> bytes:
        return struct.pack("=BBhi", 0x18, 1 | source << 4, 0, value) + struct.pack(
            "=BBhi", 0, 0, 0, upper
        )

    code = imm64(1, 7) + imm64(0, 7, 0x18) + imm64(1, 8)
    assert replace_map_fds(code, {7: 70, 8: 80}) == imm64(1, 70) + imm64(0, 7, 0x18) + imm64(1, 80)


def test_an_unknown_map_reference_is_an_error() -> None:
    """An fd that belongs to no known map is not passed on to the kernel."""
    with pytest.raises(KeyError):
        replace_map_fds(struct.pack("=BBhiQ", 0x18, 1 | 1 << 4, 0, 9, 0), {7: 70})


def test_compiler_errors_name_the_source_line() -> None:
    """The error has the compiler's message with the real file and line; the log is kept."""
    require_root()
    sources = {"main.c": '#include "lib/a.h"\n', "lib/a.h": "int a;\nint b = nonsense;\n"}
    with pytest.raises(CompileError, match=r"lib/a\.h:2:\d+: error: .*nonsense") as caught:
        BccLoader(sources, "main.c", ebpf.BCC_INCLUDE).open()
    assert "nonsense" in caught.value.log


def test_compiling_leaves_the_process_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    """No complaint about kernel headers, same directory and environment, no fd left over."""
    require_root()
    source = (
        "#ifndef XR_LOADER_BCC\n#error dialect\n#endif\n"
        "#include <linux/bpf.h>\n#include <linux/if_ether.h>\n"
        'BPF_TABLE("array", u32, u64, counters, 1);\n'
        "int xdp_router(struct xdp_md *ctx) { return sizeof(struct ethhdr) == 14 ? 2 : 1; }\n"
    )
    before = (os.getcwd(), dict(os.environ))
    loader = BccLoader({"main.c": source}, "main.c", ebpf.BCC_INCLUDE)
    loader.open().close()  # libraries keep an fd or two of their own from the first time
    fds = len(open_descriptors())
    program = loader.open()
    assert set(program.maps) == {"counters"}
    assert program.maps["counters"].value_size == 8
    program.close()
    assert (os.getcwd(), dict(os.environ)) == before
    assert len(open_descriptors()) == fds
    assert capfd.readouterr() == ("", "")


def test_without_bcc_the_package_to_install_is_named() -> None:
    """No bcc: one clear error that names the distribution's package."""
    script = [sys.executable, "-c", _BLOCK_BCC]
    result = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.startswith(UnsupportedHost.__name__)
    assert "python3-bpfcc" in result.stdout


def test_stand_in_headers_are_few() -> None:
    """The stand-in for a kernel tree stays small: it is no copy of one."""
    files = [path for path in Path(ebpf.BCC_INCLUDE).rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < 4096
