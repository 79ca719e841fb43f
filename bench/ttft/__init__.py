# SPDX-License-Identifier: Apache-2.0
"""Time to the first token by what chooses the engine, where engines have queues and stall."""
