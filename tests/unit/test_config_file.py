# SPDX-License-Identifier: Apache-2.0
"""The file that a router is configured by, as it is read."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from xdp_router.core.config_edit import Edit, Verb
from xdp_router.core.errors import ConfigError
from xdp_router.daemon.config_file import ConfigFile, NotSaved

TEXT = """[router]
max_flows = 2000
[[service]]
address = "198.18.100.1:80"
[[service.backend]]
address = "198.18.1.2:8080"
"""


def test_what_it_said_is_remembered(tmp_path: Path) -> None:
    """Whatever it says later; and an option goes before it each time."""
    path = tmp_path / "router.toml"
    path.write_text(TEXT)
    file = ConfigFile(path, 3000)
    assert file.load().settings.max_flows == 3000
    path.write_text("nonsense")
    assert file.text == TEXT
    with pytest.raises(ConfigError, match="router.toml:1: not valid TOML"):
        file.load()
    assert file.text == TEXT
    assert ConfigFile(path).parse(TEXT).settings.max_flows == 2000


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "not UTF-8 text: expected TOML"),
    ],
)
def test_one_that_cannot_be_read(tmp_path: Path, data: bytes | None, detail: str) -> None:
    """It is named as it was given, with what is wrong."""
    path = tmp_path / "router.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        ConfigFile(path).read()
    assert str(caught.value) == f"{path}: {detail}"


# Written

COMMENTED = TEXT.replace("max_flows", "# how many\nmax_flows").replace('80"\n', '80" # web\n', 1)
HEAVIER = Edit("backend", Verb.SET, "198.18.1.2:8080", {"weight": 3})


def loaded(path: Path, text: str = COMMENTED) -> ConfigFile:
    """A file that was read."""
    path.write_text(text)
    file = ConfigFile(path)
    file.load()
    return file


def test_an_edit_is_written_and_all_else_stays(tmp_path: Path) -> None:
    """Comments, mode, and a link to the file; nothing is left beside it."""
    real = tmp_path / "real.toml"
    path = tmp_path / "router.toml"
    path.symlink_to(real)
    file = loaded(path)
    real.chmod(0o640)
    text = file.edited(HEAVIER)
    assert text == f"{COMMENTED}weight = 3\n"
    with file.written(text):
        assert real.read_text() == COMMENTED, "only when all went well"
    assert real.read_text() == file.text == text
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["real.toml", "router.toml"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_a_byte_order_mark_stay(tmp_path: Path, end: str) -> None:
    """The rest of the file is what it was, byte by byte."""
    path = tmp_path / "router.toml"
    text = "\ufeff" + COMMENTED.replace("\n", end)
    path.write_bytes(text.encode())
    file = ConfigFile(path)
    file.load()
    new = file.edited(HEAVIER)
    assert new.startswith(text)
    with file.written(new):
        pass
    assert path.read_bytes() == new.encode()


def test_a_table_that_is_put_in_stands_apart(tmp_path: Path) -> None:
    """With a blank line, also behind a last line without an end."""
    add = Edit("backend", Verb.ADD, loaded(tmp_path / "router.toml").load().services[0].name)
    add = replace(add, keys={"address": "198.18.1.9:80"})
    added = '\n[[service.backend]]\naddress = "198.18.1.9:80"\n'
    for text in (COMMENTED, COMMENTED.rstrip()):
        file = loaded(tmp_path / "router.toml", text)
        new = file.edited(add)
        before, found, _ = new.partition(added)
        assert found
        assert text.startswith(before.rstrip())


def test_a_text_that_looks_like_a_table_is_left_alone(tmp_path: Path) -> None:
    """In several lines, it is no table: rather no blank line than another text."""
    text = COMMENTED + 'name = "t"\nprobe = "udp"\nprobe_answer = """\na\n[[x]]\n# c\n"""\n'
    file = loaded(tmp_path / "router.toml", text)
    new = file.edited(Edit("backend", Verb.SET, "t", {"weight": 2}))
    assert tomllib.loads(new)["service"][0]["backend"][-1]["probe_answer"] == "a\n[[x]]\n# c\n"


def test_what_is_not_done_is_not_written(tmp_path: Path) -> None:
    """An exception within, or somebody who edits it at that moment."""
    path = tmp_path / "router.toml"
    file = loaded(path)
    with pytest.raises(RuntimeError), file.written("new"):
        raise RuntimeError
    assert path.read_text() == COMMENTED
    with pytest.raises(NotSaved, match="was edited since it was read"), file.written("new"):
        path.write_text("by hand")
    assert path.read_text() == "by hand"
    with pytest.raises(NotSaved, match="was edited since it was read, and is not overwritten"):
        file.edited(HEAVIER)
    assert [each.name for each in tmp_path.iterdir()] == ["router.toml"]


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    """No such place, no such backend in the file, or no configuration afterwards."""
    file = loaded(tmp_path / "router.toml")
    with pytest.raises(NotSaved, match="no backend is called 'b9'.*without --save is not in"):
        file.edited(Edit("backend", Verb.SET, "b9", {"weight": 3}))
    with pytest.raises(ConfigError, match="router.toml:8: service.backend.weight: found 0"):
        file.edited(Edit("backend", Verb.SET, "198.18.1.2:8080", {"weight": 0}))
    gone = ConfigFile(tmp_path / "gone" / "router.toml")
    with pytest.raises(NotSaved, match="cannot be written: No such file"), gone.written("x"):
        pass
