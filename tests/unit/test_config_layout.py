# SPDX-License-Identifier: Apache-2.0
"""An edited file reads as if a person had edited it."""

from __future__ import annotations

import random
import tomllib

import pytest
import tomlkit

from xdp_router.core.config import parse_config
from xdp_router.core.config_edit import Edit, Verb, apply_edit
from xdp_router.daemon.config_layout import laid_out

B1 = """[[service.backend]]
name = "b1"
address = "198.19.1.2:8080"
"""
WEB = f"""[[service]]
name = "web"
address = "198.18.100.1:80"

{B1}"""
API = """# the other
# one
[[service]]
name = "api"
address = "198.18.100.1:81"

  [[service.backend]]  # indented
  name = "a1"
  address = "198.19.1.2:8081"
"""
SOONER = API.replace(':81"\n', ':81"\ndeadline = "9ms"\n')
ADDED = """[[service.backend]]
address = "198.19.9.9:80"
weight = 3
"""
ADD = Edit("backend", Verb.ADD, "web", {"address": "198.19.9.9:80", "weight": 3})
SCORE = """[service.score]
rtt = 3
"""
SERVICE = Edit(
    "service",
    Verb.ADD,
    "",
    {"address": "198.18.100.2:80", "score.rtt": 3},
    ({"address": "198.19.9.9:80", "weight": 3}, {"address": "198.19.9.8:80"}),
)
NEW = f"""[[service]]
address = "198.18.100.2:80"

{SCORE}
{ADDED}
[[service.backend]]
address = "198.19.9.8:80"
"""


def edited(text: str, edit: Edit) -> str:
    """What becomes of a file; it says what it would say in any form."""
    document = tomlkit.parse(text)
    apply_edit(document, parse_config(text, "router.toml"), edit)
    raw = tomlkit.dumps(document)
    found = laid_out(text, raw)
    assert tomllib.loads(found) == tomllib.loads(raw)
    return found


@pytest.mark.parametrize(
    ("text", "edit", "wanted"),
    [
        (WEB, ADD, f"{WEB}\n{ADDED}"),
        (f"{WEB}\n{API}", ADD, f"{WEB}\n{ADDED}\n{API}"),
        (f"{WEB}{API}", ADD, f"{WEB}\n{ADDED}\n{API}"),  # no blank line there before
        (f"{WEB}\n# the end\n", ADD, f"{WEB}\n# the end\n\n{ADDED}"),
        (f"{WEB}\n\n", ADD, f"{WEB}\n\n{ADDED}"),
        (f"{WEB}\n{API}", SERVICE, f"{WEB}\n{API}\n{NEW}"),
        (
            f"{WEB}\n{API}",
            Edit("service", Verb.SET, "web", {"score.rtt": 3}),
            f"{WEB}\n{SCORE}\n{API}",
        ),
        (
            f"{WEB}\n{API}",
            Edit("service", Verb.SET, "api", {"score.rtt": 3, "deadline": "9ms"}),
            f"{WEB}\n{SOONER}\n{SCORE}",
        ),
        (f"{WEB}\n{API}", Edit("service", Verb.REMOVE, "web"), API),
        (f"{WEB}\n{API}", Edit("service", Verb.REMOVE, "api"), f"{WEB}\n# the other\n# one\n"),
        (
            f"{WEB}\n{ADDED}\n{API}",
            Edit("backend", Verb.REMOVE, "198.19.9.9:80"),
            f"{WEB}\n{API}",
        ),
        (f"{WEB}\n{API}", Edit("backend", Verb.SET, "b1", {"weight": 2}), None),
    ],
)
def test_what_is_put_in_stands_apart(text: str, edit: Edit, wanted: str | None) -> None:
    """A blank line on each side; comments stay above what they are about."""
    if wanted is None:
        wanted = text.replace(':8080"\n', ':8080"\nweight = 2\n')
    assert edited(text, edit) == wanted
    crlf = edited(text.replace("\n", "\r\n"), edit)
    assert "\n" not in crlf.replace("\r\n", "")
    assert crlf.replace("\r\n", "\n") == wanted


def test_any_edits_in_a_row_keep_the_form() -> None:
    """What was added and removed again leaves the file as it was."""
    text = f"# head\n\n{WEB}\n{API}"
    draw = random.Random(7)
    for number in range(40):
        name = draw.choice(("web", "api"))
        keys = {"name": f"n{number}", "address": f"198.19.9.{number + 1}:80"}
        more = edited(text, Edit("backend", Verb.ADD, name, keys))
        assert "\n\n\n" not in more
        assert edited(more, Edit("backend", Verb.REMOVE, f"n{number}")) == text
        if number % 3 == 0:
            text = more
