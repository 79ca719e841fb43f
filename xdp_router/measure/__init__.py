# SPDX-License-Identifier: Apache-2.0
"""Figures of what the router does, and how sure they are. Sans-I/O: values and instants go in."""
