/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* bcc sizes its own ring buffers, which are never used, in pages. */
#define PAGE_SIZE 4096
