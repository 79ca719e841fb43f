# SPDX-License-Identifier: Apache-2.0
"""The L7 gateway beside other proxies: time added to the first token and to each one, and CPU."""
