/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The way to a client that no entry tells: the kernel's own, by route and neighbour. */
#ifndef XR_FIB_H
#define XR_FIB_H

#include "send.h"

/* Address families of the kernel; the C library's header does not go with BPF targets. */
#define FIB_FAMILY (XR_FAMILY == 6 ? 10 : 2)

struct way {
	__u32 ifindex; /* 0: not known, or not attached */
	__u8 dmac[6];
	__u8 smac[6];
};

enum way_found {
	WAY_NOT_OURS = 0, /* to an address of this host, or nobody's */
	WAY_NONE,
	WAY_XDP,    /* all of `way` is known, and XDP can send there */
	WAY_KERNEL, /* only the kernel can send there, or ask who it is */
};

static __always_inline void fib_addresses(struct bpf_fib_lookup *fib, const struct rewrite *to)
{
#if XR_FAMILY == 6
	__builtin_memcpy(fib->ipv6_src, &to->saddr, sizeof(fib->ipv6_src));
	__builtin_memcpy(fib->ipv6_dst, &to->daddr, sizeof(fib->ipv6_dst));
#else
	fib->ipv4_src = to->saddr;
	fib->ipv4_dst = to->daddr;
#endif
}

/*
 * As the kernel would forward the packet after it is rewritten `to`: forwarding has to be on at
 * the interface that it came in by, as the daemon makes sure before a service is stateless.
 */
static __always_inline int find_way(struct xdp_md *ctx, const struct packet *p,
				    const struct rewrite *to, struct way *way)
{
	struct scratch *scratch = scratch_lookup(ctx);
	struct bpf_fib_lookup *fib;
	struct interface *egress;
	long result;

	if (!scratch)
		return WAY_NONE;
	fib = &scratch->fib;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = FIB_FAMILY;
	fib->l4_protocol = p->key.proto;
	fib->sport = to->sport;
	fib->dport = to->dport;
	fib->ifindex = ctx->ingress_ifindex;
	fib_addresses(fib, to);
	result = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	if (result == BPF_FIB_LKUP_RET_NOT_FWDED)
		return WAY_NOT_OURS;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH)
		return WAY_KERNEL;
	if (result != BPF_FIB_LKUP_RET_SUCCESS)
		return WAY_NONE;
	way->ifindex = fib->ifindex;
	mac_copy(way->dmac, fib->dmac);
	mac_copy(way->smac, fib->smac);
	egress = interfaces_lookup(way->ifindex);
	if (!egress) /* whether it takes frames is not known */
		way->ifindex = 0;
	return egress && !(egress->flags & XR_IF_NO_XMIT) ? WAY_XDP : WAY_KERNEL;
}

#endif
