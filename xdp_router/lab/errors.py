# SPDX-License-Identifier: Apache-2.0
"""The one error that the lab raises for what its user can act on."""

from __future__ import annotations


class LabError(Exception):
    """The lab can't do what was asked; the message names the thing and the mend."""
