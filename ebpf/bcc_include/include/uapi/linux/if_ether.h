/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* This directory shadows <linux/if_ether.h>: hand on the system's. */
#include "/usr/include/linux/if_ether.h"
