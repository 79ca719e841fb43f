# SPDX-License-Identifier: Apache-2.0
"""Questions to the kernel that adapters and lab both ask; knows nothing of the router."""
