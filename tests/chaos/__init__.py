# SPDX-License-Identifier: Apache-2.0
"""The chaos run: a router under random trouble, and clients that verify every byte.

``schedule`` and ``judge`` know no clock and no socket: what shall happen, and which connection
may end because of it. ``doers`` do it, ``traffic`` are the clients (a process), ``run`` has the
time, ``leaks`` looks at what is left, ``report`` puts it into words. docs/measurement.md says what
is promised.
"""
