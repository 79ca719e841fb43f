/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The program is compiled once for each address family: XR_FAMILY 4 or 6. So IPv4 costs
 * nothing more because IPv6 exists, neither in time nor in memory, and what both do stands
 * once. Here is what the families name differently.
 */
#ifndef XR_FAMILY_H
#define XR_FAMILY_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>

#include "../abi.h"

#ifndef XR_FAMILY
#define XR_FAMILY 4
#endif

#if XR_FAMILY == 6

#define XR_IF_HANDOFF_FORWARD XR_IF_HANDOFF_FORWARD6
#define XR_IF_HANDOFF_REPLY XR_IF_HANDOFF_REPLY6

typedef struct flow_key6 flow_key_t;
typedef struct pending_flow6 pending_flow_t;
typedef struct flow_entry6 flow_entry_t;
typedef struct ip_addr addr_t;

/* As uapi linux/ipv6.h, which does not go with BPF targets. A hop limit is a TTL here. */
typedef struct {
	__be32 flow; /* version, traffic class, flow label */
	__be16 payload_len;
	__u8 protocol; /* next header */
	__u8 ttl;
	addr_t saddr;
	addr_t daddr;
} ip_header_t;

static __always_inline addr_t no_addr(void)
{
	addr_t none = {};

	return none;
}

static __always_inline int addr_equal(addr_t a, addr_t b)
{
	return !((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1]) | (a.word[2] ^ b.word[2]) |
		 (a.word[3] ^ b.word[3]));
}

/* `a` where the bits of `mask` are set, else `b`: a choice that is no branch. */
static __always_inline addr_t addr_choose(__u32 mask, addr_t a, addr_t b)
{
	addr_t chosen;
	int i;

#pragma unroll
	for (i = 0; i < 4; i++)
		chosen.word[i] = (a.word[i] & mask) | (b.word[i] & ~mask);
	return chosen;
}

/*
 * As the tables hold it that both families share: there ::ffff:a.b.c.d is IPv4's. An IPv6 packet
 * that bears such an address, which none may (RFC 4942, 2.2), finds nothing.
 */
static __always_inline struct ip_addr shared_addr(addr_t addr)
{
	__u32 other =
		addr.word[0] | addr.word[1] | (addr.word[2] ^ (__be32)__builtin_bswap32(0xffff));
	__s32 mask = other | -other; /* below 0 unless it is 0 */

	/* No branch: the verifier would walk what follows once with a known address. */
	asm volatile("" : "+r"(mask));
	return addr_choose(mask >> 31, addr, no_addr());
}

/* The address of this family that such a table holds. */
static __always_inline addr_t own_addr(const struct ip_addr *addr)
{
	return *addr;
}

#else

#define XR_IF_HANDOFF_FORWARD XR_IF_HANDOFF_FORWARD4
#define XR_IF_HANDOFF_REPLY XR_IF_HANDOFF_REPLY4

typedef struct flow_key flow_key_t;
typedef struct pending_flow pending_flow_t;
typedef struct flow_entry flow_entry_t;
typedef __be32 addr_t;
typedef struct iphdr ip_header_t;

static __always_inline addr_t no_addr(void)
{
	return 0;
}

static __always_inline int addr_equal(addr_t a, addr_t b)
{
	return a == b;
}

static __always_inline addr_t addr_choose(__u32 mask, addr_t a, addr_t b)
{
	return (a & mask) | (b & ~mask);
}

static __always_inline struct ip_addr shared_addr(addr_t addr)
{
	struct ip_addr shared = {.word = {0, 0, (__be32)__builtin_bswap32(0xffff), addr}};

	return shared;
}

static __always_inline addr_t own_addr(const struct ip_addr *addr)
{
	return addr->word[3];
}

#endif

/* The tuple as events tell it, for both families. */
static __always_inline void shared_key(const flow_key_t *key, struct flow_key6 *shared)
{
	shared->saddr = shared_addr(key->saddr);
	shared->daddr = shared_addr(key->daddr);
	shared->sport = key->sport;
	shared->dport = key->dport;
	shared->proto = key->proto;
	shared->kind = key->kind;
	shared->pad = 0;
}

#endif
