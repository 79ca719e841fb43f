/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* bcc includes this; the program needs nothing of it. */
