# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets: each says its invariant first and is run by the unit tests, too."""
