# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: ``python -m bench [names]``. Not part of the installed package.

Each row compares what is measured with what the same machine does in the same run, arms taking
turns; packets are counted by who receives them. Everything runs in namespaces made for it.
"""
