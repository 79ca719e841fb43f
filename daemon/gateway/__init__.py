# SPDX-License-Identifier: Apache-2.0
"""The gateway's processes: a supervisor, and workers that have the connections."""
