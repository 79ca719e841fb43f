# SPDX-License-Identifier: Apache-2.0
"""One file for each command, or family of commands."""
