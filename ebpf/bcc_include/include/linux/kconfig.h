/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What bcc's own helper header wants from a kernel tree. With this directory as
 * BCC_KERNEL_SOURCE bcc compiles the program, which uses nothing but uapi structs, on
 * hosts without kernel headers, and several times faster than with them.
 */
#ifndef XR_BCC_KCONFIG_H
#define XR_BCC_KCONFIG_H

#define CONFIG_BPF_SYSCALL 1

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;
typedef _Bool bool;

#endif
