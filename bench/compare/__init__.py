# SPDX-License-Identifier: Apache-2.0
"""Connections by the router's three modes beside other ways to choose a backend.

``python -m bench.compare``; what is measured and how is in ``docs/measurement.md``.
"""
