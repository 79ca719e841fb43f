# SPDX-License-Identifier: Apache-2.0
"""Protocols of the L7 gateway without I/O: first bytes go in, what they say comes out."""
