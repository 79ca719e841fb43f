# SPDX-License-Identifier: Apache-2.0
"""A first-packet-probing XDP router."""

__version__ = "0.1.0"
